//! Modes: which one runs, whether this node can run it, and how its data planes are created.
//!
//! Each mode is a [`ModeDriver`] in a module of its own, and [`MODES`] is the table of them. The rest of the agent asks the
//! driver of the configured mode and does not know which modes there are.
//!
//! - `choice`: which mode runs, and why
//! - `blueprint`: the options of data planes, and what data planes are created with
//! - `nftables`, `iptables`, `ipvs`, `userspace`: the drivers
//! - `affinity`: endpoints of the iptables mode for which the kernel remembers no more clients
//!
//! The input is the configuration and the node. The output is data planes for the engine. What runs programs of the node
//! and waits for them says so: it belongs on a thread for blocking work.

mod affinity;
mod blueprint;
mod choice;
mod iptables;
mod ipvs;
mod nftables;
mod userspace;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use portolan_engine::Claims;
use portolan_engine::{Boxed, Error, Step, Table};
use portolan_iptables::{Programs, Variant};
use portolan_leftovers::Keep;
use portolan_model::catalog::UdpService;
use portolan_model::observed::Observed;
use portolan_model::oracle::ModeDifferences;
use portolan_model::{
    Backend, Catalog, ExternalPolicy, Family, Forwarding, InternalPolicy, NodePortAddresses, Settings,
};
use portolan_node::config::{Configuration, Mode};
use portolan_node::metrics::ProxyMetrics;
use portolan_node::sysctl::Wanted;

use super::finding::Finding;
use super::node_settings::KernelSettings;
use super::settings;
pub(super) use blueprint::{Blueprint, FoundPrograms, Made, Meters, SharedParts, find_programs};
pub(super) use choice::{Choice, DefaultMode, Preferences, log, settle};
pub(super) use iptables::route_localnet;
pub(super) use ipvs::start_values as ipvs_start_values;
pub(super) use nftables::{begin_reading, forget_saved_elements};
pub(super) use userspace::{RelayCounters, Relays, obstacles};

/// A data plane of any mode.
type Plane = Boxed;

/// What a mode does not count of Services, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotCounted {
    /// It counts nothing.
    All(&'static str),
    /// It counts some of it.
    Part(&'static str),
}

/// What a mode is to the node agent.
pub(super) trait ModeDriver: Sync {
    /// Returns the mode.
    fn mode(&self) -> Mode;

    /// Returns true if a configuration asks for this mode.
    fn is_configured(&self, configuration: &Configuration) -> bool {
        configuration.mode_or_default() == self.mode()
    }

    /// Returns why this node cannot run the mode as configured in a family. Leaves nothing in the kernel. Runs programs.
    fn trial(&self, configuration: &Configuration, family: Family) -> Option<Finding>;

    /// Returns true if the mode serves one family if this node cannot run it in the other one.
    fn may_leave_out_a_family(&self) -> bool {
        false
    }

    /// Returns the blueprint of a family's data plane.
    fn blueprint(
        &self,
        configuration: &Configuration,
        family: Family,
        node: &settings::Node<'_>,
    ) -> Blueprint;

    /// Reads what the kernel has of this mode in a family, in the terms of Services and in the network namespace of this
    /// thread. It changes nothing, and does not depend on the wanted table: what was written for a table reads back without a
    /// [difference](Observed::difference) to it. `None` if the kernel has nothing of this mode. May run programs.
    ///
    /// `known` is what the running agent knows and the kernel does not hold. No agent needs to run: these facts are unknown
    /// then.
    fn read(&self, family: Family, known: Option<&Known>) -> Result<Option<Observed>, Error>;

    /// Returns what is not counted of Services, and why. `None` if connections are counted.
    fn not_counted(&self, _: &Settings) -> Option<NotCounted> {
        None
    }

    /// Returns what a start would write for a table, as lines. Changes nothing. May run programs.
    ///
    /// # Errors
    /// The kernel cannot be read, or the mode has no such lines.
    fn preview(
        &self,
        configuration: &Configuration,
        node: &settings::Node<'_>,
        table: &Table,
        over: Over,
    ) -> Result<Vec<String>, Error>;

    /// Returns the kernel settings that a start of this mode writes, besides those of connection tracking.
    fn kernel_settings(&self, _: &Configuration, _: &settings::Node<'_>) -> Vec<Wanted> {
        Vec::new()
    }

    /// Returns those of these settings without which packets would be lost.
    fn needed_settings(&self, _: &Configuration) -> Vec<Wanted> {
        Vec::new()
    }

    /// Returns the chains of iptables that a data plane of a family would use. Runs programs.
    fn claims(&self, _: &Configuration, _: Family) -> Option<Claims> {
        None
    }

    /// Returns the tables of nftables that a data plane would use, of those that have this program's names.
    fn tables(&self, _: &Configuration) -> &'static [&'static str] {
        &[]
    }

    /// Returns what happens to packets of a family in another way than in nftables mode.
    fn differences(
        &self,
        configuration: &Configuration,
        family: Family,
        node: &settings::Node<'_>,
    ) -> ModeDifferences;

    /// Returns true if kube-proxy's chains of iptables translate packets of Services.
    fn uses_kube_proxys_chains(&self, _: &Configuration) -> bool {
        false
    }

    /// Returns the ports of the relay, if connection tracking redirects packets of Services to it.
    fn redirected_to(&self, _: &Configuration) -> Option<RangeInclusive<u16>> {
        None
    }

    /// Returns the settings of a family's data plane. `service_cidrs` are those of the family.
    fn settings(
        &self,
        configuration: &Configuration,
        family: Family,
        node: &settings::Node<'_>,
        service_cidrs: Vec<IpNet>,
    ) -> Settings {
        settings::settings(configuration, self.masquerade(configuration), family, node, service_cidrs)
    }

    /// Returns `masqueradeAll` and `masqueradeBit`. Modes without fields of their own have those of the iptables mode.
    fn masquerade(&self, configuration: &Configuration) -> (bool, u8) {
        (configuration.iptables.masquerade_all, configuration.iptables.masquerade_bit)
    }

    /// Returns true if the mode adds the addresses of Services to this node, so that packets to them stay here.
    fn adds_addresses(&self) -> bool {
        false
    }

    /// Returns the addresses on this node to which datagrams of Services are redirected.
    fn listeners(&self, _: &Configuration, _node_ip: Option<IpAddr>) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// Returns true if packets of Services are captured without a translation.
    fn captures(&self, _: &Configuration) -> bool {
        false
    }

    /// Returns true if UDP flows stay with an endpoint that serves, but gets no new flows because it terminates.
    fn keeps_udp_flows(&self) -> bool {
        true
    }

    /// Writes the kernel settings of the mode for `--init-only`, before the Node object is known.
    fn initialise(&self, _: &Configuration, _: &settings::Node<'_>, _: &KernelSettings) {}

    /// Returns a data plane for what an earlier run may have left and the configuration does not use. The engine removes
    /// its rules. `programs` are those of the family. Runs programs, unless they are given.
    fn former(
        &self,
        configuration: &Configuration,
        family: Family,
        programs: Option<FoundPrograms>,
    ) -> Option<Plane>;

    /// Returns what does not work in this mode on this node, although the mode can run.
    fn warnings(&self, _: &Configuration, _: &[Family]) -> Vec<Finding> {
        Vec::new()
    }

    /// Returns true if [`ModeDriver::former`] needs programs of iptables.
    fn former_calls_programs(&self, _: &Configuration, _: Family) -> bool {
        false
    }

    /// Adds the metrics that are measured when they are read.
    fn with_measures(&self, metrics: ProxyMetrics, _: &Meters) -> ProxyMetrics {
        metrics
    }

    /// Updates the metrics of a family after a commit. `is_active` tells whether a data plane of this mode made it.
    fn update_metrics(&self, _: &ProxyMetrics, _: &Meters, _: Family, _is_active: bool) {}

    /// Looks, after a comparison of everything with the kernel, for what only shows in use, and logs it.
    fn look_at_use(&self, _: &Meters) {}

    /// Counts a failed step of a data plane of this mode.
    fn count_failure(&self, _: &ProxyMetrics, _: Family, _: Step) {}
}

/// What a running agent knows of the data plane of a family, and the kernel does not hold.
pub(super) struct Known {
    /// The addresses at which node ports are served.
    pub(super) node_port_addresses: NodePortAddresses,
    /// `ipvs.excludeCIDRs`.
    pub(super) ipvs_exclude: Vec<IpNet>,
    /// The relay that has the endpoints, in the userspace mode.
    pub(super) relay: Option<portolan_relay::Handle>,
    /// The iptables that has the rules, in modes that use iptables. The other one may have rules of an earlier run.
    pub(super) variant: Option<Variant>,
}

/// What a start would find in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// What is there.
    Kernel,
    /// No rules for Services.
    Nothing,
}

/// All modes, in the order in which their former data planes are removed.
pub(super) const MODES: [&dyn ModeDriver; 4] =
    [&userspace::Driver, &nftables::Driver, &iptables::Driver, &ipvs::Driver];

/// Returns true if a program of iptables can read the rules of a family. Runs programs.
pub(super) fn can_read_iptables(family: Family) -> bool {
    Programs::to_read(family, None).is_ok()
}

/// Reads with the programs of the variant of iptables that is known, or else of each one until one finds rules. If the legacy
/// variant fails beside the other one, its tables do not exist.
fn read_with_programs(
    family: Family,
    known: Option<&Known>,
    read: impl Fn(&Programs) -> Result<Option<Observed>, portolan_iptables::Error>,
) -> Result<Option<Observed>, Error> {
    let variant = known.and_then(|known| known.variant);
    let programs = match Programs::to_read(family, variant) {
        Ok(programs) => programs,
        // A node without iptables has no rules of it.
        Err(_) if variant.is_none() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut first = None;
    for programs in programs {
        match read(&programs) {
            Ok(Some(observed)) => return Ok(Some(observed)),
            outcome => first = first.or(Some(outcome)),
        }
    }
    Ok(first.transpose()?.flatten())
}

/// Reads what the kernel has of a family: of the mode that a configuration names, or else of the first mode that has rules.
/// Returns that mode, too.
pub(super) fn read(configuration: &Configuration, family: Family) -> Result<Option<(Mode, Observed)>, Error> {
    let is_asked =
        |driver: &&&dyn ModeDriver| configuration.mode.is_none() || driver.is_configured(configuration);
    for driver in MODES.iter().filter(is_asked) {
        if let Some(observed) = driver.read(family, None)? {
            return Ok(Some((driver.mode(), observed)));
        }
    }
    Ok(None)
}

/// Returns the driver of a mode.
pub(super) fn driver(mode: Mode) -> &'static dyn ModeDriver {
    match mode {
        Mode::Nftables => &nftables::Driver,
        Mode::Iptables => &iptables::Driver,
        Mode::Ipvs => &ipvs::Driver,
        Mode::Userspace => &userspace::Driver,
    }
}

/// Returns the driver of the mode that a configuration asks for.
pub(super) fn configured(configuration: &Configuration) -> &'static dyn ModeDriver {
    driver(configuration.mode_or_default())
}

/// Returns the driver of the mode that a data plane names.
pub(super) fn named(mode: &str) -> Option<&'static dyn ModeDriver> {
    MODES.into_iter().find(|driver| driver.mode().name() == mode)
}

/// Adds the metrics of all modes that are measured when they are read.
pub(super) fn with_measures(metrics: ProxyMetrics, meters: &Meters) -> ProxyMetrics {
    MODES.into_iter().fold(metrics, |metrics, driver| driver.with_measures(metrics, meters))
}

/// Lets flows to a relay not count as stale: adds its listeners to the serving endpoints of UDP Services, or marks the Services
/// as captured. The mode is that of the current data plane.
pub(super) fn serve_by_relay(
    mode: Mode,
    configuration: &Configuration,
    node_ip: Option<IpAddr>,
    services: &mut [UdpService],
) {
    let driver = driver(mode);
    let listeners = driver.listeners(configuration, node_ip);
    for service in services.iter_mut().filter(|service| !service.serving.is_empty()) {
        service.serving.extend(&listeners);
        service.is_captured = driver.captures(configuration);
    }
}

/// If UDP flows leave an endpoint that gets no new ones, removes such endpoints from the serving ones. Their entries in conntrack
/// are deleted then; the kernel drops packets of the flows until that. The mode is that of the current data plane.
pub(super) fn leave_unused(mode: Mode, catalog: &Catalog, family: Family, services: &mut [UdpService]) {
    if driver(mode).keeps_udp_flows() {
        return;
    }
    for service in services {
        if let Some(forwarding) = catalog.forwarding(&service.name, family) {
            keep_used(&forwarding, service);
        }
    }
}

/// Keeps the endpoints that get new flows: those of the cluster or of this node for each kind of frontends, as in IPVS.
fn keep_used(forwarding: &Forwarding, service: &mut UdpService) {
    let Forwarding { cluster, local, .. } = forwarding;
    let internal = if forwarding.internal_policy == InternalPolicy::Local { local } else { cluster };
    let is_local = forwarding.external_policy == ExternalPolicy::Local && !local.is_empty();
    let external = if is_local { local } else { cluster };
    let used = |backends: &[Backend]| {
        let used: HashSet<SocketAddr> = backends.iter().map(Backend::socket).collect();
        service.serving.iter().copied().filter(|endpoint| used.contains(endpoint)).collect()
    };
    let (internal, external) = (used(internal), used(external));
    (service.serving, service.external) = (internal, Some(external));
}

/// Returns data planes whose rules an earlier run may have left. The iptables mode has none: its rules have kube-proxy's
/// names and are removed with kube-proxy's leftovers. `programs` are those of the family.
pub(super) fn former(
    configuration: &Configuration,
    family: Family,
    mut programs: Option<FoundPrograms>,
) -> Vec<Plane> {
    let former = |driver: &dyn ModeDriver| {
        let calls_programs = driver.former_calls_programs(configuration, family);
        driver.former(configuration, family, programs.take_if(|_| calls_programs))
    };
    MODES.into_iter().filter_map(former).collect()
}

/// Returns true if [`former`] needs programs of iptables.
pub(super) fn former_calls_programs(configuration: &Configuration, families: &[Family]) -> bool {
    let calls = |family| MODES.iter().any(|driver| driver.former_calls_programs(configuration, family));
    families.iter().copied().any(calls)
}

/// What the data planes use when every family has its first commit.
#[derive(Debug)]
pub(super) struct InUse {
    pub(super) configuration: Configuration,
    pub(super) families: Vec<Family>,
    pub(super) chains: Vec<Claims>,
    /// Whether a current or coming data plane adds the addresses of Services to the node, as IPVS does.
    pub(super) adds_addresses: bool,
}

impl InUse {
    /// Returns what the data planes, or draining connections of a former one, use of kube-proxy's leftovers.
    pub(super) fn keep(self) -> Keep {
        let Self { configuration, families, chains, adds_addresses } = self;
        // The data plane of the former mode ends this after the time to drain, also without programs of iptables. What cannot be
        // looked at may be in use.
        let drains = |family: &&Family| portolan_ipvs::is_left(**family).unwrap_or(true);
        let draining: Vec<Family> = families.iter().filter(drains).copied().collect();
        let ipvs = adds_addresses || !draining.is_empty();
        let mut chains = chains;
        chains.extend(draining.into_iter().flat_map(guards));
        Keep { chains, ipvs, firewall: true, exclude: configuration.ipvs.exclude_cidrs }
    }
}

/// Returns the chains that guard the addresses of a former IPVS mode, whose programs may be those of either iptables. Its data plane
/// removes them.
fn guards(family: Family) -> [Claims; 2] {
    [Variant::Nft, Variant::Legacy].map(|variant| Claims {
        place: variant.place(),
        family,
        uses: portolan_ipvs::is_kept_while_draining,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_model::Capture;
    use portolan_model::Protocol;

    use super::*;

    #[test]
    fn only_the_known_iptables_is_read() {
        for variant in [Variant::Nft, Variant::Legacy] {
            // A machine without the variant has nothing to read.
            let found = Programs::to_read(Family::Ipv4, Some(variant)).unwrap_or_default();
            assert!(found.iter().all(|programs| programs.variant() == variant) && found.len() <= 1);
        }
    }

    fn dns(serving: &[&str]) -> UdpService {
        let (namespace, service, port) = ("demo".into(), "dns".into(), "".into());
        let name = portolan_model::ServicePortName { namespace, service, port, protocol: Protocol::Udp };
        let serving = serving.iter().map(|text| text.parse().expect("an address")).collect();
        UdpService::new(Arc::new(name), Vec::new(), serving)
    }

    #[test]
    fn each_kind_of_frontends_keeps_the_endpoints_that_it_uses() {
        let backends = |texts: &[&str]| {
            let socket = |text: &&str| text.parse::<SocketAddr>().expect("an address");
            texts
                .iter()
                .map(socket)
                .map(|at| Backend { address: at.ip(), port: at.port(), may_hairpin: false })
                .collect()
        };
        let kept = |internal_policy, external_policy, local: &[&str]| {
            let plain = Forwarding::plain(([10, 96, 0, 10], 53).into(), Protocol::Udp, Box::default());
            let (cluster, local) = (backends(&["10.1.0.4:53", "10.1.0.5:53"]), backends(local));
            let forwarding = Forwarding { internal_policy, external_policy, cluster, local, ..plain };
            // The last one serves, but terminates.
            let mut dns = dns(&["10.1.0.4:53", "10.1.0.5:53", "10.1.0.6:53"]);
            keep_used(&forwarding, &mut dns);
            (dns.serving.len(), dns.external.map(|external| external.len()))
        };
        assert_eq!(kept(InternalPolicy::Cluster, ExternalPolicy::Local, &["10.1.0.5:53"]), (2, Some(1)));
        assert_eq!(
            kept(InternalPolicy::Cluster, ExternalPolicy::Local, &[]),
            (2, Some(2)),
            "those of other nodes"
        );
        assert_eq!(kept(InternalPolicy::Local, ExternalPolicy::Cluster, &["10.1.0.5:53"]), (1, Some(2)));
    }

    #[test]
    fn flows_to_a_relay_are_not_stale() {
        let node_ip = Some(IpAddr::from([192, 0, 2, 1]));
        let served = |mode, capture| {
            let configuration = Configuration { mode: Some(mode), capture, ..Configuration::default() };
            let mut services = [dns(&["10.1.0.4:53"])];
            serve_by_relay(mode, &configuration, node_ip, &mut services);
            (services[0].is_captured, services[0].serving.len())
        };
        assert_eq!(served(Mode::Userspace, Capture::Tproxy), (true, 1));
        assert_eq!(served(Mode::Userspace, Capture::Redirect), (false, 3), "with two listeners");
        assert_eq!(served(Mode::Iptables, Capture::Tproxy), (false, 1));
    }

    #[test]
    fn the_table_has_the_driver_of_each_mode() {
        for mode in [Mode::Nftables, Mode::Iptables, Mode::Ipvs, Mode::Userspace] {
            let configuration = Configuration { mode: Some(mode), ..Configuration::default() };
            assert_eq!(driver(mode).mode(), mode);
            assert_eq!(named(mode.name()).map(ModeDriver::mode), Some(mode));
            let configured: Vec<Mode> = MODES
                .iter()
                .filter(|driver| driver.is_configured(&configuration))
                .map(|driver| driver.mode())
                .collect();
            assert_eq!(configured, [mode], "only one driver is that of a configuration");
        }
        assert!(named("fast").is_none());
    }
}
