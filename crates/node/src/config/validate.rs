//! Rules that span several fields, and ranges that a command line could violate.

use std::time::Duration;

use ipnet::IpNet;

use super::duration::format_duration;
use super::error::{FieldError, Problem};
use super::{
    Configuration, DetectLocalMode, LogFormat, Mode, OutputOptions, RECORDER_BYTES_MAX, RECORDER_BYTES_MIN,
    SERVICE_METRICS_MAX, quantity,
};
use crate::address::{AddressError, Family};
use crate::gates::FeatureGates;

/// The minor version before the one that this program implements (v1.36).
const PREVIOUS_MINOR: &str = "1.35";

/// Bytes of the longest path of a Unix socket: `sun_path` (`unix(7)`) without its terminating zero.
const SOCKET_PATH_MAX: usize = 107;

pub(super) fn validate(c: &Configuration) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut wrong = |path: &str, problem| errors.push(FieldError::new(path, problem));
    gates(c, &mut wrong);
    ranges(c, &mut wrong);
    sync_periods(c, &mut wrong);
    ipvs_timeouts(c, &mut wrong);
    detect_local(c, &mut wrong);
    logging(c, &mut wrong);
    ports(c, &mut wrong);
    if c.mode == Some(Mode::Userspace)
        && let Err(FieldError { path, problem, .. }) = c.proxy_ports()
    {
        wrong(&path, problem);
    }
    let socket = &c.portolan.control_socket;
    if !socket.is_empty() && (!socket.starts_with('/') || socket.len() > SOCKET_PATH_MAX) {
        wrong("portolan.controlSocket", Problem::SocketPath { value: socket.clone() });
    }
    let bytes = c.portolan.recorder_bytes;
    if bytes != 0 && !(RECORDER_BYTES_MIN..=RECORDER_BYTES_MAX).contains(&bytes) {
        let (minimum, maximum) = (RECORDER_BYTES_MIN.into(), RECORDER_BYTES_MAX.into());
        wrong("portolan.recorderBytes", Problem::OutOfRange { value: bytes.into(), minimum, maximum });
    }
    let ports = c.portolan.service_metrics;
    if !(0..=SERVICE_METRICS_MAX).contains(&ports) {
        let problem =
            Problem::OutOfRange { value: ports.into(), minimum: 0, maximum: SERVICE_METRICS_MAX.into() };
        wrong("portolan.serviceMetrics", problem);
    }
    let version = &c.show_hidden_metrics_for_version;
    if !version.is_empty() && version != PREVIOUS_MINOR {
        let problem = Problem::NotOneOf { value: version.clone(), allowed: vec![PREVIOUS_MINOR] };
        wrong("showHiddenMetricsForVersion", problem);
    }
    if c.config_sync_period.is_zero() {
        wrong("configSyncPeriod", Problem::ZeroDuration);
    }
    errors
}

fn gates(c: &Configuration, wrong: &mut impl FnMut(&str, Problem)) {
    for (name, error) in FeatureGates::from_map(&c.feature_gates).err().into_iter().flatten() {
        wrong(&format!("featureGates.{name}"), error.into());
    }
}

fn ranges(c: &Configuration, wrong: &mut impl FnMut(&str, Problem)) {
    let table: [(&str, i64, i64, i64); 6] = [
        ("clientConnection.burst", c.client_connection.burst.into(), 0, i32::MAX.into()),
        ("iptables.masqueradeBit", c.iptables.masquerade_bit.into(), 0, 31),
        ("nftables.masqueradeBit", c.nftables.masquerade_bit.into(), 0, 31),
        ("oomScoreAdj", c.oom_score_adj.into(), -1000, 1000),
        ("conntrack.maxPerCore", c.conntrack.max_per_core.into(), 0, i32::MAX.into()),
        ("conntrack.min", c.conntrack.min.into(), 0, i32::MAX.into()),
    ];
    for (path, value, minimum, maximum) in table {
        if !(minimum..=maximum).contains(&value) {
            wrong(path, Problem::OutOfRange { value, minimum, maximum });
        }
    }
}

/// Checks the periods of the mode only, as upstream.
fn sync_periods(c: &Configuration, wrong: &mut impl FnMut(&str, Problem)) {
    let section = match c.mode_or_default() {
        Mode::Nftables => "nftables",
        Mode::Iptables | Mode::Userspace => "iptables",
        Mode::Ipvs => "ipvs",
    };
    let (sync, min) = c.sync_periods();
    if sync.is_zero() {
        wrong(&format!("{section}.syncPeriod"), Problem::ZeroDuration);
    }
    if min > sync {
        let problem = Problem::AboveSyncPeriod { min: format_duration(min), sync: format_duration(sync) };
        wrong(&format!("{section}.minSyncPeriod"), problem);
    }
}

/// The longest timeout of IPVS in seconds that every kernel accepts: `INT_MAX / HZ` at 1000 Hz (`ip_vs_set_timeout` in
/// `net/netfilter/ipvs/ip_vs_ctl.c`).
const IPVS_TIMEOUT_MAX: u64 = 2_147_483;

fn ipvs_timeouts(c: &Configuration, wrong: &mut impl FnMut(&str, Problem)) {
    let table = [
        ("ipvs.tcpTimeout", c.ipvs.tcp_timeout),
        ("ipvs.tcpFinTimeout", c.ipvs.tcp_fin_timeout),
        ("ipvs.udpTimeout", c.ipvs.udp_timeout),
    ];
    let longest = Duration::from_secs(IPVS_TIMEOUT_MAX);
    for (path, timeout) in table.into_iter().filter(|(_, timeout)| *timeout > longest) {
        let problem = Problem::TooLong { value: format_duration(timeout), longest: format_duration(longest) };
        wrong(path, problem);
    }
}

/// The most bytes of an interface's name: `IFNAMSIZ` of the kernel without the final zero.
const LONGEST_NAME: usize = 15;

fn detect_local(c: &Configuration, wrong: &mut impl FnMut(&str, Problem)) {
    let mode = c.detect_local_mode;
    let mut name = |field: &str, value: &str, what: &'static str, longest: usize| {
        if value.is_empty() {
            wrong(field, Problem::NeededByMode { mode: mode.name() });
        } else if value.len() > longest || !could_be_of_interface(value) {
            wrong(field, Problem::InterfaceName { value: value.to_owned(), what, longest });
        }
    };
    match mode {
        DetectLocalMode::BridgeInterface => {
            let value = &c.detect_local.bridge_interface;
            name("detectLocal.bridgeInterface", value, "the name of an interface", LONGEST_NAME);
        }
        DetectLocalMode::InterfaceNamePrefix => {
            let value = &c.detect_local.interface_name_prefix;
            // iptables writes a `+` behind it.
            name(
                "detectLocal.interfaceNamePrefix",
                value,
                "the start of interfaces' names",
                LONGEST_NAME - 1,
            );
        }
        DetectLocalMode::ClusterCidr if !one_cidr_per_family(&c.cluster_cidrs) => {
            let written: Vec<String> = c.cluster_cidrs.iter().map(IpNet::to_string).collect();
            wrong("clusterCIDR", Problem::OneCidrPerFamily { value: written.join(",") });
        }
        _ => {}
    }
}

/// Returns true if the kernel could accept the text as a part of an interface's name, and iptables does not read it as
/// something else.
fn could_be_of_interface(text: &str) -> bool {
    let is_forbidden = |c: char| matches!(c, '/' | ':') || c.is_whitespace() || c.is_control();
    !text.contains(is_forbidden) && !text.ends_with(['+', '*']) && !matches!(text, "." | "..")
}

fn one_cidr_per_family(cidrs: &[IpNet]) -> bool {
    match cidrs {
        [] | [_] => true,
        [first, second] => Family::of(first.network()) != Family::of(second.network()),
        _ => false,
    }
}

fn logging(c: &Configuration, wrong: &mut impl FnMut(&str, Problem)) {
    if c.logging.flush_frequency.is_zero() {
        wrong("logging.flushFrequency", Problem::ZeroDuration);
    }
    if c.logging.format != LogFormat::Text && !c.logging.vmodule.is_empty() {
        wrong("logging.vmodule", Problem::TextFormatOnly);
    }
    for (index, item) in c.logging.vmodule.iter().enumerate() {
        if item.file_pattern.is_empty() || item.file_pattern.contains(['=', ',']) {
            let problem = Problem::FilePattern { value: item.file_pattern.clone() };
            wrong(&format!("logging.vmodule[{index}].filePattern"), problem);
        }
    }
    let gates = c.gates();
    if c.logging.format == LogFormat::Json && !gates.enabled("LoggingBetaOptions") {
        wrong("logging.format", Problem::NeedsGate { gate: "LoggingBetaOptions" });
    }
    for (format, options) in [("text", &c.logging.text), ("json", &c.logging.json)] {
        let mut wrong = |field: &str, problem| wrong(&format!("logging.options.{format}.{field}"), problem);
        output_options(options, gates.enabled("LoggingAlphaOptions"), &mut wrong);
    }
}

fn output_options(options: &OutputOptions, alpha: bool, wrong: &mut impl FnMut(&str, Problem)) {
    let needs_gate = Problem::NeedsGate { gate: "LoggingAlphaOptions" };
    if options.split_stream && !alpha {
        wrong("splitStream", needs_gate.clone());
    }
    match quantity::is_zero(&options.info_buffer_size) {
        None => wrong("infoBufferSize", Problem::Quantity { value: options.info_buffer_size.clone() }),
        Some(false) if !alpha => wrong("infoBufferSize", needs_gate),
        Some(_) => {}
    }
}

/// A command line can set port 0.
fn ports(c: &Configuration, wrong: &mut impl FnMut(&str, Problem)) {
    let table =
        [("healthzBindAddress", c.healthz_bind_address), ("metricsBindAddress", c.metrics_bind_address)];
    for (path, address) in table {
        if let Some(address) = address.filter(|address| address.port() == 0) {
            wrong(path, AddressError::SocketAddress(address.to_string()).into());
        }
    }
}
