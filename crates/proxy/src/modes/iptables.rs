//! The iptables mode: finds its programs, and derives the options of its data plane from the node and the
//! configuration.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};
use portolan_engine::{Claims, Error, Table};
use portolan_iptables::{Counted, Iptables, IptablesOptions, Measures, Programs, Rules};
use portolan_model::observed::Observed;
use portolan_model::oracle::ModeDifferences;
use portolan_model::{Family, Settings};
use portolan_node::address::NodePortMatch;
use portolan_node::config::{Configuration, Mode};
use portolan_node::metrics::{IptablesMeasures, PacketCounters, ProxyMetrics};
use portolan_node::sysctl::{Host, StartValue, Wanted};

use super::blueprint::{PlaneOptions, required};
use super::{
    Blueprint, FoundPrograms, Known, Made, Meters, ModeDriver, Over, Plane, SharedParts, read_with_programs,
    settings,
};
use crate::finding::{self, Finding};
use crate::node_settings::KernelSettings;

/// Kernel setting that allows packets to loopback addresses to be routed to other hosts. Node ports on loopback
/// addresses need it.
const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";
/// Whether conntrack accepts TCP packets outside the window as valid.
const TCP_BE_LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";

/// All IPv4 loopback addresses (RFC 1122, 3.2.1.3).
const IPV4_LOOPBACK: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8));

/// The driver of this mode.
pub(super) struct Driver;

impl ModeDriver for Driver {
    fn mode(&self) -> Mode {
        Mode::Iptables
    }

    fn trial(&self, _: &Configuration, family: Family) -> Option<Finding> {
        attempt(family).err().map(|reason| Finding::Iptables { family, reason })
    }

    /// The same as in kube-proxy.
    fn may_leave_out_a_family(&self) -> bool {
        true
    }

    fn blueprint(
        &self,
        configuration: &Configuration,
        family: Family,
        node: &settings::Node<'_>,
    ) -> Blueprint {
        Blueprint::Iptables(options(configuration, family, node))
    }

    fn read(&self, family: Family, known: Option<&Known>) -> Result<Option<Observed>, Error> {
        read_with_programs(family, known, |programs| portolan_iptables::read(programs, family))
    }

    /// Node ports on loopback addresses are left out if the kernel setting that they need cannot be written, as in a start.
    fn preview(
        &self,
        configuration: &Configuration,
        node: &settings::Node<'_>,
        table: &Table,
        over: Over,
    ) -> Result<Vec<String>, Error> {
        let mut options = options(configuration, table.family(), node);
        options.localhost_node_ports &= Host::default().refusals(&[route_localnet().written]).is_empty();
        match over {
            Over::Kernel => {
                Ok(portolan_iptables::preview(&Programs::find(table.family())?, table, &options)?)
            }
            Over::Nothing => Ok(portolan_iptables::preview_of_all(table, &options)),
        }
    }

    fn kernel_settings(&self, configuration: &Configuration, node: &settings::Node<'_>) -> Vec<Wanted> {
        let ports = settings::node_ports(configuration, node.ips, Family::Ipv4);
        let wants_localhost = wants_localhost(configuration, &ports, Family::Ipv4);
        wants_localhost.then_some(route_localnet().written).into_iter().collect()
    }

    fn claims(&self, _: &Configuration, family: Family) -> Option<Claims> {
        claims(family)
    }

    fn uses_kube_proxys_chains(&self, _: &Configuration) -> bool {
        true
    }

    /// Node ports on loopback addresses follow the configuration, even if the kernel setting for them cannot be written.
    fn differences(
        &self,
        configuration: &Configuration,
        family: Family,
        node: &settings::Node<'_>,
    ) -> ModeDifferences {
        let ports = settings::node_ports(configuration, node.ips, family);
        if !wants_localhost(configuration, &ports, family) {
            return ModeDifferences::iptables(Vec::new());
        }
        ModeDifferences::iptables(match &ports {
            NodePortMatch::MatchAll => vec![IPV4_LOOPBACK],
            NodePortMatch::Cidrs(_) => {
                loopback_addresses(&ports, family, node).into_iter().map(IpNet::from).collect()
            }
        })
    }

    fn initialise(
        &self,
        configuration: &Configuration,
        node: &settings::Node<'_>,
        kernel_settings: &KernelSettings,
    ) {
        let ports = settings::node_ports(configuration, node.ips, Family::Ipv4);
        if wants_localhost(configuration, &ports, Family::Ipv4) {
            routes_localnet(kernel_settings);
        }
    }

    /// The rules have kube-proxy's names and are removed with kube-proxy's leftovers.
    fn former(&self, _: &Configuration, _: Family, _: Option<FoundPrograms>) -> Option<Plane> {
        None
    }

    fn with_measures(&self, metrics: ProxyMetrics, _: &Meters) -> ProxyMetrics {
        metrics.with_packet_counters(packet_counters)
    }

    fn look_at_use(&self, meters: &Meters) {
        meters.full_lists.look(&Host::default());
    }

    fn update_metrics(&self, metrics: &ProxyMetrics, meters: &Meters, family: Family, is_active: bool) {
        let measured = meters.iptables.get(family).read();
        // After a change of the mode, the metrics keep their last values.
        if is_active || measured != Measures::default() {
            metrics.iptables(family, &measures(&measured));
        }
    }
}

/// Returns the chains of this mode, if the node has its programs. Runs programs.
pub(super) fn claims(family: Family) -> Option<Claims> {
    Programs::find(family).ok().map(|programs| programs.claims(family))
}

fn measures(measures: &Measures) -> IptablesMeasures {
    let tables = |rules: Rules| [rules.filter, rules.nat];
    IptablesMeasures {
        rules: tables(measures.rules),
        written: tables(measures.written),
        restore_failures: measures.restore_failures,
        partial_restore_failures: measures.partial_restore_failures,
        lock_wait: measures.lock_wait,
        lock_timeouts: measures.lock_timeouts,
    }
}

/// Returns the kernel's packet counters of this mode.
fn packet_counters() -> PacketCounters {
    let counted = portolan_iptables::counted().unwrap_or_else(|error| {
        tracing::debug!(%error, "the kernel's counters cannot be read");
        Counted::default()
    });
    PacketCounters { invalid: counted.invalid, localhost: counted.localhost }
}

/// Returns why the iptables mode cannot serve a family. Leaves no rules. Runs programs.
pub(super) fn attempt(family: Family) -> Result<(), String> {
    match Programs::find(family).and_then(|programs| programs.probe()) {
        // A lock that another program holds is temporary and says nothing about what the node supports.
        Err(portolan_iptables::Error::Locked { .. }) => Ok(()),
        tried => tried.map_err(|error| error.to_string()),
    }
}

impl PlaneOptions for IptablesOptions {
    fn calls_programs(&self) -> bool {
        true
    }

    fn loads_each_endpoint(&self) -> bool {
        true
    }

    /// Writes the kernel setting that node ports on loopback addresses need.
    fn make(
        &self,
        settings: Settings,
        programs: Option<FoundPrograms>,
        shared: &mut SharedParts,
    ) -> Result<Made, Error> {
        let mut options = self.clone();
        if options.localhost_node_ports {
            options.localhost_node_ports = routes_localnet(&shared.kernel_settings);
        }
        let family = settings.family;
        let programs = required(programs, family)?;
        let meter = Arc::clone(shared.meters.iptables.get(family));
        let dataplane = Iptables::new(programs, settings, options).with_meter(meter);
        let own = dataplane.own();
        Ok(Made { dataplane: Box::new(dataplane), own })
    }
}

/// Returns the options of a family's data plane.
pub(super) fn options(
    configuration: &Configuration,
    family: Family,
    node: &settings::Node<'_>,
) -> IptablesOptions {
    let ports = settings::node_ports(configuration, node.ips, family);
    let loopback_addresses = loopback_addresses(&ports, family, node);
    let liberal = Host::default().read(TCP_BE_LIBERAL);
    IptablesOptions {
        localhost_node_ports: wants_localhost(configuration, &ports, family),
        loopback_addresses,
        drop_invalid: liberal.is_none_or(|liberal| liberal == "0"),
        ..IptablesOptions::default()
    }
}

/// Returns the loopback addresses that accept node ports, if not all addresses do.
fn loopback_addresses(ports: &NodePortMatch, family: Family, node: &settings::Node<'_>) -> Vec<IpAddr> {
    match ports {
        NodePortMatch::MatchAll => Vec::new(),
        NodePortMatch::Cidrs(_) => {
            let matching = ports.matching(family, node.addresses.iter().copied());
            matching.into_iter().filter(IpAddr::is_loopback).collect()
        }
    }
}

fn wants_localhost(configuration: &Configuration, ports: &NodePortMatch, family: Family) -> bool {
    configuration.iptables.localhost_node_ports && ports.covers_ipv4_loopback(family)
}

/// Returns the setting that makes the kernel route packets to loopback addresses, and its default.
pub(crate) const fn route_localnet() -> StartValue {
    StartValue { written: Wanted::exactly(ROUTE_LOCALNET, 1), default: 0 }
}

/// Makes the kernel route packets to loopback addresses. If that fails, logs the command that does it and returns
/// false.
fn routes_localnet(kernel_settings: &KernelSettings) -> bool {
    let refused = kernel_settings.apply(&[route_localnet().written]);
    let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
    if !refused.is_empty() {
        finding::log(&[Finding::NoLocalhostNodePorts { settings: refused.join("; ") }]);
    }
    refused.is_empty()
}
