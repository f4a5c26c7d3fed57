//! What an answer about a packet is made from: for `portolan explain`, for the control socket of the agent, and for
//! `portolan plan`.
//!
//! - [`Configured`]: what a configuration means for packets, without an agent. The settings are derived by the same functions
//!   as those of a running agent, and the differences of the mode by its driver
//! - [`Kernel`]: what the kernel has besides rules of Services
//! - [`ask`]: the answer of a running agent
//! - [`Asked`], [`print()`]: what the command lines have in common; [`print_as`] is for reports of any kind

mod command;
mod kernel;
mod routes;
mod running;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, ensure};
use ipnet::IpNet;
use portolan_explain::{FamilyView, NodeView};
use portolan_model::catalog::PerFamily;
use portolan_model::object::Node;
use portolan_model::observed::{Fact, Observed};
use portolan_model::{Capture, Catalog, Event, Family};
use portolan_node::config::{self, Configuration, DetectLocalMode, Mode, Readiness};
use portolan_sock::SocketError;
use portolan_sock::addresses::{self, Addresses};
use portolan_status::AgentState;
use portolan_watch::{ClientSettings, Peers};

use super::agent::api_server::places;
use super::agent::passive::is_of_kernel;
use super::modes::DefaultMode;
use super::options::{Loaded, ProxyOptions};
use super::{configured_client, modes, settings};
pub use command::{Asked, Output, print, print_as};
pub use kernel::Kernel;
pub use running::{Asking, NoAnswer, ask};

/// The configuration of an agent that does not run.
#[derive(Debug, Clone)]
pub struct Configured {
    loaded: Loaded,
}

impl Configured {
    /// Reads the configuration from the flags and the file of an agent. A given kubeconfig has precedence over that of the file.
    ///
    /// # Errors
    /// The configuration is wrong, or the flags ask for an action.
    pub fn load(options: &ProxyOptions) -> anyhow::Result<Self> {
        ensure_no_action(options)?;
        let mut loaded = options.load_to_ask()?;
        if options.preferences.default_mode == DefaultMode::Nftables {
            loaded.configuration.mode.get_or_insert(Mode::Nftables);
        }
        loaded.configuration.capture = options.preferences.capture.unwrap_or_default();
        Ok(Self { loaded })
    }

    /// Returns the configuration of an agent from its state document.
    ///
    /// # Errors
    /// This version does not know the configuration.
    pub fn of_agent(state: &AgentState) -> anyhow::Result<Self> {
        let text = state.configuration.to_string();
        let mut configuration = config::parse(&text).context("the configuration of the agent")?;
        let capture = Capture::ALL.into_iter().find(|way| state.capture.as_deref() == Some(way.name()));
        configuration.capture = capture.unwrap_or_default();
        Ok(Self { loaded: Loaded::reported(configuration) })
    }

    /// Returns the configuration of an agent that is started with these flags in the place of the one with a state document. A
    /// flag that is not given has the value of that agent.
    ///
    /// # Errors
    /// The flags are wrong or ask for an action, or this version does not know the configuration.
    pub fn of_agent_with(state: &AgentState, options: &ProxyOptions) -> anyhow::Result<Self> {
        ensure_no_action(options)?;
        let mut loaded = options.load_over(&state.configuration).context("the configuration of the agent")?;
        let reported = Capture::ALL.into_iter().find(|way| state.capture.as_deref() == Some(way.name()));
        loaded.configuration.capture = options.preferences.capture.or(reported).unwrap_or_default();
        Ok(Self { loaded })
    }

    /// Returns what was loaded.
    pub(crate) const fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Returns this with another configuration, such as one with the mode that a start chooses.
    pub(crate) fn with(mut self, configuration: Configuration) -> Self {
        self.loaded.configuration = configuration;
        self
    }

    /// Returns the configuration.
    pub(crate) const fn configuration(&self) -> &Configuration {
        &self.loaded.configuration
    }

    /// Returns true if an agent with this configuration sets endpoints aside while connections to them fail.
    pub fn sets_aside(&self) -> bool {
        self.configuration().portolan.passive_health_checks && is_of_kernel(self.configuration())
    }

    /// Returns the warnings about the flags and the file.
    pub fn notes(&self) -> &[String] {
        self.loaded.notes()
    }

    /// Returns true if the configuration names a mode.
    pub fn names_mode(&self) -> bool {
        self.loaded.configuration.mode.is_some()
    }

    /// Returns true if an agent with this configuration starts only if its Node has a pod CIDR.
    pub fn needs_pod_cidr(&self) -> bool {
        self.loaded.configuration.detect_local_mode == DetectLocalMode::NodeCidr
    }

    /// Returns the node name that the configuration sets (`hostnameOverride`).
    pub fn node_name(&self) -> Option<&str> {
        self.loaded.configuration.hostname_override.as_deref()
    }

    /// Returns the name of this node: the one that the configuration sets, or else that of the host.
    ///
    /// # Errors
    /// The host has no name.
    pub fn own_node_name(&self, host_name: &str) -> anyhow::Result<String> {
        Ok(self.loaded.configuration.node_name(host_name)?)
    }

    /// Returns how the node is to show that Services do not work on it yet.
    pub const fn readiness(&self) -> &Readiness {
        &self.loaded.configuration.readiness
    }

    /// Returns the name of the mode, if the configuration names one.
    pub fn mode_name(&self) -> Option<&'static str> {
        self.loaded.configuration.mode.map(Mode::name)
    }

    /// Returns the path of the control socket of an agent with this configuration. `None` if it has none.
    pub fn redirects(&self) -> bool {
        self.configuration().capture == Capture::Redirect
    }

    /// Returns the path of the control socket; `None` if there is none.
    pub fn control_socket(&self) -> Option<&Path> {
        let path = &self.loaded.configuration.portolan.control_socket;
        (!path.is_empty()).then(|| Path::new(path))
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

    /// Prepares an empty Catalog as the agent does: with the address guard and the cluster CIDRs of the configuration. The
    /// address of the API server is not known without a connection to it, so Services that would hide it are not left out.
    pub fn prepare(&self, catalog: &mut Catalog) {
        let Configuration { address_guard, cluster_cidrs, .. } = &self.loaded.configuration;
        // An empty Catalog has no Service to judge again, so there are no faults.
        catalog.set_address_guard(address_guard.clone(), cluster_cidrs.clone());
    }

    /// Reads what the kernel has of each family, in the terms of Services: of Portolan, or else of kube-proxy. If the
    /// configuration names no mode, it gets the one whose rules the kernel has. A family without rules of any mode has
    /// [`nothing`]; if it has rules of another mode than the configured one, it is left out. Returns a fault for each family
    /// that could not be read. May run programs.
    pub fn programmed(&mut self) -> (PerFamily<Option<Observed>>, Vec<String>) {
        let (mut programmed, mut faults) = (PerFamily::default(), Vec::new());
        let mut missing = Vec::new();
        for family in settings::supported_families() {
            match read_of_either(&self.loaded.configuration, family) {
                Ok(Some((mode, observed))) => {
                    self.loaded.configuration.mode.get_or_insert(mode);
                    *programmed.get_mut(family) = Some(observed);
                }
                Ok(None) => missing.push(family),
                Err(error) => faults.push(format!("cannot read the {family} rules of Services: {error}")),
            }
        }
        for family in missing {
            let any = Configuration { mode: None, ..self.loaded.configuration.clone() };
            if !modes::can_read_iptables(family) {
                faults.push(format!(
                    "the {family} rules of Services are not known: there are none of nftables, and no program that reads those of \
                     iptables; ask where iptables is installed, such as in the proxy's container"
                ));
            } else if matches!(read_of_either(&any, family), Ok(None)) {
                *programmed.get_mut(family) = Some(nothing(family));
            }
        }
        (programmed, faults)
    }

    /// Returns where the API server is, with which credentials and how often it is asked. `peers` records the addresses of
    /// connections.
    pub fn client_settings(&self, peers: &Peers) -> ClientSettings {
        ClientSettings { peers: peers.clone(), ..configured_client(&self.loaded) }
    }

    /// Leaves out what a Service may not capture, because this node reaches the API server there. `sockets` are those to
    /// which the client is connected, and `addresses` those of this node's interfaces.
    pub fn protect(&self, catalog: &mut Catalog, sockets: &BTreeSet<SocketAddr>, addresses: &[IpAddr]) {
        let behind = catalog.api_servers_behind(sockets);
        let adds_addresses = modes::configured(&self.loaded.configuration).adds_addresses();
        catalog.set_api_server(places(sockets, &behind, adds_addresses, addresses));
    }

    /// Returns the node as packets meet it. The Catalog has this node's Node object, if there is one. `addresses` are those
    /// of the node's interfaces; `None` if they are not known, so that only those of the Node object count. Without a named
    /// mode it is kube-proxy's default, iptables: what an agent tries on its node is not tried.
    pub fn node_view(&self, catalog: &Catalog, addresses: Option<Vec<IpAddr>>) -> NodeView {
        match addresses {
            Some(addresses) => self.node_view_of(catalog, &settings::supported_families(), addresses),
            None => self.node_view_of(catalog, &Family::BOTH, with_loopback(&own_addresses(catalog))),
        }
    }

    /// Does the same as [`Configured::node_view`] for a node that serves these families and has interfaces with these
    /// addresses.
    pub fn node_view_of(&self, catalog: &Catalog, families: &[Family], addresses: Vec<IpAddr>) -> NodeView {
        let own = own_addresses(catalog);
        let pod_cidrs = catalog.node().map(|node| node.pod_cidrs.clone()).unwrap_or_default();
        let name = catalog.node_name().to_owned();
        let this = ThisNode { name, own, pod_cidrs, addresses };
        node_view(&self.loaded.configuration, families, this, |family| catalog.service_cidrs(family))
    }

    /// Returns this with the mode of this name. Without a change if this version does not know it.
    #[must_use]
    pub fn in_mode(&self, name: &str) -> Self {
        let mut other = self.clone();
        if let Some(driver) = modes::named(name) {
            other.loaded.configuration.mode = Some(driver.mode());
        }
        other
    }
}

fn ensure_no_action(options: &ProxyOptions) -> anyhow::Result<()> {
    ensure!(
        options.runs_until_signal() && !options.only_ours,
        "--cleanup, --only-ours, --init-only, --version and --write-config-to are actions of the proxy; leave them out"
    );
    Ok(())
}

/// Reads what the kernel has of a family, with its mode. The iptables and IPVS modes have kube-proxy's names; its nftables mode
/// has a table of its own.
fn read_of_either(
    configuration: &Configuration,
    family: Family,
) -> Result<Option<(Mode, Observed)>, portolan_engine::Error> {
    let found = modes::read(configuration, family)?;
    if found.is_some() || configuration.mode.is_some_and(|mode| mode != Mode::Nftables) {
        return Ok(found);
    }
    Ok(portolan_nftables::read_kube_proxy(family)?.map(|observed| (Mode::Nftables, observed)))
}

/// Returns what the kernel has if it has no rules of Services.
pub const fn nothing(family: Family) -> Observed {
    Observed { family, node_port_addresses: None, node_ports: Fact::Unknown, ports: Vec::new() }
}

/// What was read of a family, with the name of the mode that has programmed it.
pub type ByMode = (String, Observed);

/// Reads what the kernel has of each family, in the terms of Services, by the mode of the active data plane that the state of
/// the running agent names: it is not the configured one while another mode is to replace it. A family that the state does not
/// have is read by the mode that has rules. Returns a fault for each family that could not be read. May run programs.
pub fn programmed_by_agent(state: &AgentState) -> (Vec<ByMode>, Vec<String>) {
    let (mut programmed, mut faults) = (Vec::new(), Vec::new());
    for family in settings::supported_families() {
        let lane = state.families.iter().find(|lane| lane.family == family.name());
        let configuration = Configuration { mode: lane.and_then(active_mode), ..Configuration::default() };
        match modes::read(&configuration, family) {
            Ok(found) => programmed.extend(found.map(|(mode, observed)| (mode.name().to_owned(), observed))),
            Err(error) => faults.push(format!("cannot read the {family} rules of Services: {error}")),
        }
    }
    (programmed, faults)
}

/// Returns the mode of the active data plane of a family. `None` if this version does not know it.
fn active_mode(lane: &portolan_status::Family) -> Option<Mode> {
    modes::named(&lane.mode).map(modes::ModeDriver::mode)
}

/// Returns the addresses of this node's interfaces in the network namespace of this thread, without those that the IPVS mode
/// adds for Services.
///
/// # Errors
/// The kernel does not list them.
pub fn interface_addresses() -> Result<Vec<IpAddr>, SocketError> {
    addresses::list_except(portolan_ipvs::DEVICE)
}

/// Returns the same addresses, each with the name of its interface.
///
/// # Errors
/// The kernel does not list them.
pub fn addresses_with_interfaces() -> Result<Vec<(IpAddr, String)>, SocketError> {
    addresses::list_with_devices_except(portolan_ipvs::DEVICE)
}

/// Subscribes to changes of these addresses.
///
/// # Errors
/// The kernel has no such subscription.
pub fn address_changes() -> Result<Addresses, SocketError> {
    Addresses::open(portolan_ipvs::DEVICE)
}

/// What is known of this node.
#[derive(Debug, Clone)]
pub(crate) struct ThisNode {
    /// The name of the Node object.
    pub(crate) name: String,
    /// Its addresses.
    pub(crate) own: Vec<IpAddr>,
    /// Its `spec.podCIDRs`.
    pub(crate) pod_cidrs: Vec<IpNet>,
    /// The addresses of its interfaces, as [`interface_addresses`] returns them.
    pub(crate) addresses: Vec<IpAddr>,
}

/// Returns the node as packets meet it, if the agent has this configuration and serves these families.
pub(crate) fn node_view(
    configuration: &Configuration,
    families: &[Family],
    this: ThisNode,
    service_cidrs: impl Fn(Family) -> Vec<IpNet>,
) -> NodeView {
    let ThisNode { name, own, pod_cidrs, addresses } = this;
    let ips = settings::node_addresses(&own, configuration.bind_address);
    let node = settings::Node { ips: &ips, pod_cidrs: &pod_cidrs, addresses: &addresses };
    let driver = modes::configured(configuration);
    let mode = driver.mode().name();
    let mut of_families = PerFamily::default();
    for &family in families {
        let settings = driver.settings(configuration, family, &node, service_cidrs(family));
        let differences = driver.differences(configuration, family, &node);
        let redirected_to = driver.redirected_to(configuration);
        let in_kube_proxys_chains = driver.uses_kube_proxys_chains(configuration);
        let mode = mode.to_owned();
        *of_families.get_mut(family) =
            Some(FamilyView { mode, settings, differences, in_kube_proxys_chains, redirected_to });
    }
    NodeView { name, mode: mode.to_owned(), pod_cidrs, families: of_families, addresses }
}

/// Returns the addresses of the Node object.
fn own_addresses(catalog: &Catalog) -> Vec<IpAddr> {
    let listed = |node: &Node| {
        node.internal_addresses.iter().chain(&node.external_addresses).copied().collect::<Vec<_>>()
    };
    catalog.node().map(listed).unwrap_or_default()
}

/// Every node has loopback addresses, which a Node object does not list.
fn with_loopback(own: &[IpAddr]) -> Vec<IpAddr> {
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    own.iter().copied().chain(loopback).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use clap::Parser;
    use portolan_model::object::decode_node;
    use portolan_model::oracle::ModeDifferences;
    use portolan_model::{LocalDetector, NodePortAddresses};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: ProxyOptions,
    }

    fn configured(flags: &[&str]) -> anyhow::Result<Configured> {
        let line = Line::try_parse_from([&["portolan"], flags].concat())?;
        Configured::load(&line.options)
    }

    /// Returns the node n1, which has two addresses and a pod CIDR, in IPv4.
    fn view(flags: &[&str]) -> (String, FamilyView) {
        let mut catalog = Catalog::new("n1");
        let node = r#"{"metadata":{"name":"n1"},"spec":{"podCIDRs":["10.244.1.0/24"]},"status":{"addresses":[
            {"type":"InternalIP","address":"192.0.2.1"},{"type":"ExternalIP","address":"198.51.100.7"}]}}"#;
        catalog.apply(Event::Node(decode_node(node.as_bytes()).unwrap()));
        let node = configured(flags).unwrap().node_view(&catalog, None);
        assert_eq!(node.addresses.len(), 4, "with loopback");
        (node.mode, node.families.ipv4.unwrap())
    }

    fn loopback_node_ports(flags: &[&str]) -> Vec<IpNet> {
        view(flags).1.differences.loopback_node_ports
    }

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn modes_have_their_differences() {
        let differences = |flags: &[&str]| {
            let (mode, view) = view(flags);
            (mode, view.differences)
        };
        let named = |mode: &str, differences: ModeDifferences| (mode.to_owned(), differences);
        let iptables = ModeDifferences::iptables(nets(&["127.0.0.0/8"]));
        assert_eq!(differences(&[]), named("iptables", iptables));
        assert_eq!(differences(&["--proxy-mode=nftables"]), named("nftables", ModeDifferences::default()));
        assert_eq!(differences(&["--proxy-mode=ipvs"]), named("ipvs", ModeDifferences::ipvs()));
        let userspace = ["--proxy-mode=userspace", "--userspace-capture=redirect"];
        assert_eq!(differences(&userspace[..1]), named("userspace", ModeDifferences::userspace()));
        assert_eq!(differences(&userspace), named("userspace", ModeDifferences::redirect()));
    }

    #[test]
    fn node_ports_on_loopback_addresses_follow_the_configuration() {
        assert_eq!(loopback_node_ports(&["--iptables-localhost-nodeports=false"]), nets(&[]));
        assert_eq!(loopback_node_ports(&["--nodeport-addresses=192.0.2.0/24"]), nets(&[]));
        assert_eq!(loopback_node_ports(&["--nodeport-addresses=127.0.0.0/8"]), nets(&["127.0.0.1/32"]));
        assert_eq!(
            loopback_node_ports(&["--proxy-mode=nftables", "--nodeport-addresses=127.0.0.0/8"]),
            nets(&[])
        );
    }

    #[test]
    fn settings_are_those_of_the_agent() {
        let settings = |flags: &[&str]| view(flags).1.settings;
        assert_eq!(settings(&[]).node_port_addresses, NodePortAddresses::MatchAll);
        let of_node = NodePortAddresses::Addresses(vec!["192.0.2.1".parse().unwrap()]);
        assert_eq!(settings(&["--proxy-mode=nftables"]).node_port_addresses, of_node, "the primary address");
        assert_eq!(settings(&[]).local_detector, LocalDetector::None);
        let by_node = settings(&["--detect-local-mode=NodeCIDR"]).local_detector;
        assert_eq!(by_node, LocalDetector::Cidr("10.244.1.0/24".parse().unwrap()));
        assert_eq!(settings(&[]).node_ip, Some("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn a_recorded_mode_replaces_the_configured_one() {
        let mode = |name: &str| {
            let node = configured(&["--proxy-mode=nftables"]).unwrap().in_mode(name);
            node.node_view(&Catalog::new("n1"), None).families.ipv6.unwrap().mode
        };
        assert_eq!((mode("ipvs").as_str(), mode("later").as_str()), ("ipvs", "nftables"));
        let lane = |mode: &str| portolan_status::Family { mode: mode.into(), ..Default::default() };
        assert_eq!(active_mode(&lane("ipvs")), Some(Mode::Ipvs));
        assert_eq!(active_mode(&lane("later")), None);
    }

    #[test]
    fn a_configuration_without_a_mode_has_the_one_of_the_flag() {
        let mode = |flags: &[&str]| {
            let node = configured(flags).unwrap();
            node.node_view(&Catalog::new("n1"), None).families.ipv6.unwrap().mode
        };
        assert_eq!(mode(&[]), "iptables");
        assert_eq!(mode(&["--default-mode=nftables"]), "nftables");
        assert_eq!(mode(&["--default-mode=nftables", "--proxy-mode=ipvs"]), "ipvs");
    }

    #[test]
    fn actions_are_refused() {
        for action in ["--cleanup", "--init-only", "--only-ours", "--write-config-to=x", "--version"] {
            let error = configured(&[action]).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("are actions of the proxy"), "{action}: {error}");
        }
        assert!(configured(&["--config=/nonexistent"]).is_err());
    }
}
