//! From text to [`Configuration`]: reads every field of v1alpha1.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use super::error::{ConfigError, FieldError, FieldErrors, Problem};
use super::reader::{
    Section, boolean, choice, cidr, duration, duration_or_nanoseconds, integer, ip, number, text,
};
use super::{
    ClientConnection, Configuration, Conntrack, DetectLocalMode, HEALTHZ_PORT, Iptables, Ipvs, LogFormat,
    Logging, METRICS_PORT, Mode, Nftables, OutputOptions, RECORDER_BYTES_MAX, SERVICE_METRICS_MAX,
    VmoduleItem, Winkernel, default_healthz, default_metrics, own, source, validate,
};
use crate::address::{self, NodePortAddresses};

/// The only version.
pub(super) const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The only kind that is a configuration.
pub(super) const KIND: &str = "KubeProxyConfiguration";

const MODES: &[(&str, Option<Mode>)] = &[
    ("", None),
    ("nftables", Some(Mode::Nftables)),
    ("iptables", Some(Mode::Iptables)),
    ("ipvs", Some(Mode::Ipvs)),
    ("userspace", Some(Mode::Userspace)),
];
const DETECT_LOCAL_MODES: &[(&str, DetectLocalMode)] = &[
    ("", DetectLocalMode::ClusterCidr),
    ("ClusterCIDR", DetectLocalMode::ClusterCidr),
    ("NodeCIDR", DetectLocalMode::NodeCidr),
    ("BridgeInterface", DetectLocalMode::BridgeInterface),
    ("InterfaceNamePrefix", DetectLocalMode::InterfaceNamePrefix),
];
const LOG_FORMATS: &[(&str, LogFormat)] =
    &[("", LogFormat::Text), ("text", LogFormat::Text), ("json", LogFormat::Json)];
const INT32_MAX: i64 = i32::MAX as i64;

/// Returns the configuration and the notes.
pub(super) fn parse(document: &str) -> Result<(Configuration, Vec<FieldError>), ConfigError> {
    let source = source::read(document)?;
    let mut errors = source.duplicates;
    let mut configuration = Configuration::default();
    Section::read_all(String::new(), source.value, &mut errors, |root| read(root, &mut configuration));
    // A field that could not be read has its default, so that no error is reported twice.
    errors.extend(validate::validate(&configuration));
    for error in &mut errors {
        error.place = error.place.or_else(|| source.places.get(&error.path).copied());
    }
    let (notes, errors) = errors.into_iter().partition(|error| error.problem == Problem::Former);
    FieldErrors::from_list(errors)?;
    Ok((configuration, notes))
}

fn read(root: &mut Section<'_>, c: &mut Configuration) {
    root.require("apiVersion", API_VERSION);
    root.require("kind", KIND);
    for (gate, value) in root.entries("featureGates") {
        match boolean(&value) {
            Ok(value) => drop(c.feature_gates.insert(gate, value)),
            Err(problem) => root.wrong(&format!("featureGates.{gate}"), problem),
        }
    }
    root.section("clientConnection", |s| client_connection(s, &mut c.client_connection));
    root.section("logging", |s| logging(s, &mut c.logging));
    addresses(root, c);
    root.read("enableProfiling", &mut c.enable_profiling, boolean);
    root.read("showHiddenMetricsForVersion", &mut c.show_hidden_metrics_for_version, text);
    root.read("mode", &mut c.mode, choice(MODES));
    root.section("iptables", |s| iptables(s, &mut c.iptables));
    root.section("ipvs", |s| ipvs(s, &mut c.ipvs));
    root.section("nftables", |s| nftables(s, &mut c.nftables));
    root.section("winkernel", |s| winkernel(s, &mut c.winkernel));
    root.read("detectLocalMode", &mut c.detect_local_mode, choice(DETECT_LOCAL_MODES));
    root.section("detectLocal", |s| {
        s.read("bridgeInterface", &mut c.detect_local.bridge_interface, text);
        s.read("interfaceNamePrefix", &mut c.detect_local.interface_name_prefix, text);
    });
    cluster_cidrs(root, c);
    node_port_addresses(root, c);
    root.read("oomScoreAdj", &mut c.oom_score_adj, integer(-1000, 1000));
    root.section("conntrack", |s| conntrack(s, &mut c.conntrack));
    root.read_unless_zero("configSyncPeriod", &mut c.config_sync_period, duration);
    root.read("portRange", &mut c.port_range, text);
    root.read("windowsRunAsService", &mut c.windows_run_as_service, boolean);
    root.section("addressGuard", |s| own::read_guard(s, &mut c.address_guard));
    root.section("readiness", |s| own::read_readiness(s, &mut c.readiness));
    root.section("portolan", |s| {
        s.read("controlSocket", &mut c.portolan.control_socket, text);
        s.read("controlSocketGroup", &mut c.portolan.control_socket_group, text);
        s.read("stateOnAnyAddress", &mut c.portolan.state_on_any_address, boolean);
        s.read("recorderBytes", &mut c.portolan.recorder_bytes, integer(0, RECORDER_BYTES_MAX.into()));
        s.read("serviceCounters", &mut c.portolan.service_counters, boolean);
        s.read("passiveHealthChecks", &mut c.portolan.passive_health_checks, boolean);
        s.read("serviceMetrics", &mut c.portolan.service_metrics, integer(0, SERVICE_METRICS_MAX.into()));
    });
    root.read("udpIdleTimeout", &mut c.udp_idle_timeout, duration);
    // Files of upgraded clusters often still have these fields.
    if !c.udp_idle_timeout.is_zero() && c.mode != Some(Mode::Userspace) {
        root.wrong("udpIdleTimeout", Problem::Former);
    }
    root.former("resourceContainer");
}

fn addresses(root: &mut Section<'_>, c: &mut Configuration) {
    let mut hostname = String::new();
    root.read("hostnameOverride", &mut hostname, text);
    if !hostname.is_empty()
        && let Err(FieldError { path, problem, .. }) = c.set_hostname_override(&hostname)
    {
        root.wrong(&path, problem);
    }
    let unset: IpAddr = c.bind_address;
    root.read("bindAddress", &mut c.bind_address, |value| match value {
        Value::String(text) if text.is_empty() => Ok(unset),
        value => ip(value),
    });
    c.healthz_bind_address = Some(default_healthz(c.bind_address));
    c.metrics_bind_address = Some(default_metrics(c.bind_address));
    bind_address(root, "healthzBindAddress", &mut c.healthz_bind_address, HEALTHZ_PORT);
    bind_address(root, "metricsBindAddress", &mut c.metrics_bind_address, METRICS_PORT);
    root.read("bindAddressHardFail", &mut c.bind_address_hard_fail, boolean);
}

/// An empty address leaves the default: a file cannot disable a server.
fn bind_address(root: &mut Section<'_>, name: &'static str, slot: &mut Option<SocketAddr>, port: u16) {
    root.read_unless_zero(name, slot, |value| match text(value)? {
        empty if empty.is_empty() => Ok(None),
        written => Ok(Some(address::parse_socket_address(&written, port)?)),
    });
}

fn client_connection(s: &mut Section<'_>, c: &mut ClientConnection) {
    s.read("kubeconfig", &mut c.kubeconfig, text);
    s.read("acceptContentTypes", &mut c.accept_content_types, text);
    s.read_unless_zero("contentType", &mut c.content_type, text);
    s.read_unless_zero("qps", &mut c.qps, number);
    s.read_unless_zero("burst", &mut c.burst, integer(0, INT32_MAX));
}

fn logging(s: &mut Section<'_>, c: &mut Logging) {
    s.read("format", &mut c.format, choice(LOG_FORMATS));
    s.read_unless_zero("flushFrequency", &mut c.flush_frequency, duration_or_nanoseconds);
    s.read("verbosity", &mut c.verbosity, integer(0, INT32_MAX));
    s.read_sections("vmodule", &mut c.vmodule, |s, item: &mut VmoduleItem| {
        s.read("filePattern", &mut item.file_pattern, text);
        s.read("verbosity", &mut item.verbosity, integer(0, INT32_MAX));
    });
    s.former("sanitization");
    s.section("options", |s| {
        s.section("text", |s| output_options(s, &mut c.text));
        s.section("json", |s| output_options(s, &mut c.json));
    });
}

fn output_options(s: &mut Section<'_>, c: &mut OutputOptions) {
    s.read("splitStream", &mut c.split_stream, boolean);
    // A quantity may be written as a number.
    s.read_unless_zero("infoBufferSize", &mut c.info_buffer_size, |value| match value {
        Value::Number(number) => Ok(number.to_string()),
        value => text(value),
    });
}

fn iptables(s: &mut Section<'_>, c: &mut Iptables) {
    s.read("masqueradeBit", &mut c.masquerade_bit, integer(0, 31));
    s.read("masqueradeAll", &mut c.masquerade_all, boolean);
    s.read("localhostNodePorts", &mut c.localhost_node_ports, boolean);
    s.read_unless_zero("syncPeriod", &mut c.sync_period, duration);
    s.read("minSyncPeriod", &mut c.min_sync_period, duration);
}

fn ipvs(s: &mut Section<'_>, c: &mut Ipvs) {
    s.read_unless_zero("syncPeriod", &mut c.sync_period, duration);
    s.read("minSyncPeriod", &mut c.min_sync_period, duration);
    s.read("scheduler", &mut c.scheduler, text);
    s.read_list("excludeCIDRs", &mut c.exclude_cidrs, cidr);
    s.read("strictARP", &mut c.strict_arp, boolean);
    s.read("tcpTimeout", &mut c.tcp_timeout, duration);
    s.read("tcpFinTimeout", &mut c.tcp_fin_timeout, duration);
    s.read("udpTimeout", &mut c.udp_timeout, duration);
}

fn nftables(s: &mut Section<'_>, c: &mut Nftables) {
    s.read("masqueradeBit", &mut c.masquerade_bit, integer(0, 31));
    s.read("masqueradeAll", &mut c.masquerade_all, boolean);
    s.read_unless_zero("syncPeriod", &mut c.sync_period, duration);
    s.read("minSyncPeriod", &mut c.min_sync_period, duration);
}

fn winkernel(s: &mut Section<'_>, c: &mut Winkernel) {
    s.read("networkName", &mut c.network_name, text);
    s.read("sourceVip", &mut c.source_vip, text);
    s.read("enableDSR", &mut c.enable_dsr, boolean);
    s.read("rootHnsEndpointName", &mut c.root_hns_endpoint_name, text);
    s.read("forwardHealthCheckVip", &mut c.forward_health_check_vip, boolean);
}

fn conntrack(s: &mut Section<'_>, c: &mut Conntrack) {
    s.former("max");
    s.read("maxPerCore", &mut c.max_per_core, integer(0, INT32_MAX));
    s.read("min", &mut c.min, integer(0, INT32_MAX));
    s.read("tcpEstablishedTimeout", &mut c.tcp_established_timeout, duration);
    s.read("tcpCloseWaitTimeout", &mut c.tcp_close_wait_timeout, duration);
    s.read("tcpBeLiberal", &mut c.tcp_be_liberal, boolean);
    s.read("udpTimeout", &mut c.udp_timeout, duration);
    s.read("udpStreamTimeout", &mut c.udp_stream_timeout, duration);
}

/// Reads a comma-separated text. Blanks around an element are an error, as upstream.
fn cluster_cidrs(root: &mut Section<'_>, c: &mut Configuration) {
    let mut written = String::new();
    root.read("clusterCIDR", &mut written, text);
    if written.is_empty() {
        return;
    }
    for element in written.split(',') {
        match address::parse_cidr(element) {
            Ok(cidr) => c.cluster_cidrs.push(cidr),
            Err(error) => root.wrong("clusterCIDR", error.into()),
        }
    }
}

fn node_port_addresses(root: &mut Section<'_>, c: &mut Configuration) {
    let items = root.take_list("nodePortAddresses");
    let mut cidrs = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let problem = match item.as_str() {
            Some("primary") if items.len() == 1 => {
                c.node_port_addresses = NodePortAddresses::Primary;
                return;
            }
            Some("primary") => Problem::PrimaryMixed,
            _ => match cidr(item) {
                Ok(cidr) => {
                    cidrs.push(cidr);
                    continue;
                }
                Err(problem) => problem,
            },
        };
        root.wrong(&format!("nodePortAddresses[{index}]"), problem);
    }
    if !cidrs.is_empty() {
        c.node_port_addresses = NodePortAddresses::Cidrs(cidrs);
    }
}
