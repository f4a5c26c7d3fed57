//! The sections of a configuration, each with kube-proxy's defaults.

use std::time::Duration;

use ipnet::IpNet;

/// The connection to the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientConnection {
    /// Path of a kubeconfig; empty means in-cluster credentials.
    pub kubeconfig: String,
    /// `Accept` header, if not empty.
    pub accept_content_types: String,
    /// `Content-Type` of requests.
    pub content_type: String,
    /// Requests per second; negative means no limit.
    pub qps: f32,
    /// Requests that may exceed `qps` for a short time.
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

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text.
    #[default]
    Text,
    /// One JSON object per line.
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
    /// Base name of a source file; may contain `*` and `?`.
    pub file_pattern: String,
    /// The verbosity for these files.
    pub verbosity: u32,
}

/// Output options of one log format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputOptions {
    /// Writes errors to stderr and the rest to stdout.
    pub split_stream: bool,
    /// Bytes to buffer, as a Kubernetes quantity.
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
    /// The masquerade bit of the packet mark, 0 to 31.
    pub masquerade_bit: u8,
    /// Masquerades all cluster-IP traffic.
    pub masquerade_all: bool,
    /// Opens node ports on loopback addresses.
    pub localhost_node_ports: bool,
    /// The longest time between two full syncs.
    pub sync_period: Duration,
    /// The shortest time between two syncs.
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
    /// The longest time between two full syncs.
    pub sync_period: Duration,
    /// The shortest time between two syncs.
    pub min_sync_period: Duration,
    /// The scheduler; empty means `rr`.
    pub scheduler: String,
    /// Virtual servers inside these CIDRs are left alone.
    pub exclude_cidrs: Vec<IpNet>,
    /// Enables strict ARP replies (`arp_ignore`, `arp_announce`).
    pub strict_arp: bool,
    /// Timeout of idle TCP connections; zero leaves the kernel's value.
    pub tcp_timeout: Duration,
    /// Timeout of TCP connections after FIN; zero leaves the kernel's value.
    pub tcp_fin_timeout: Duration,
    /// Timeout of idle UDP flows; zero leaves the kernel's value.
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
    /// The masquerade bit of the packet mark, 0 to 31.
    pub masquerade_bit: u8,
    /// Masquerades all cluster-IP traffic.
    pub masquerade_all: bool,
    /// The longest time between two full syncs.
    pub sync_period: Duration,
    /// The shortest time between two syncs; zero means no limit.
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
    /// Enables direct server return.
    pub enable_dsr: bool,
    /// Name of the root endpoint.
    pub root_hns_endpoint_name: String,
    /// Forwards the health check address.
    pub forward_health_check_vip: bool,
}

/// The interface names for two modes of local detection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DetectLocal {
    /// Name of the bridge.
    pub bridge_interface: String,
    /// Prefix of the interfaces' names.
    pub interface_name_prefix: String,
}

/// The section of fields that kube-proxy does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portolan {
    /// Path of the Unix socket on which commands ask the running proxy. Empty means none.
    pub control_socket: String,
    /// Name or number of the group that may use the control socket besides its owner. Empty means none.
    pub control_socket_group: String,
    /// Serves `/debug/portolan/` on the metrics port even if other hosts can reach it.
    pub state_on_any_address: bool,
    /// Bytes that the history of the last syncs takes at most; zero means none. See [`RECORDER_BYTES`](super::RECORDER_BYTES).
    pub recorder_bytes: i32,
    /// Counts connections of each Service port and endpoint, and refusals, in modes that do not always count.
    pub service_counters: bool,
    /// Sets endpoints aside for a while if TCP connections to them fail, in modes that do not do so anyway.
    pub passive_health_checks: bool,
    /// How many Service ports have metrics at most: those with the most connections. Zero means none.
    pub service_metrics: i32,
}

impl Default for Portolan {
    fn default() -> Self {
        Self {
            control_socket: super::CONTROL_SOCKET.to_owned(),
            control_socket_group: String::new(),
            state_on_any_address: false,
            recorder_bytes: super::RECORDER_BYTES,
            service_counters: false,
            passive_health_checks: false,
            service_metrics: 0,
        }
    }
}

/// Conntrack settings. Zero leaves the kernel's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conntrack {
    /// Tracked connections for each CPU.
    pub max_per_core: i32,
    /// The minimum number of tracked connections.
    pub min: i32,
    /// Timeout of idle established TCP connections.
    pub tcp_established_timeout: Duration,
    /// Timeout of TCP connections in CLOSE-WAIT.
    pub tcp_close_wait_timeout: Duration,
    /// Accepts out-of-window segments as valid.
    pub tcp_be_liberal: bool,
    /// Timeout of one-way UDP flows.
    pub udp_timeout: Duration,
    /// Timeout of two-way UDP flows.
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
