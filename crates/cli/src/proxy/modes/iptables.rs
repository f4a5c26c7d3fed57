//! The iptables mode: finds its programs, and derives the options of its data plane from the node and the
//! configuration.

use std::net::IpAddr;
use std::sync::Arc;

use portolan_backend::Error;
use portolan_backend::iptables::{self, Iptables, Meter, Options, Programs};
use portolan_model::{Family, Settings};
use portolan_node::address::NodePortMatch;
use portolan_node::config::Configuration;
use portolan_node::sysctl::{Host, PutBack, Wanted};

use super::{Made, settings};
use crate::proxy::checks::{self, Finding};

/// Kernel setting that allows packets to loopback addresses to be routed to other hosts. Node ports on loopback
/// addresses need it.
const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";
/// Whether conntrack accepts TCP packets outside the window as valid.
const TCP_BE_LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";

/// Returns why the iptables mode cannot serve a family. Leaves no rules.
pub(super) fn attempt(family: Family) -> Result<(), String> {
    match Programs::find(family).and_then(|programs| programs.probe()) {
        // A lock that another program holds is temporary and says nothing about what the node supports.
        Err(iptables::Error::Locked { .. }) => Ok(()),
        tried => tried.map_err(|error| error.to_string()),
    }
}

/// Creates a data plane of this mode. Writes the kernel setting that node ports on loopback addresses need.
pub(super) fn make(options: &Options, settings: Settings, meter: Arc<Meter>) -> Result<Made, Error> {
    let mut options = options.clone();
    if options.localhost_node_ports {
        options.localhost_node_ports = routes_localnet();
    }
    let programs = Programs::find(settings.family)?;
    let dataplane = Iptables::new(programs, settings, options).with_meter(meter);
    let own = dataplane.own();
    Ok(Made { dataplane: Box::new(dataplane), own })
}

/// Returns the options of a family's data plane.
pub(super) fn options(configuration: &Configuration, family: Family, node: &settings::Node<'_>) -> Options {
    let ports = settings::node_ports(configuration, node.ips, family);
    let loopback_addresses = match &ports {
        NodePortMatch::MatchAll => Vec::new(),
        NodePortMatch::Cidrs(_) => {
            let matching = ports.matching(family, node.addresses.iter().copied());
            matching.into_iter().filter(IpAddr::is_loopback).collect()
        }
    };
    let liberal = Host::default().read(TCP_BE_LIBERAL);
    Options {
        localhost_node_ports: wants_localhost(configuration, &ports, family),
        loopback_addresses,
        drop_invalid: liberal.is_none_or(|liberal| liberal == "0"),
        ..Options::default()
    }
}

pub(super) fn wants_localhost(configuration: &Configuration, ports: &NodePortMatch, family: Family) -> bool {
    configuration.iptables.localhost_node_ports && ports.covers_ipv4_loopback(family)
}

/// Returns the setting that makes the kernel route packets to loopback addresses, and its default.
pub(in crate::proxy) const fn route_localnet() -> PutBack {
    PutBack { written: Wanted::exactly(ROUTE_LOCALNET, 1), default: 0 }
}

/// Returns true if the kernel routes packets to loopback addresses.
pub(in crate::proxy) fn are_loopback_addresses_routed() -> bool {
    Host::default().read(ROUTE_LOCALNET).as_deref() == Some("1")
}

/// Makes the kernel route packets to loopback addresses. If that fails, logs the command that does it and returns
/// false.
pub(super) fn routes_localnet() -> bool {
    let outcome = Host::default().apply(&[Wanted::exactly(ROUTE_LOCALNET, 1)]);
    for setting in outcome.written {
        tracing::info!(setting = setting.path, value = setting.value, "kernel setting written");
    }
    let refused: Vec<String> = outcome.refused.iter().map(ToString::to_string).collect();
    if !refused.is_empty() {
        checks::log(&[Finding::NoLocalhostNodePorts { settings: refused.join("; ") }]);
    }
    outcome.refused.is_empty()
}
