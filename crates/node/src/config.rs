//! What the operator asks for: `KubeProxyConfiguration` v1alpha1 as plain typed values.
//!
//! In flow YAML or JSON text ([`parse`], [`load`]) or the fields that a command line sets over
//! [`Configuration::default`]; out flows a checked [`Configuration`], or every mistake at once, each with the
//! path of its field and its mend. Defaults are those of kube-proxy v1.36
//! (`pkg/proxy/apis/config/v1alpha1/defaults.go`), with these decisions:
//!
//! * A field that kube-proxy does not know is an error here, not a log line.
//! * An explicit `minSyncPeriod: 0s` means zero; kube-proxy turns it into 1s.
//! * CIDRs and durations are checked wherever they are written, also in sections that the mode does not use.
//!   A negative duration is always an error.
//! * An empty `mode` means nftables; [`Configuration::mode`] stays `None` so that the caller can say so.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;

pub use self::duration::{DurationError, format_duration, parse_duration};
pub use self::error::{ConfigError, FieldError, FieldErrors, Problem};
use crate::address::NodePortAddresses;

mod document;
mod duration;
mod error;
mod reader;
mod serialize;
#[cfg(test)]
mod tests;
mod validate;

/// The port of the health server.
pub const HEALTHZ_PORT: u16 = 10256;
/// The port of the metrics server.
pub const METRICS_PORT: u16 = 10249;

/// Reads a configuration from YAML or JSON text and checks it.
///
/// # Errors
/// Text that is not one YAML document, or the list of every field that is wrong.
pub fn parse(text: &str) -> Result<Configuration, ConfigError> {
    document::parse(text)
}

/// Reads a configuration file and checks it.
///
/// # Errors
/// As [`parse`], and a file that cannot be read.
pub fn load(path: &Path) -> Result<Configuration, ConfigError> {
    let read = std::fs::read_to_string(path);
    parse(&read.map_err(|source| ConfigError::Read { path: path.into(), source })?)
}

/// How packets are forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// nftables, the default here.
    Nftables,
    /// iptables.
    Iptables,
    /// IPVS.
    Ipvs,
}

impl Mode {
    /// The mode as configurations spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
        }
    }
}

/// How traffic from local pods is told from other traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DetectLocalMode {
    /// By source address inside `clusterCIDR`.
    #[default]
    ClusterCidr,
    /// By source address inside this node's `spec.podCIDRs`.
    NodeCidr,
    /// By arrival through one bridge.
    BridgeInterface,
    /// By arrival through an interface whose name starts so.
    InterfaceNamePrefix,
}

impl DetectLocalMode {
    /// The mode as configurations spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterCidr => "ClusterCIDR",
            Self::NodeCidr => "NodeCIDR",
            Self::BridgeInterface => "BridgeInterface",
            Self::InterfaceNamePrefix => "InterfaceNamePrefix",
        }
    }
}

/// A whole configuration. [`Configuration::default`] is what kube-proxy does without flags and file.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    /// Feature gates by name; whether they exist is the caller's to check.
    pub feature_gates: BTreeMap<String, bool>,
    /// How to reach the API server.
    pub client_connection: ClientConnection,
    /// Logging.
    pub logging: Logging,
    /// The node's name instead of the host's, trimmed and in lower case. Set it with
    /// [`Configuration::set_hostname_override`].
    pub hostname_override: Option<String>,
    /// Overrides the node's primary address and family; no socket is bound to it.
    pub bind_address: IpAddr,
    /// The health server; `None` switches it off.
    pub healthz_bind_address: Option<SocketAddr>,
    /// The metrics server; `None` switches it off.
    pub metrics_bind_address: Option<SocketAddr>,
    /// Whether failing to bind either is fatal.
    pub bind_address_hard_fail: bool,
    /// Whether profiling is served.
    pub enable_profiling: bool,
    /// Empty or the previous minor version.
    pub show_hidden_metrics_for_version: String,
    /// The mode, if one was named; see [`Configuration::mode_or_default`].
    pub mode: Option<Mode>,
    /// The iptables section.
    pub iptables: Iptables,
    /// The ipvs section.
    pub ipvs: Ipvs,
    /// The nftables section.
    pub nftables: Nftables,
    /// The Windows section, accepted and not used.
    pub winkernel: Winkernel,
    /// How local traffic is told.
    pub detect_local_mode: DetectLocalMode,
    /// The names that two of those modes need.
    pub detect_local: DetectLocal,
    /// The cluster's pod CIDRs, as written in order.
    pub cluster_cidrs: Vec<IpNet>,
    /// Where node ports answer, as written; see [`Configuration::node_port_addresses`].
    pub node_port_addresses: NodePortAddresses,
    /// Score for the out-of-memory killer, -1000 to 1000.
    pub oom_score_adj: i32,
    /// Connection tracking settings.
    pub conntrack: Conntrack,
    /// How often a full resync of watched objects happens upstream.
    pub config_sync_period: Duration,
    /// Accepted and ignored.
    pub port_range: String,
    /// Windows; accepted and ignored.
    pub windows_run_as_service: bool,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            feature_gates: BTreeMap::new(),
            client_connection: ClientConnection::default(),
            logging: Logging::default(),
            hostname_override: None,
            bind_address: Ipv4Addr::UNSPECIFIED.into(),
            healthz_bind_address: Some(default_healthz(Ipv4Addr::UNSPECIFIED.into())),
            metrics_bind_address: Some(default_metrics(Ipv4Addr::UNSPECIFIED.into())),
            bind_address_hard_fail: false,
            enable_profiling: false,
            show_hidden_metrics_for_version: String::new(),
            mode: None,
            iptables: Iptables::default(),
            ipvs: Ipvs::default(),
            nftables: Nftables::default(),
            winkernel: Winkernel::default(),
            detect_local_mode: DetectLocalMode::default(),
            detect_local: DetectLocal::default(),
            cluster_cidrs: Vec::new(),
            node_port_addresses: NodePortAddresses::default(),
            oom_score_adj: -999,
            conntrack: Conntrack::default(),
            config_sync_period: Duration::from_secs(15 * 60),
            port_range: String::new(),
            windows_run_as_service: false,
        }
    }
}

impl Configuration {
    /// Every mistake that the types do not already exclude; call it after setting fields by hand.
    ///
    /// # Errors
    /// The list of every field that is wrong.
    pub fn validate(&self) -> Result<(), FieldErrors> {
        FieldErrors::from_list(validate::validate(self))
    }

    /// The named mode, or nftables where none was named.
    pub fn mode_or_default(&self) -> Mode {
        self.mode.unwrap_or(Mode::Nftables)
    }

    /// Where node ports answer after the mode's default: nftables without a list means `primary`.
    pub fn node_port_addresses(&self) -> NodePortAddresses {
        match (&self.node_port_addresses, self.mode_or_default()) {
            (NodePortAddresses::Default, Mode::Nftables) => NodePortAddresses::Primary,
            (written, _) => written.clone(),
        }
    }

    /// Trims, lower-cases and stores a node name.
    ///
    /// # Errors
    /// A name of blanks only.
    pub fn set_hostname_override(&mut self, name: &str) -> Result<(), FieldError> {
        let name = name.trim().to_lowercase();
        if name.is_empty() {
            return Err(FieldError::new("hostnameOverride", Problem::Blank));
        }
        self.hostname_override = Some(name);
        Ok(())
    }

    /// The node's name: the override, else the host's name trimmed and in lower case.
    ///
    /// # Errors
    /// Neither gives a name.
    pub fn node_name(&self, os_hostname: &str) -> Result<String, FieldError> {
        let fallback = || Some(os_hostname.trim().to_lowercase()).filter(|name| !name.is_empty());
        let name = self.hostname_override.clone().or_else(fallback);
        name.ok_or_else(|| FieldError::new("hostnameOverride", Problem::NoHostname))
    }

    /// The periods of the mode in use: how often everything is synced at least, and the least time between
    /// two syncs.
    pub fn sync_periods(&self) -> (Duration, Duration) {
        match self.mode_or_default() {
            Mode::Nftables => (self.nftables.sync_period, self.nftables.min_sync_period),
            Mode::Iptables => (self.iptables.sync_period, self.iptables.min_sync_period),
            Mode::Ipvs => (self.ipvs.sync_period, self.ipvs.min_sync_period),
        }
    }

    /// The configuration as a v1alpha1 object, every field present.
    pub fn to_v1alpha1(&self) -> serde_json::Value {
        serialize::to_v1alpha1(self)
    }
}

/// How to reach the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientConnection {
    /// Path of a kubeconfig; empty means in-cluster credentials.
    pub kubeconfig: String,
    /// `Accept` header, if not empty.
    pub accept_content_types: String,
    /// `Content-Type` of requests.
    pub content_type: String,
    /// Requests a second; negative means no limit.
    pub qps: f32,
    /// Requests that may exceed `qps` for a moment.
    pub burst: i32,
}

impl Default for ClientConnection {
    fn default() -> Self {
        Self {
            kubeconfig: String::new(),
            accept_content_types: String::new(),
            content_type: "application/vnd.kubernetes.protobuf".into(),
            qps: 5.0,
            burst: 10,
        }
    }
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Logging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logging {
    /// Text or JSON.
    pub format: LogFormat,
    /// How often buffered lines are written.
    pub flush_frequency: Duration,
    /// klog's verbosity, 0 to 2147483647.
    pub verbosity: u32,
    /// Verbosity by source file pattern.
    pub vmodule: Vec<VmoduleItem>,
    /// Options of the text format.
    pub text: OutputOptions,
    /// Options of the JSON format.
    pub json: OutputOptions,
}

impl Default for Logging {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            flush_frequency: Duration::from_secs(5),
            verbosity: 0,
            vmodule: Vec::new(),
            text: OutputOptions::default(),
            json: OutputOptions::default(),
        }
    }
}

/// Verbosity for the source files that match a pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmoduleItem {
    /// Base name of a source file, `*` and `?` allowed.
    pub file_pattern: String,
    /// Its verbosity.
    pub verbosity: u32,
}

/// Output options of one log format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputOptions {
    /// Errors to stderr, the rest to stdout.
    pub split_stream: bool,
    /// A Kubernetes quantity: bytes to buffer.
    pub info_buffer_size: String,
}

impl Default for OutputOptions {
    fn default() -> Self {
        Self { split_stream: false, info_buffer_size: "0".into() }
    }
}

/// The iptables section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Iptables {
    /// Bit of the packet mark, 0 to 31.
    pub masquerade_bit: u8,
    /// Masquerade all cluster-IP traffic.
    pub masquerade_all: bool,
    /// Node ports on loopback addresses.
    pub localhost_node_ports: bool,
    /// A full sync at least this often.
    pub sync_period: Duration,
    /// At least this long between two syncs.
    pub min_sync_period: Duration,
}

impl Default for Iptables {
    fn default() -> Self {
        Self {
            masquerade_bit: 14,
            masquerade_all: false,
            localhost_node_ports: true,
            sync_period: Duration::from_secs(30),
            min_sync_period: Duration::from_secs(1),
        }
    }
}

/// The ipvs section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipvs {
    /// A full sync at least this often.
    pub sync_period: Duration,
    /// At least this long between two syncs.
    pub min_sync_period: Duration,
    /// The scheduler; empty means `rr`.
    pub scheduler: String,
    /// Virtual servers inside these are left alone.
    pub exclude_cidrs: Vec<IpNet>,
    /// Answer ARP strictly.
    pub strict_arp: bool,
    /// Idle TCP connections; zero leaves the kernel's value.
    pub tcp_timeout: Duration,
    /// TCP connections after FIN; zero leaves the kernel's value.
    pub tcp_fin_timeout: Duration,
    /// Idle UDP flows; zero leaves the kernel's value.
    pub udp_timeout: Duration,
}

impl Default for Ipvs {
    fn default() -> Self {
        Self {
            sync_period: Duration::from_secs(30),
            min_sync_period: Duration::ZERO,
            scheduler: String::new(),
            exclude_cidrs: Vec::new(),
            strict_arp: false,
            tcp_timeout: Duration::ZERO,
            tcp_fin_timeout: Duration::ZERO,
            udp_timeout: Duration::ZERO,
        }
    }
}

/// The nftables section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nftables {
    /// Bit of the packet mark, 0 to 31.
    pub masquerade_bit: u8,
    /// Masquerade all cluster-IP traffic.
    pub masquerade_all: bool,
    /// A full sync at least this often.
    pub sync_period: Duration,
    /// At least this long between two syncs; zero means none.
    pub min_sync_period: Duration,
}

impl Default for Nftables {
    fn default() -> Self {
        Self {
            masquerade_bit: 14,
            masquerade_all: false,
            sync_period: Duration::from_secs(30),
            min_sync_period: Duration::from_secs(1),
        }
    }
}

/// The Windows section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Winkernel {
    /// Name of the HNS network.
    pub network_name: String,
    /// Source address of virtual IPs.
    pub source_vip: String,
    /// Direct server return.
    pub enable_dsr: bool,
    /// Name of the root endpoint.
    pub root_hns_endpoint_name: String,
    /// Forward the health check address.
    pub forward_health_check_vip: bool,
}

/// The names that two modes of local detection need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DetectLocal {
    /// Name of the bridge.
    pub bridge_interface: String,
    /// Start of the interfaces' names.
    pub interface_name_prefix: String,
}

/// Connection tracking settings. A zero leaves the kernel's own value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conntrack {
    /// Tracked connections for each CPU.
    pub max_per_core: i32,
    /// Tracked connections at least.
    pub min: i32,
    /// Idle established TCP connections.
    pub tcp_established_timeout: Duration,
    /// TCP connections in CLOSE-WAIT.
    pub tcp_close_wait_timeout: Duration,
    /// Do not judge out-of-window segments.
    pub tcp_be_liberal: bool,
    /// One-way UDP flows.
    pub udp_timeout: Duration,
    /// Two-way UDP flows.
    pub udp_stream_timeout: Duration,
}

impl Default for Conntrack {
    fn default() -> Self {
        Self {
            max_per_core: 32_768,
            min: 131_072,
            tcp_established_timeout: Duration::from_secs(24 * 3600),
            tcp_close_wait_timeout: Duration::from_secs(3600),
            tcp_be_liberal: false,
            udp_timeout: Duration::ZERO,
            udp_stream_timeout: Duration::ZERO,
        }
    }
}

/// The health server's address where none is given: every address, in the spelling of the bind address.
fn default_healthz(bind_address: IpAddr) -> SocketAddr {
    let any =
        if bind_address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(any, HEALTHZ_PORT)
}

/// The metrics server's address where none is given: loopback of the bind address's family.
fn default_metrics(bind_address: IpAddr) -> SocketAddr {
    let host = if bind_address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    SocketAddr::new(host, METRICS_PORT)
}
