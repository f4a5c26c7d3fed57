//! What the relay may use and how long it waits; and what it counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};

/// The ports of the listeners. They say only whose endpoints serve a connection; its destination says whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// For traffic that takes the cluster's endpoints.
    pub cluster: u16,
    /// For traffic that takes this node's endpoints.
    pub local: u16,
}

impl Default for Ports {
    /// The first two above those that Kubernetes' own components have (10248 to 10260).
    fn default() -> Self {
        Self { cluster: 10_261, local: 10_262 }
    }
}

impl Ports {
    /// The first two ports of a range (`--proxy-port-range`), which must have two.
    pub const fn from_range(first: u16, last: u16) -> Option<Self> {
        match first {
            0 => None,
            first if first < last => Some(Self { cluster: first, local: first.saturating_add(1) }),
            _ => None,
        }
    }
}

/// How what is captured comes to the listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arrival {
    /// With the destination that the client meant. The listeners are on the loopback addresses.
    #[default]
    Untouched,
    /// Translated to an address of this node: the kernel remembers what the client meant. The listeners are on every
    /// address.
    Translated {
        /// The mark of the relay's own packets (`SO_MARK`), which are not captured.
        own_mark: u32,
    },
}

impl Arrival {
    /// The mark of the relay's own packets, where they have one.
    pub(crate) const fn own_mark(self) -> Option<u32> {
        match self {
            Self::Untouched => None,
            Self::Translated { own_mark } => Some(own_mark),
        }
    }

    /// Whether backends may see the client's address: answers to it have to find a way to the relay.
    pub(crate) const fn can_keep_clients(self) -> bool {
        matches!(self, Self::Untouched)
    }
}

/// Limits and times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where to listen.
    pub ports: Ports,
    /// How captured packets come there.
    pub arrival: Arrival,
    /// How long each attempt to connect may take; the last one holds for all that follow. Those of kube-proxy's userspace
    /// mode.
    pub connect_limits: Vec<Duration>,
    /// A connection without any data for this long ends (`conntrack.tcpEstablishedTimeout`).
    pub idle: Duration,
    /// The same where one side has closed already (`conntrack.tcpCloseWaitTimeout`).
    pub half_closed_idle: Duration,
    /// How long a peer may take nothing of what waits for it, or not acknowledge what it got: a connection to it ends then.
    /// By default as long as TCP itself bears with a peer that says nothing (`net.ipv4.tcp_retries2`).
    pub stalled: Duration,
    /// How long connections of an endpoint that is gone may go on.
    pub drain: Duration,
    /// A UDP flow without datagrams for this long ends (`--udp-timeout`). By default as long as the kernel remembers one.
    pub udp_idle: Duration,
    /// TCP connections at most, both directions of one counted once.
    pub connections_max: usize,
    /// UDP flows at most.
    pub flows_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ports: Ports::default(),
            arrival: Arrival::default(),
            connect_limits: [250, 500, 1000, 2000].map(Duration::from_millis).to_vec(),
            idle: Duration::from_secs(24 * 60 * 60),
            half_closed_idle: Duration::from_secs(60 * 60),
            stalled: Duration::from_secs(15 * 60),
            drain: Duration::from_secs(5 * 60),
            udp_idle: Duration::from_secs(30),
            connections_max: 100_000,
            flows_max: 20_000,
        }
    }
}

impl Options {
    /// As much as this many descriptors allow: two for a connection and a pipe for every eighth, two for a flow, which may be
    /// the only one to its virtual address and so has the socket that answers from there. A part is left to the rest of the
    /// process.
    #[must_use]
    pub fn within_descriptors(mut self, limit: usize) -> Self {
        let ours = limit.saturating_sub(1024).max(limit / 2);
        self.flows_max = self.flows_max.min(ours / 8);
        let left = ours.saturating_sub(self.flows_max.saturating_mul(2));
        self.connections_max = self.connections_max.min(left.saturating_mul(4) / 9);
        self
    }
}

/// Raises this process's limit of descriptors as far as it may, and answers how many there may be.
pub fn raise_descriptors() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // What there was before has to do where that fails.
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// What happened so far. Only ever grows, but for what is open now.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections that were taken in.
    pub accepted: AtomicU64,
    /// Connections that are open.
    pub open: AtomicU64,
    /// Connections refused because there was no room.
    pub no_room: AtomicU64,
    /// Connections refused because nothing is known of their destination.
    pub unknown: AtomicU64,
    /// Attempts to connect that failed.
    pub attempts_failed: AtomicU64,
    /// Connections that ended because every backend failed.
    pub all_failed: AtomicU64,
    /// Connections cut because their endpoint was gone for too long, or nothing came for too long.
    pub expired: AtomicU64,
    /// UDP flows that were begun.
    pub flows: AtomicU64,
    /// UDP flows that are open.
    pub flows_open: AtomicU64,
    /// Datagrams that were not passed on: no room, no backend, or a full socket.
    pub datagrams_lost: AtomicU64,
    /// Bytes of streams and datagrams given to backends.
    pub bytes_to_backends: AtomicU64,
    /// Bytes of streams and datagrams given to clients.
    pub bytes_to_clients: AtomicU64,
    /// Backends of Service ports that failed last: they are tried now and then.
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

    /// Nothing is open any more.
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
    fn descriptors_are_enough_for_what_is_allowed() {
        for limit in [64, 1024, 4096, 65_536, 1 << 20] {
            let options = Options::default().within_descriptors(limit);
            let pipes = options.connections_max / 8 * 2;
            let used = options.connections_max * 2 + pipes + options.flows_max * 2;
            assert!(used <= limit.saturating_sub(1024).max(limit / 2), "{limit}: {used}");
            assert!(options.connections_max > limit / 8 || options.connections_max == 100_000, "{limit}");
        }
    }

    #[test]
    fn a_range_of_ports_has_two() {
        assert_eq!(Ports::from_range(3000, 4000), Some(Ports { cluster: 3000, local: 3001 }));
        assert_eq!(Ports::from_range(3000, 3000), None);
        assert_eq!(Ports::from_range(0, 0), None);
    }
}
