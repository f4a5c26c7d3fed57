//! The userspace mode: the relay of both families, from its start to the end of its last connection.
//!
//! One relay serves the captured packets. When its options or the mode change, the next data plane gets the new
//! connections. The former relay closes its listeners when the next data plane is active in every family. It ends
//! with its last connection or at its deadline.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use portolan_engine::{Claims, Error, Table};
use portolan_model::observed::Observed;
use portolan_model::oracle::ModeDifferences;
use portolan_model::{Capture, Family, Settings};
use portolan_nftables::{CAPTURE_TABLE, CONNECTIONS_TABLE, Listeners, Nftables};
use portolan_node::config::{Configuration, Mode};
use portolan_node::metrics::ProxyMetrics;
use portolan_node::sysctl::{Host, Wanted};
use portolan_relay::{Handle, Ports};
use portolan_userspace::{Remains, Rules, spawn_translated};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::blueprint::{PlaneOptions, required};
use super::{
    Blueprint, FoundPrograms, Known, Made, Meters, ModeDriver, NotCounted, Over, Plane, SharedParts,
    read_with_programs, settings,
};
use crate::finding::Finding;
use crate::node_settings::KernelSettings;

pub(crate) use counters::RelayCounters;

mod counters;

/// How long the former relay still accepts after capturing has ended. Handshakes that are under way complete in this
/// time.
const GRACE: Duration = Duration::from_secs(1);
/// Whether the kernel looks up the socket of a TCP packet before the routing decision, in both families.
const TCP_EARLY_DEMUX: &str = "/proc/sys/net/ipv4/tcp_early_demux";
/// Whether a new connection may use the port of one that this host has closed a second ago or more, instead of a minute
/// (`TIME_WAIT`). TCP timestamps tell the two apart.
const TCP_TW_REUSE: &str = "/proc/sys/net/ipv4/tcp_tw_reuse";
/// The settings of each interface, and of all.
const INTERFACES: &str = "/proc/sys/net/ipv4/conf";
/// How long the drain waits for capturing to end. It ends a moment after the next data plane has taken over.
const CAPTURE_ENDS: Duration = Duration::from_secs(5);
/// Poll interval of that wait.
const LOOK: Duration = Duration::from_millis(50);
/// Upper limit of the file descriptors that the relay uses.
const DESCRIPTORS_MAX: u64 = 1 << 20;

/// Why this mode has no preview of its rules.
#[derive(Debug, thiserror::Error)]
#[error(
    "the rules of the userspace mode name the relay's listeners, which exist while the agent runs in this mode"
)]
struct NoPreview;

/// The driver of this mode.
pub(super) struct Driver;

impl ModeDriver for Driver {
    fn mode(&self) -> Mode {
        Mode::Userspace
    }

    fn trial(&self, configuration: &Configuration, family: Family) -> Option<Finding> {
        match configuration.capture {
            Capture::Tproxy => {
                let tried = attempt(configuration, family);
                tried.err().map(|error| Finding::Userspace { family, reason: error.to_string() })
            }
            Capture::Redirect => {
                super::iptables::attempt(family).err().map(|reason| Finding::Iptables { family, reason })
            }
        }
    }

    fn blueprint(
        &self,
        configuration: &Configuration,
        family: Family,
        node: &settings::Node<'_>,
    ) -> Blueprint {
        Blueprint::Userspace(options(configuration, family, node))
    }

    fn read(&self, family: Family, known: Option<&Known>) -> Result<Option<Observed>, Error> {
        let relay = known.and_then(|known| known.relay.as_ref());
        let redirect = || {
            let read = |programs: &_| portolan_userspace::read_redirect(programs, family, relay);
            read_with_programs(family, known, read)
        };
        match relay.map(|relay| relay.options().capture) {
            Some(Capture::Tproxy) => portolan_userspace::read(family, relay),
            Some(Capture::Redirect) => redirect(),
            // The rules tell.
            None => match portolan_userspace::read(family, None)? {
                Some(observed) => Ok(Some(observed)),
                None => redirect(),
            },
        }
    }

    fn not_counted(&self, settings: &Settings) -> Option<NotCounted> {
        let off =
            "with tproxy, the userspace mode counts refused packets only if portolan.serviceCounters is true";
        (!settings.counters).then_some(NotCounted::Part(off))
    }

    fn preview(
        &self,
        _: &Configuration,
        _: &settings::Node<'_>,
        _: &Table,
        _: Over,
    ) -> Result<Vec<String>, Error> {
        Err(Error::of_mode(NoPreview))
    }

    fn kernel_settings(&self, configuration: &Configuration, _: &settings::Node<'_>) -> Vec<Wanted> {
        wanted(configuration.capture)
    }

    fn warnings(&self, configuration: &Configuration, families: &[Family]) -> Vec<Finding> {
        if configuration.capture == Capture::Tproxy { obstacles(families) } else { Vec::new() }
    }

    fn initialise(
        &self,
        configuration: &Configuration,
        _: &settings::Node<'_>,
        kernel_settings: &KernelSettings,
    ) {
        kernel_settings.apply_or_warn(&wanted(configuration.capture), &[]);
    }

    fn claims(&self, configuration: &Configuration, family: Family) -> Option<Claims> {
        let is_redirected = configuration.capture == Capture::Redirect;
        if is_redirected { super::iptables::claims(family) } else { None }
    }

    fn tables(&self, _: &Configuration) -> &'static [&'static str] {
        &[CAPTURE_TABLE, CONNECTIONS_TABLE]
    }

    fn differences(
        &self,
        configuration: &Configuration,
        _: Family,
        _: &settings::Node<'_>,
    ) -> ModeDifferences {
        match configuration.capture {
            Capture::Tproxy => ModeDifferences::userspace(),
            Capture::Redirect => ModeDifferences::redirect(),
        }
    }

    fn uses_kube_proxys_chains(&self, configuration: &Configuration) -> bool {
        configuration.capture == Capture::Redirect
    }

    fn redirected_to(&self, configuration: &Configuration) -> Option<RangeInclusive<u16>> {
        let Ports { cluster, local } = relay_options(configuration).ports;
        (configuration.capture == Capture::Redirect).then(|| cluster.min(local)..=cluster.max(local))
    }

    fn listeners(&self, configuration: &Configuration, node_ip: Option<IpAddr>) -> Vec<SocketAddr> {
        listeners(configuration, node_ip)
    }

    fn captures(&self, configuration: &Configuration) -> bool {
        configuration.capture == Capture::Tproxy
    }

    /// What was captured by `tproxy`. Rules that redirect have kube-proxy's names.
    fn former(
        &self,
        configuration: &Configuration,
        family: Family,
        _: Option<FoundPrograms>,
    ) -> Option<Plane> {
        let is_used = self.is_configured(configuration) && configuration.capture == Capture::Tproxy;
        (!is_used).then(|| Box::new(Remains::new(family)) as Plane)
    }

    fn with_measures(&self, metrics: ProxyMetrics, meters: &Meters) -> ProxyMetrics {
        let counters = meters.relays.clone();
        metrics.with_relays(move || counters.read())
    }
}

/// The options from which a data plane of this mode is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UserspacePlaneOptions {
    relay: portolan_relay::RelayOptions,
    /// Options of the redirecting rules, if packets are redirected. `None` for TPROXY.
    redirect: Option<portolan_iptables::IptablesOptions>,
}

impl UserspacePlaneOptions {
    /// Returns the blueprint that serves the same addresses without a relay.
    pub(super) fn without_relay(self) -> Blueprint {
        match self.redirect {
            Some(options) => Blueprint::Iptables(options),
            None => Blueprint::Nftables(super::nftables::NftablesPlaneOptions),
        }
    }
}

impl PlaneOptions for UserspacePlaneOptions {
    fn calls_programs(&self) -> bool {
        self.redirect.is_some()
    }

    fn captures(&self) -> bool {
        true
    }

    /// The data plane captures packets for a relay with these options.
    fn make(
        &self,
        settings: Settings,
        programs: Option<FoundPrograms>,
        shared: &mut SharedParts,
    ) -> Result<Made, Error> {
        // Before a relay listens: from then on, the kernel gives it a part of the UDP clients.
        let rules = match &self.redirect {
            None => Rules::tproxy(settings, &self.relay)?,
            Some(options) => {
                let programs = required(programs, settings.family)?;
                Rules::redirect(programs, settings, options.clone(), &self.relay)
            }
        };
        // Not for each family and each data plane: what cannot be written would be logged again.
        if !shared.relays.is_current(&self.relay) {
            shared.kernel_settings.apply_or_warn(&wanted(self.relay.capture), &[]);
        }
        let dataplane = rules.with_relay(shared.relays.get(&self.relay)?);
        let own = dataplane.own();
        Ok(Made { dataplane: Box::new(dataplane), own })
    }
}

/// Returns the kernel settings of this mode.
///
/// - `tcp_tw_reuse`: clients that close first leave the relay with a closed connection to the endpoint. With the default,
///   more than 470 of them in a second would need more ports towards one endpoint than there are.
/// - `tcp_early_demux`, with redirect: the kernel must look up the socket of a TCP packet when its source port is final. A
///   client may use one port for connections to two Services. The kernel then gives the second one another source port
///   after PREROUTING. Linux 6.1 would already have passed its packets to the first one, and the second would not be
///   established.
fn wanted(capture: Capture) -> Vec<Wanted> {
    let mut wanted = vec![Wanted::exactly(TCP_TW_REUSE, 1)];
    wanted.extend((capture == Capture::Redirect).then_some(Wanted::exactly(TCP_EARLY_DEMUX, 0)));
    wanted
}

/// Returns the options of a family's data plane.
fn options(
    configuration: &Configuration,
    family: Family,
    node: &settings::Node<'_>,
) -> UserspacePlaneOptions {
    let redirect = (configuration.capture == Capture::Redirect).then(|| portolan_iptables::IptablesOptions {
        // Node ports are served on the same addresses as with TPROXY.
        localhost_node_ports: false,
        ..super::iptables::options(configuration, family, node)
    });
    UserspacePlaneOptions { relay: relay_options(configuration), redirect }
}

/// Returns the ports, limits and timeouts of the relay. A timeout of zero means the relay's default.
fn relay_options(configuration: &Configuration) -> portolan_relay::RelayOptions {
    let default = portolan_relay::RelayOptions::default();
    let or = |period: Duration, default| if period.is_zero() { default } else { period };
    // An invalid range has been refused.
    let range = configuration.proxy_ports().ok().flatten();
    let ports = range.and_then(|(first, last)| Ports::from_range(first, last)).unwrap_or_default();
    let options = portolan_relay::RelayOptions {
        ports,
        capture: configuration.capture,
        idle: or(configuration.conntrack.tcp_established_timeout, default.idle),
        half_closed_idle: or(configuration.conntrack.tcp_close_wait_timeout, default.half_closed_idle),
        udp_idle: or(configuration.udp_idle_timeout, default.udp_idle),
        ..default
    };
    options.within_descriptors(descriptors())
}

/// Returns how many file descriptors this process may have after [`raise_descriptors`].
fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays as it is: connections beyond it will wait");
    }
}

/// Returns the addresses of the relay's listeners on this node to which datagrams are redirected. Empty if packets
/// are not redirected.
fn listeners(configuration: &Configuration, node_ip: Option<IpAddr>) -> Vec<SocketAddr> {
    let is_redirected = configuration.capture == Capture::Redirect;
    let Ports { cluster, local } = relay_options(configuration).ports;
    let at = |ip| [cluster, local].map(|port| SocketAddr::new(ip, port));
    node_ip.filter(|_| is_redirected).into_iter().flat_map(at).collect()
}

/// Returns how packets are captured on this node, and why. Leaves nothing in the kernel. Runs programs.
pub(super) fn choose_capture(
    configuration: &Configuration,
    families: &[Family],
    wanted: Option<Capture>,
    obstacles: &[Finding],
) -> (Capture, String) {
    let fault = |&family: &Family| attempt(configuration, family).err();
    let obstacle = || obstacles.first().map(ToString::to_string);
    let no_tproxy = || families.iter().find_map(fault).map(|error| error.to_string()).or_else(obstacle);
    let no_iptables = || families.iter().find_map(|&family| super::iptables::attempt(family).err());
    choose(wanted, no_tproxy, no_iptables)
}

/// Returns why some packets that TPROXY captures would be lost on this node.
///
/// - Ports below 1024 need a capability.
/// - If packets on bridges pass the rules of the IP layer, they do so before the IP layer receives them. It then forgets the
///   socket that TPROXY has chosen (`ip_rcv_core`), and the rules do not see them again (`ip_sabotage_in`).
/// - If the mark counts in the check of the source address, the route of captured packets makes every source one of this
///   host, which the kernel drops (`fib_validate_source`).
pub(crate) fn obstacles(families: &[Family]) -> Vec<Finding> {
    const BRIDGES: [(Family, &str); 2] =
        [(Family::Ipv4, "bridge-nf-call-iptables"), (Family::Ipv6, "bridge-nf-call-ip6tables")];
    let host = Host::default();
    let is_set = |path: String| host.read(&path).as_deref() == Some("1");
    let loses = |setting, lost| Finding::LosesCaptured { setting, lost };
    let mut found = Vec::new();
    found.extend((!portolan_relay::can_answer_from_every_port()).then_some(Finding::NoLowPorts));
    for (family, setting) in BRIDGES {
        if families.contains(&family) && is_set(format!("/proc/sys/net/bridge/{setting}")) {
            found.push(loses(format!("net.bridge.{setting}"), "packets of pods on a bridge"));
        }
    }
    let interfaces = if families.contains(&Family::Ipv4) { host.names(INTERFACES) } else { Vec::new() };
    let marked = interfaces.iter().find(|name| is_set(format!("{INTERFACES}/{name}/src_valid_mark")));
    let setting = |name: &String| format!("net.ipv4.conf.{name}.src_valid_mark");
    found.extend(marked.map(|name| loses(setting(name), "packets of pods and other hosts")));
    found
}

/// Returns the wanted way of capturing, or else the first one that works. If neither works, returns TPROXY.
fn choose(
    wanted: Option<Capture>,
    no_tproxy: impl FnOnce() -> Option<String>,
    no_iptables: impl FnOnce() -> Option<String>,
) -> (Capture, String) {
    if let Some(capture) = wanted {
        return (capture, "--userspace-capture says so".to_owned());
    }
    let Some(lacks) = no_tproxy() else {
        return (Capture::Tproxy, "the kernel has what it takes".to_owned());
    };
    match no_iptables() {
        None => (Capture::Redirect, format!("tproxy cannot be used: {lacks}")),
        Some(why) => (Capture::Tproxy, format!("packets cannot be redirected, either: {why}")),
    }
}

/// Returns why TPROXY cannot capture packets of a family for a relay. Leaves nothing in the kernel.
fn attempt(configuration: &Configuration, family: Family) -> Result<(), Error> {
    let Ports { cluster, local } = relay_options(configuration).ports;
    let at = |port| match family {
        Family::Ipv4 => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port),
        Family::Ipv6 => SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), port),
    };
    let capture = Listeners { cluster: at(cluster), local: at(local) };
    Nftables::open_capture(settings::neutral(family), capture)?.probe()
}

/// The current relay, and the former ones that drain.
#[derive(Debug)]
pub(crate) struct Relays {
    families: Vec<Family>,
    current: Option<Handle>,
    /// Relays that are replaced. They drain once nothing is captured for them.
    former: Vec<Handle>,
    /// Relays that drain.
    draining: Vec<Handle>,
    counters: RelayCounters,
}

impl Relays {
    /// Creates the set without relays.
    pub(crate) fn new(families: Vec<Family>, counters: RelayCounters) -> Self {
        Self { families, current: None, former: Vec::new(), draining: Vec::new(), counters }
    }

    /// Returns true if a relay may have connections.
    pub(crate) fn may_have_connections(&self) -> bool {
        self.current.is_some() || !self.former.is_empty() || !self.draining.is_empty()
    }

    /// Returns the name of a relay's thread that has ended although traffic is captured for it.
    pub(crate) fn ended_thread(&self) -> Option<&'static str> {
        let relays = self.current.iter().chain(&self.former);
        ended_thread(relays.map(|relay| (relay.is_captured_for(), relay.is_running())))
    }

    /// Returns true if the current relay has these options.
    fn is_current(&self, options: &portolan_relay::RelayOptions) -> bool {
        self.current.as_ref().is_some_and(|current| current.options() == options)
    }

    fn get(&mut self, options: &portolan_relay::RelayOptions) -> Result<Handle, Error> {
        if let Some(current) = self.current.as_ref().filter(|current| current.options() == options) {
            return Ok(current.clone());
        }
        raise_descriptors();
        let relay = match options.capture {
            Capture::Tproxy => {
                portolan_relay::spawn(&self.families, options.clone()).map_err(Error::of_mode)?
            }
            Capture::Redirect => spawn_translated(&self.families, options.clone())?,
        };
        let is_redirected = options.capture == Capture::Redirect;
        self.counters.add(relay.shared_counters(), is_redirected);
        self.former.extend(self.current.replace(relay.clone()));
        relay.follow(self.former.iter().chain(&self.draining).cloned());
        Ok(relay)
    }

    /// Drains the former relays: they accept nothing new and end with their last connection, or after `at_most`.
    /// Called when every family has its wanted data plane. If `current_stays` is false, the current relay drains too.
    pub(crate) fn part(&mut self, current_stays: bool, at_most: Option<Duration>) {
        if !current_stays {
            self.former.extend(self.current.take());
        }
        for relay in self.former.drain(..) {
            let at_most = at_most.unwrap_or(relay.options().drain);
            tracing::info!(?at_most, "the relay takes no new connections; those that it has go on");
            let draining = relay.clone();
            let drain = move || {
                let begun = Instant::now();
                while draining.is_captured_for() && begun.elapsed() < CAPTURE_ENDS {
                    std::thread::sleep(LOOK);
                }
                std::thread::sleep(GRACE);
                draining.drain(at_most.saturating_sub(begun.elapsed()));
            };
            if let Err(error) = std::thread::Builder::new().name("relay-drain".into()).spawn(drain) {
                tracing::error!(%error, "connections of the relay end now");
            } else {
                self.draining.push(relay);
            }
        }
    }

    /// Returns the relay that gets new connections.
    pub(crate) fn current(&self) -> Option<&Handle> {
        self.current.as_ref()
    }

    /// Returns the number of relays that drain.
    pub(crate) fn draining(&self) -> usize {
        self.draining.len()
    }

    /// Removes relays that have ended. Returns true if the last one has.
    pub(crate) fn remove_ended(&mut self) -> bool {
        let before = self.draining.len();
        self.draining.retain(|relay| !relay.is_over());
        self.draining.len() < before && !self.may_have_connections()
    }
}

/// Takes of each relay whether traffic is captured for it and whether its thread runs.
fn ended_thread(mut relays: impl Iterator<Item = (bool, bool)>) -> Option<&'static str> {
    relays.any(|(is_captured_for, is_running)| is_captured_for && !is_running).then_some("relay")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_redirected_where_the_kernel_has_no_tproxy() {
        let chosen = |wanted, tproxy: Option<&str>, iptables: Option<&str>| {
            choose(wanted, || tproxy.map(str::to_owned), || iptables.map(str::to_owned))
        };
        assert_eq!(chosen(None, None, None).0, Capture::Tproxy);
        let (capture, reason) = chosen(None, Some("no nft_tproxy"), None);
        assert!(capture == Capture::Redirect && reason.contains("no nft_tproxy"), "{reason}");
        let (capture, reason) = chosen(None, Some("no nft_tproxy"), Some("no iptables"));
        assert!(capture == Capture::Tproxy && reason.contains("no iptables"), "{reason}");
        assert_eq!(chosen(Some(Capture::Redirect), None, Some("no iptables")).0, Capture::Redirect);
        assert_eq!(chosen(Some(Capture::Tproxy), Some("no nft_tproxy"), None).0, Capture::Tproxy);
    }

    #[test]
    fn a_relay_must_run_as_long_as_traffic_is_captured_for_it() {
        assert_eq!(ended_thread([].into_iter()), None);
        assert_eq!(ended_thread([(true, true), (false, false), (false, true)].into_iter()), None);
        assert_eq!(ended_thread([(true, true), (true, false)].into_iter()), Some("relay"));
    }
}
