//! The relay's options, and its counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use portolan_model::Capture;
use rustix::process::{Resource, getrlimit, setrlimit};

/// The ports of the listeners. The port only selects the set of endpoints; the original destination identifies the
/// Service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// Port for traffic to the cluster's endpoints.
    pub cluster: u16,
    /// Port for traffic to this node's endpoints.
    pub local: u16,
}

impl Default for Ports {
    /// Returns the first two ports above those of Kubernetes' own components (10248 to 10260).
    fn default() -> Self {
        Self { cluster: 10_261, local: 10_262 }
    }
}

impl Ports {
    /// Returns the first two ports of a range (`--proxy-port-range`), or `None` if the range has fewer than two.
    pub const fn from_range(first: u16, last: u16) -> Option<Self> {
        match first {
            0 => None,
            first if first < last => Some(Self { cluster: first, local: first.saturating_add(1) }),
            _ => None,
        }
    }
}

/// Returns true if backends can see the client's address: their answers to it must come to the relay.
pub(crate) const fn can_keep_clients(capture: Capture) -> bool {
    matches!(capture, Capture::Tproxy)
}

/// Limits and timeouts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayOptions {
    /// The ports of the listeners.
    pub ports: Ports,
    /// How packets are captured for them.
    pub capture: Capture,
    /// The time limit of each attempt to connect. The last one also holds for all later attempts. The default is that of
    /// kube-proxy's userspace mode.
    pub connect_limits: Vec<Duration>,
    /// A connection without data for this long ends (`conntrack.tcpEstablishedTimeout`).
    pub idle: Duration,
    /// The same for a connection that one side has closed (`conntrack.tcpCloseWaitTimeout`).
    pub half_closed_idle: Duration,
    /// A connection ends if a peer takes or acknowledges none of the data sent to it for this long. The default is about
    /// as long as TCP itself retries without an answer (`net.ipv4.tcp_retries2`).
    pub stalled: Duration,
    /// How long connections of a removed endpoint may go on.
    pub drain: Duration,
    /// A UDP flow without datagrams for this long ends (`--udp-timeout`). The default is the kernel's timeout for a flow.
    pub udp_idle: Duration,
    /// How long a relay that drains still passes on answers after the last datagram of a client.
    pub udp_answers: Duration,
    /// The maximum number of TCP connections. A connection counts once, although it has two sockets.
    pub connections_max: usize,
    /// The maximum number of UDP flows. Each needs a source port that no other UDP socket of this host has. The default leaves
    /// some of the kernel's 28,232 to other programs (`net.ipv4.ip_local_port_range`).
    pub flows_max: usize,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            ports: Ports::default(),
            capture: Capture::default(),
            connect_limits: [250, 500, 1000, 2000].map(Duration::from_millis).to_vec(),
            idle: Duration::from_secs(24 * 60 * 60),
            half_closed_idle: Duration::from_secs(60 * 60),
            stalled: Duration::from_secs(15 * 60),
            drain: Duration::from_secs(5 * 60),
            udp_idle: Duration::from_secs(30),
            udp_answers: Duration::from_secs(5),
            connections_max: 100_000,
            flows_max: 20_000,
        }
    }
}

impl RelayOptions {
    /// Returns the time limit of the longest attempt.
    pub(crate) fn longest_attempt(&self) -> Duration {
        self.connect_limits.last().copied().unwrap_or_default()
    }

    /// Lowers the maxima so that `limit` descriptors suffice. A connection needs two, and a pipe for every eighth
    /// connection two more. A flow needs two: its own socket, and the socket that answers from its port, which it may
    /// not share. 1024 descriptors, or half of the limit if that is less, are left to the rest of the process. Flows get a
    /// quarter of the others: more of them would be idle ones, which end early if places are short, and a connection cannot
    /// end early.
    #[must_use]
    pub fn within_descriptors(mut self, limit: usize) -> Self {
        let ours = limit.saturating_sub(1024).max(limit / 2);
        self.flows_max = self.flows_max.min(ours / 8);
        let left = ours.saturating_sub(self.flows_max.saturating_mul(2));
        self.connections_max = self.connections_max.min(left.saturating_mul(4) / 9);
        self
    }
}

/// Raises this process's limit of open descriptors to the maximum, and returns the limit.
pub fn raise_descriptors() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If this fails, the old limit stays.
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// What the relay has done. The counters only grow, except those of what is open or failing at present.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections accepted.
    pub accepted: AtomicU64,
    /// Connections open at present.
    pub open: AtomicU64,
    /// Connections and UDP flows refused for lack of room.
    pub no_room: AtomicU64,
    /// Connections refused because their destination is no Service port's.
    pub unknown: AtomicU64,
    /// Attempts to connect that failed.
    pub attempts_failed: AtomicU64,
    /// Connections reset because every backend failed.
    pub all_failed: AtomicU64,
    /// Connections reset because their endpoint was removed too long ago, or after too long without data.
    pub expired: AtomicU64,
    /// UDP flows begun.
    pub flows: AtomicU64,
    /// UDP flows open at present.
    pub flows_open: AtomicU64,
    /// UDP flows ended before their idle time, because a new flow needed the place.
    pub flows_replaced: AtomicU64,
    /// Datagrams dropped: no room, no backend, or a full socket buffer.
    pub datagrams_lost: AtomicU64,
    /// Bytes of connections and datagrams sent to backends.
    pub bytes_to_backends: AtomicU64,
    /// Bytes of connections and datagrams sent to clients.
    pub bytes_to_clients: AtomicU64,
    /// Backends that failed at their last attempt, counted for each Service port. They are tried again after a back-off.
    pub failing: AtomicU64,
}

impl Counters {
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add(counter: &AtomicU64, number: usize) {
        if number > 0 {
            counter.fetch_add(number as u64, Ordering::Relaxed);
        }
    }

    /// Sets the counters of what is open to zero, at the end of the relay.
    pub(crate) fn end(&self) {
        for counter in [&self.open, &self.flows_open, &self.failing] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn uncount(counter: &AtomicU64) {
        counter.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_suffice_for_the_maxima() {
        for limit in [64, 1024, 4096, 65_536, 1 << 20] {
            let options = RelayOptions::default().within_descriptors(limit);
            let pipes = options.connections_max / 8 * 2;
            let used = options.connections_max * 2 + pipes + options.flows_max * 2;
            assert!(used <= limit.saturating_sub(1024).max(limit / 2), "{limit}: {used}");
            assert!(options.connections_max > limit / 8 || options.connections_max == 100_000, "{limit}");
        }
    }

    /// The table in `docs/userspace.md`.
    #[test]
    fn the_documented_maxima() {
        let documented =
            [(20_000, 6325, 2372, 1898), (65_536, 21_504, 8064, 6452), (161_024, 53_333, 20_000, 16_000)];
        for (limit, connections, flows, of_one_service) in documented {
            let options = RelayOptions::default().within_descriptors(limit);
            assert_eq!((options.connections_max, options.flows_max), (connections, flows), "{limit}");
            let mut share = crate::share::Share::new(flows);
            assert_eq!((0..limit).take_while(|&held| share.take(held)).count(), of_one_service, "{limit}");
        }
    }

    #[test]
    fn the_first_two_ports_of_a_range() {
        assert_eq!(Ports::from_range(3000, 4000), Some(Ports { cluster: 3000, local: 3001 }));
        assert_eq!(Ports::from_range(3000, 3000), None);
        assert_eq!(Ports::from_range(0, 0), None);
    }
}
