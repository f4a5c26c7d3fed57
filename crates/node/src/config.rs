//! The operator's configuration: `KubeProxyConfiguration` v1alpha1 as plain typed values.
//!
//! Input: YAML or JSON text ([`parse`], [`load`]), or the fields that a command line sets over
//! [`Configuration::default`]. Output: a checked [`Configuration`], or all errors at once, each with the path of its
//! field and its fix. Defaults are those of kube-proxy v1.36 (`pkg/proxy/apis/config/v1alpha1/defaults.go`), with these
//! decisions:
//!
//! * A field that kube-proxy does not know is an error, not a log line. A field that is written twice is an error, too. Fields
//!   of earlier versions of v1alpha1 are reported as notes and ignored, since files outlive versions.
//! * An explicit `minSyncPeriod: 0s` means zero. kube-proxy turns it into 1s.
//! * CIDRs and durations are checked wherever they are written, also in sections that the mode does not use. A negative
//!   duration is always an error.
//! * The section `portolan` has the fields that kube-proxy does not know. A written file leaves it out unless it differs
//!   from the default.
//! * An empty `mode` means iptables. [`Configuration::mode`] stays `None`, so that the caller can tell this case.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;
use portolan_model::Capture;
use portolan_model::catalog::AddressGuard;

pub use self::duration::{DurationError, format_duration, parse_duration};
pub use self::error::{ConfigError, FieldError, FieldErrors, Problem, TextPosition};
pub use self::fields::{Field, fields};
pub use self::own::{Readiness, Taint, TaintEffect, parse_condition, set_actions};
pub use self::sections::{
    ClientConnection, Conntrack, DetectLocal, Iptables, Ipvs, LogFormat, Logging, Nftables, OutputOptions,
    Portolan, VmoduleItem, Winkernel,
};
use crate::address::NodePortAddresses;
use crate::gates::FeatureGates;

mod document;
mod duration;
mod error;
mod fields;
mod own;
mod ports;
mod quantity;
mod reader;
mod sections;
mod serialize;
mod source;
#[cfg(test)]
mod tests;
mod validate;

/// The default port of the health server.
pub const HEALTHZ_PORT: u16 = 10256;
/// The default port of the metrics server.
pub const METRICS_PORT: u16 = 10249;
/// The default path of the control socket.
pub const CONTROL_SOCKET: &str = "/run/portolan/proxy.sock";

/// The default number of bytes of the history of the last syncs: a few ten thousand records.
pub const RECORDER_BYTES: i32 = 4 << 20;
/// The least size of a history: some hundred records.
const RECORDER_BYTES_MIN: i32 = 64 << 10;
/// The greatest size of a history: it must leave the memory of the node to others.
const RECORDER_BYTES_MAX: i32 = 64 << 20;
/// Most Service ports that `portolan.serviceMetrics` may ask for.
const SERVICE_METRICS_MAX: i32 = 10_000;

/// Parses and checks a configuration in YAML or JSON.
///
/// # Errors
/// Text that is not a YAML document, or all errors in fields.
pub fn parse(text: &str) -> Result<Configuration, ConfigError> {
    document::parse(text).map(|(configuration, _)| configuration)
}

/// Reads and checks a configuration file. Notes are logged.
///
/// # Errors
/// As for [`parse`], and a file that cannot be read.
pub fn load(path: &Path) -> Result<Configuration, ConfigError> {
    let (configuration, notes) = load_with_notes(path)?;
    for note in notes {
        tracing::warn!(file = %path.display(), "{note}");
    }
    Ok(configuration)
}

/// Like [`load`], but returns the notes, for use before there is a log.
///
/// # Errors
/// As for [`load`].
pub fn load_with_notes(path: &Path) -> Result<(Configuration, Vec<FieldError>), ConfigError> {
    let read = std::fs::read(path);
    parse_content(path, read.map_err(|source| ConfigError::Read { path: path.into(), source })?)
}

/// Like [`load_with_notes`], for the content of a file.
///
/// # Errors
/// As for [`load`].
pub fn parse_content(path: &Path, content: Vec<u8>) -> Result<(Configuration, Vec<FieldError>), ConfigError> {
    let text = String::from_utf8(content).map_err(|error| {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, error);
        ConfigError::Read { path: path.into(), source }
    })?;
    document::parse(&text)
}

/// How packets are forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// nftables.
    Nftables,
    /// iptables, the default of upstream.
    Iptables,
    /// IPVS.
    Ipvs,
    /// A relay in user space.
    Userspace,
}

impl Mode {
    /// Returns the mode as configurations spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
            Self::Userspace => "userspace",
        }
    }

    /// Returns the mode of this name.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Nftables, Self::Iptables, Self::Ipvs, Self::Userspace];
        all.into_iter().find(|mode| mode.name() == name)
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// How traffic of local pods is recognized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DetectLocalMode {
    /// By a source address inside `clusterCIDR`.
    #[default]
    ClusterCidr,
    /// By a source address inside this node's `spec.podCIDRs`.
    NodeCidr,
    /// By arrival through one bridge.
    BridgeInterface,
    /// By arrival through an interface whose name has a prefix.
    InterfaceNamePrefix,
}

impl DetectLocalMode {
    /// Returns the mode as configurations spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterCidr => "ClusterCIDR",
            Self::NodeCidr => "NodeCIDR",
            Self::BridgeInterface => "BridgeInterface",
            Self::InterfaceNamePrefix => "InterfaceNamePrefix",
        }
    }
}

/// A complete configuration. [`Configuration::default`] is that of kube-proxy without flags and file.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    /// Feature gates by name, as written; see [`Configuration::gates`].
    pub feature_gates: BTreeMap<String, bool>,
    /// The connection to the API server.
    pub client_connection: ClientConnection,
    /// Logging.
    pub logging: Logging,
    /// The node's name in place of the host's, trimmed and in lower case. Set by
    /// [`Configuration::set_hostname_override`].
    pub hostname_override: Option<String>,
    /// Overrides the node's primary address and family. No socket is bound to it.
    pub bind_address: IpAddr,
    /// The address of the health server; `None` disables it.
    pub healthz_bind_address: Option<SocketAddr>,
    /// The address of the metrics server; `None` disables it.
    pub metrics_bind_address: Option<SocketAddr>,
    /// Whether a failure to bind one of these servers is fatal.
    pub bind_address_hard_fail: bool,
    /// Whether profiling is served.
    pub enable_profiling: bool,
    /// Empty, or the previous minor version.
    pub show_hidden_metrics_for_version: String,
    /// The mode, if one was named; see [`Configuration::mode_or_default`].
    pub mode: Option<Mode>,
    /// The iptables section.
    pub iptables: Iptables,
    /// The ipvs section.
    pub ipvs: Ipvs,
    /// The nftables section.
    pub nftables: Nftables,
    /// The Windows section: accepted and ignored.
    pub winkernel: Winkernel,
    /// How traffic of local pods is recognized.
    pub detect_local_mode: DetectLocalMode,
    /// The interface names for two of those modes.
    pub detect_local: DetectLocal,
    /// The cluster's pod CIDRs, in the order in which they are written.
    pub cluster_cidrs: Vec<IpNet>,
    /// The addresses that accept node ports, as written; see [`Configuration::node_port_addresses`].
    pub node_port_addresses: NodePortAddresses,
    /// Score for the out-of-memory killer, -1000 to 1000.
    pub oom_score_adj: i32,
    /// Connection tracking settings.
    pub conntrack: Conntrack,
    /// How often upstream does a full resync of watched objects.
    pub config_sync_period: Duration,
    /// Ports on which the userspace mode listens, as written; see [`Configuration::proxy_ports`].
    pub port_range: String,
    /// How long the userspace mode keeps a UDP flow without datagrams; zero means its default.
    pub udp_idle_timeout: Duration,
    /// How the userspace mode captures packets, from the node's abilities or a flag. Not in the file.
    pub capture: Capture,
    /// Windows: accepted and ignored.
    pub windows_run_as_service: bool,
    /// What happens to external addresses of Services that belong to something else.
    pub address_guard: AddressGuard,
    /// How the Node shows that Services do not work on it yet.
    pub readiness: Readiness,
    /// The section of fields that kube-proxy does not know.
    pub portolan: Portolan,
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
            udp_idle_timeout: Duration::ZERO,
            capture: Capture::default(),
            windows_run_as_service: false,
            address_guard: AddressGuard::default(),
            readiness: Readiness::default(),
            portolan: Portolan::default(),
        }
    }
}

impl Configuration {
    /// Checks what the types do not already exclude. Call this after setting fields by hand.
    ///
    /// # Errors
    /// Every field that is wrong.
    pub fn validate(&self) -> Result<(), FieldErrors> {
        FieldErrors::from_list(validate::validate(self))
    }

    /// Returns every feature gate. If [`Configuration::validate`] rejects any gate, all have their defaults.
    pub fn gates(&self) -> FeatureGates {
        FeatureGates::from_map(&self.feature_gates).unwrap_or_default()
    }

    /// Returns the named mode, or iptables if none was named, as upstream on Linux. On a node without iptables, the
    /// caller chooses another mode.
    pub fn mode_or_default(&self) -> Mode {
        self.mode.unwrap_or(Mode::Iptables)
    }

    /// Returns the addresses that accept node ports, after the mode's default: nftables without a list means `primary`.
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

    /// Returns the node's name: the override, else the host's name, trimmed and in lower case.
    ///
    /// # Errors
    /// Neither the override nor the host has a name.
    pub fn node_name(&self, os_hostname: &str) -> Result<String, FieldError> {
        let fallback = || Some(os_hostname.trim().to_lowercase()).filter(|name| !name.is_empty());
        let name = self.hostname_override.clone().or_else(fallback);
        name.ok_or_else(|| FieldError::new("hostnameOverride", Problem::NoHostname))
    }

    /// Returns the periods of the mode: the longest time between two full syncs, and the shortest time between two syncs.
    pub fn sync_periods(&self) -> (Duration, Duration) {
        match self.mode_or_default() {
            Mode::Nftables => (self.nftables.sync_period, self.nftables.min_sync_period),
            Mode::Iptables | Mode::Userspace => (self.iptables.sync_period, self.iptables.min_sync_period),
            Mode::Ipvs => (self.ipvs.sync_period, self.ipvs.min_sync_period),
        }
    }

    /// Returns the first and the last port on which the userspace mode may listen; `None` if it may choose.
    ///
    /// # Errors
    /// The text is not a range of at least two ports.
    pub fn proxy_ports(&self) -> Result<Option<(u16, u16)>, FieldError> {
        ports::parse(&self.port_range).map_err(|problem| FieldError::new("portRange", problem))
    }

    /// Returns the configuration with explicit values in place of empty fields: the mode, and in nftables mode the node
    /// port addresses.
    #[must_use]
    pub fn effective(&self) -> Self {
        let node_port_addresses = self.node_port_addresses();
        Self { mode: Some(self.mode_or_default()), node_port_addresses, ..self.clone() }
    }

    /// Returns the configuration as a v1alpha1 object with every field.
    pub fn to_v1alpha1(&self) -> serde_json::Value {
        serialize::to_v1alpha1(self)
    }

    /// Returns the [effective](Configuration::effective) configuration as a v1alpha1 file, with keys in alphabetical
    /// order. `--write-config-to` writes this. Reading it returns the same configuration, unless a server is disabled: a
    /// file cannot express that.
    pub fn to_yaml(&self) -> String {
        serialize::to_yaml(&self.effective())
    }
}

/// Returns the default address of the health server: the unspecified address of the bind address's family.
fn default_healthz(bind_address: IpAddr) -> SocketAddr {
    let any =
        if bind_address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(any, HEALTHZ_PORT)
}

/// Returns the default address of the metrics server: loopback of the bind address's family.
fn default_metrics(bind_address: IpAddr) -> SocketAddr {
    let host = if bind_address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    SocketAddr::new(host, METRICS_PORT)
}
