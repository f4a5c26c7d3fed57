//! The command line of `portolan proxy`, and the configuration it makes.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use portolan_node::address::{self, NodePortAddresses};
use portolan_node::config::{self, Configuration, DetectLocalMode, Mode};

/// Options of `portolan proxy`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags are what they are")]
pub(crate) struct Options {
    /// KubeProxyConfiguration (v1alpha1) in YAML or JSON. With it, of the options only --master and
    /// --hostname-override count.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Kubeconfig file; without it and without --master, in-cluster credentials are used.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<String>,
    /// URL of the API server, in place of the kubeconfig's.
    #[arg(long, value_name = "URL")]
    master: Option<String>,
    /// Name of this node, in place of the host's name.
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// Mode: nftables.
    #[arg(long, value_name = "MODE")]
    proxy_mode: Option<ProxyMode>,
    /// This node's primary address, in place of the Node object's.
    #[arg(long, value_name = "IP")]
    bind_address: Option<String>,
    /// CIDRs of the cluster's pods: one, or one of each family.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    cluster_cidr: Vec<String>,
    /// How traffic of this node's pods is told from other traffic.
    #[arg(long, value_name = "MODE")]
    detect_local_mode: Option<LocalMode>,
    /// The bridge of this node's pods, for `BridgeInterface`.
    #[arg(long, value_name = "NAME")]
    pod_bridge_interface: Option<String>,
    /// How the names of the pods' interfaces start, for `InterfaceNamePrefix`.
    #[arg(long, value_name = "PREFIX")]
    pod_interface_name_prefix: Option<String>,
    /// Addresses that accept node ports: CIDRs, or the word primary.
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    nodeport_addresses: Vec<String>,
    /// Masquerade all traffic to cluster IPs.
    #[arg(long)]
    masquerade_all: bool,
    /// Address of the health server.
    #[arg(long, value_name = "IP[:PORT]")]
    healthz_bind_address: Option<String>,
    /// Address of the metrics server.
    #[arg(long, value_name = "IP[:PORT]")]
    metrics_bind_address: Option<String>,
    /// Fail where the health or the metrics server cannot listen.
    #[arg(long)]
    bind_address_hard_fail: bool,
    /// Apply changes of the configuration file while running; with false, end when it changes.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
        default_missing_value = "true", require_equals = true)]
    pub(super) config_reload: bool,
    /// Remove everything that this program and kube-proxy put into the kernel, then end.
    #[arg(long)]
    pub(super) cleanup: bool,
    /// Check this node and set its kernel settings, then end.
    #[arg(long)]
    pub(super) init_only: bool,
}

/// What the command line, and the file that it names, say together.
#[derive(Debug, Clone)]
pub(super) struct Loaded {
    pub(super) configuration: Configuration,
    pub(super) master: Option<String>,
    pub(super) file: Option<PathBuf>,
}

/// `--proxy-mode`
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ProxyMode {
    Nftables,
    Iptables,
    Ipvs,
}

/// `--detect-local-mode`
#[derive(Debug, Clone, Copy, ValueEnum)]
enum LocalMode {
    #[value(name = "ClusterCIDR")]
    ClusterCidr,
    #[value(name = "NodeCIDR")]
    NodeCidr,
    #[value(name = "BridgeInterface")]
    BridgeInterface,
    #[value(name = "InterfaceNamePrefix")]
    InterfaceNamePrefix,
}

impl Options {
    /// Reads the file, where one is named; everything is validated.
    pub(super) fn load(&self) -> anyhow::Result<Loaded> {
        let configuration = self.configuration()?;
        Ok(Loaded { configuration, master: self.master.clone(), file: self.config.clone() })
    }

    /// The effective configuration, validated.
    fn configuration(&self) -> anyhow::Result<Configuration> {
        let mut configuration = match &self.config {
            Some(path) => config::load(path)?,
            None => self.flags()?,
        };
        if let Some(name) = &self.hostname_override {
            configuration.set_hostname_override(name).context("--hostname-override")?;
        }
        configuration.validate()?;
        Ok(configuration)
    }

    fn flags(&self) -> anyhow::Result<Configuration> {
        let mut configuration = Configuration {
            mode: self.proxy_mode.map(Mode::from),
            bind_address_hard_fail: self.bind_address_hard_fail,
            detect_local_mode: self.detect_local_mode.map(DetectLocalMode::from).unwrap_or_default(),
            cluster_cidrs: parse_all("--cluster-cidr", &self.cluster_cidr)?,
            node_port_addresses: self.node_port_addresses()?,
            ..Configuration::default()
        };
        configuration.client_connection.kubeconfig = self.kubeconfig.clone().unwrap_or_default();
        configuration.nftables.masquerade_all = self.masquerade_all;
        configuration.detect_local.bridge_interface = self.pod_bridge_interface.clone().unwrap_or_default();
        configuration.detect_local.interface_name_prefix =
            self.pod_interface_name_prefix.clone().unwrap_or_default();
        if let Some(text) = &self.bind_address {
            configuration.bind_address = address::parse_ip(text).context("--bind-address")?;
        }
        let socket = |flag: &'static str, text: &str, port| {
            address::parse_socket_address(text, port).with_context(|| flag)
        };
        if let Some(text) = &self.healthz_bind_address {
            let at = socket("--healthz-bind-address", text, config::HEALTHZ_PORT)?;
            configuration.healthz_bind_address = Some(at);
        }
        if let Some(text) = &self.metrics_bind_address {
            let at = socket("--metrics-bind-address", text, config::METRICS_PORT)?;
            configuration.metrics_bind_address = Some(at);
        }
        Ok(configuration)
    }

    fn node_port_addresses(&self) -> anyhow::Result<NodePortAddresses> {
        Ok(match self.nodeport_addresses.as_slice() {
            [] => NodePortAddresses::Default,
            [primary] if primary == "primary" => NodePortAddresses::Primary,
            cidrs => NodePortAddresses::Cidrs(parse_all("--nodeport-addresses", cidrs)?),
        })
    }
}

fn parse_all<T: FromIterator<ipnet::IpNet>>(flag: &'static str, texts: &[String]) -> anyhow::Result<T> {
    texts.iter().map(|text| address::parse_cidr(text).with_context(|| format!("{flag}: {text}"))).collect()
}

impl From<ProxyMode> for Mode {
    fn from(mode: ProxyMode) -> Self {
        match mode {
            ProxyMode::Nftables => Self::Nftables,
            ProxyMode::Iptables => Self::Iptables,
            ProxyMode::Ipvs => Self::Ipvs,
        }
    }
}

impl From<LocalMode> for DetectLocalMode {
    fn from(mode: LocalMode) -> Self {
        match mode {
            LocalMode::ClusterCidr => Self::ClusterCidr,
            LocalMode::NodeCidr => Self::NodeCidr,
            LocalMode::BridgeInterface => Self::BridgeInterface,
            LocalMode::InterfaceNamePrefix => Self::InterfaceNamePrefix,
        }
    }
}
