//! What the configuration of the agent means for packets, without an agent: for `portolan explain`.
//!
//! The settings are derived by the same functions as those of a running agent ([`settings`]), and the differences of the
//! mode by its driver.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::ensure;
use ipnet::IpNet;
use portolan_explain::{FamilyView, NodeView};
use portolan_model::catalog::PerFamily;
use portolan_model::{Catalog, Event, Family};
use portolan_node::config::Configuration;
use portolan_sock::SocketError;
use portolan_sock::addresses;

use super::options::{Loaded, Options};
use super::{modes, settings};

/// The configuration of an agent that does not run.
#[derive(Debug, Clone)]
pub struct Configured {
    loaded: Loaded,
}

impl Configured {
    /// Reads the configuration from the flags and the file of an agent.
    ///
    /// # Errors
    /// The configuration is wrong, or the flags ask for an action.
    pub fn load(options: &Options) -> anyhow::Result<Self> {
        ensure!(
            options.runs_until_signal() && !options.only_ours,
            "--cleanup, --only-ours, --init-only, --version and --write-config-to are actions of the proxy; leave them out"
        );
        let mut loaded = options.load()?;
        loaded.configuration.capture = options.capture.unwrap_or_default();
        Ok(Self { loaded })
    }

    /// Returns the warnings about the flags and the file.
    pub fn notes(&self) -> &[String] {
        self.loaded.notes()
    }

    /// Returns the node name that the configuration sets (`hostnameOverride`).
    pub fn node_name(&self) -> Option<&str> {
        self.loaded.configuration.hostname_override.as_deref()
    }

    /// Removes from an event what the agent ignores: external IPs, if their feature gate is off.
    pub fn admit(&self, event: &mut Event) {
        let allows_external_ips = self.loaded.gates.enabled("AllowServiceExternalIPs");
        if let Event::Service(service) = event
            && !allows_external_ips
        {
            service.payload.ignore_external_ips();
        }
    }

    /// Returns the node as packets meet it. The Catalog has this node's Node object, if there is one. `addresses` are those
    /// of the node's interfaces; `None` if they are not known, so that only those of the Node object count. Without a named
    /// mode it is kube-proxy's default, iptables: what an agent tries on its node is not tried.
    pub fn node_view(&self, catalog: &Catalog, addresses: Option<Vec<IpAddr>>) -> NodeView {
        let configuration = &self.loaded.configuration;
        let (own, pod_cidrs) = match catalog.node() {
            Some(node) => {
                let own = node.internal_addresses.iter().chain(&node.external_addresses).copied().collect();
                (own, node.pod_cidrs.clone())
            }
            None => (Vec::new(), Vec::new()),
        };
        let families = match addresses {
            Some(_) => settings::supported_families(),
            None => Family::BOTH.to_vec(),
        };
        let addresses = addresses.unwrap_or_else(|| with_loopback(&own));
        let this = ThisNode { own: &own, pod_cidrs: &pod_cidrs, addresses };
        node_view(configuration, &families, catalog, this)
    }
}

/// Returns the addresses of this node's interfaces in the network namespace of this thread, without those that the IPVS mode
/// adds for Services.
///
/// # Errors
/// The kernel does not list them.
pub fn interface_addresses() -> Result<Vec<IpAddr>, SocketError> {
    addresses::list_except(portolan_ipvs::DEVICE)
}

/// What is known of this node.
pub(crate) struct ThisNode<'a> {
    /// The addresses of the Node object.
    pub(crate) own: &'a [IpAddr],
    /// Its `spec.podCIDRs`.
    pub(crate) pod_cidrs: &'a [IpNet],
    /// The addresses of its interfaces, as [`interface_addresses`] returns them.
    pub(crate) addresses: Vec<IpAddr>,
}

/// Returns the node as packets meet it, if the agent has this configuration and serves these families.
pub(crate) fn node_view(
    configuration: &Configuration,
    families: &[Family],
    catalog: &Catalog,
    this: ThisNode<'_>,
) -> NodeView {
    let ThisNode { own, pod_cidrs, addresses } = this;
    let ips = settings::node_addresses(own, configuration.bind_address);
    let node = settings::Node { ips: &ips, pod_cidrs, addresses: &addresses };
    let driver = modes::configured(configuration);
    let mut of_families = PerFamily::default();
    for &family in families {
        let settings = settings::settings(configuration, family, &node, catalog.service_cidrs(family));
        let differences = driver.differences(configuration, family, &node);
        *of_families.get_mut(family) = Some(FamilyView { settings, differences });
    }
    NodeView {
        name: catalog.node_name().to_owned(),
        mode: driver.mode().name().to_owned(),
        pod_cidrs: pod_cidrs.to_vec(),
        families: of_families,
        addresses,
    }
}

/// Every node has loopback addresses, which a Node object does not list.
fn with_loopback(own: &[IpAddr]) -> Vec<IpAddr> {
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    own.iter().copied().chain(loopback).collect()
}
