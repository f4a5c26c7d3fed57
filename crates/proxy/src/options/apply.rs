//! Builds a configuration from the flags.

use std::net::SocketAddr;

use portolan_node::address::{self, NodePortAddresses};
use portolan_node::config::{
    Configuration, Conntrack, DetectLocalMode, FieldError, HEALTHZ_PORT, Ipvs, LogFormat, Logging,
    METRICS_PORT, Mode, Portolan, Problem, Taint, parse_condition, set_actions,
};

use super::flags::{FLAGS, Flag};
use super::given::Given;

const MODES: [Mode; 4] = [Mode::Nftables, Mode::Iptables, Mode::Ipvs, Mode::Userspace];
const LOCAL_MODES: [DetectLocalMode; 4] = [
    DetectLocalMode::ClusterCidr,
    DetectLocalMode::NodeCidr,
    DetectLocalMode::BridgeInterface,
    DetectLocalMode::InterfaceNamePrefix,
];

/// Returns the configuration of the flags, and an error for each invalid flag.
pub(super) fn configuration(given: &Given) -> (Configuration, Vec<FieldError>) {
    let mut errors = Vec::new();
    let mut c = Configuration {
        feature_gates: given.gates("feature-gates"),
        config_sync_period: given.duration("config-sync-period"),
        show_hidden_metrics_for_version: given.text("show-hidden-metrics-for-version"),
        bind_address_hard_fail: given.boolean("bind-address-hard-fail"),
        enable_profiling: given.boolean("profiling"),
        oom_score_adj: given.integer("oom-score-adj"),
        ..Configuration::default()
    };
    api_server(given, &mut c);
    c.bind_address = given.ip("bind-address").unwrap_or(c.bind_address);
    server(given, "healthz", HEALTHZ_PORT, &mut c.healthz_bind_address, &mut errors);
    server(given, "metrics", METRICS_PORT, &mut c.metrics_bind_address, &mut errors);
    c.node_port_addresses = node_port_addresses(given, &mut errors);
    modes(given, &mut c, &mut errors);
    local(given, &mut c, &mut errors);
    address_guard(given, &mut c, &mut errors);
    readiness(given, &mut c, &mut errors);
    conntrack(given, &mut c.conntrack);
    (c, errors)
}

/// Applies the given logging flags to the file's configuration.
pub(super) fn logging(given: &Given, c: &mut Logging, errors: &mut Vec<FieldError>) {
    if given.is_given("logging-format") {
        let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
        c.format =
            choice("logging-format", &given.text("logging-format"), &formats, errors).unwrap_or(c.format);
    }
    if given.is_given("log-flush-frequency") {
        c.flush_frequency = given.duration("log-flush-frequency");
    }
    if given.is_given("v") {
        c.verbosity = given.level("v");
    }
    let patterns = given.patterns("vmodule");
    c.vmodule.splice(0..0, patterns);
    for (format, options) in [("text", &mut c.text), ("json", &mut c.json)] {
        let split_stream = format!("log-{format}-split-stream");
        if given.is_given(&split_stream) {
            options.split_stream = given.boolean(&split_stream);
        }
        let buffer_size = format!("log-{format}-info-buffer-size");
        if given.is_given(&buffer_size) {
            options.info_buffer_size = given.text(&buffer_size);
        }
    }
}

/// Applies the given flags of the section that kube-proxy does not know to the file's configuration.
pub(super) fn portolan(given: &Given, c: &mut Portolan) {
    if given.is_given("control-socket") {
        c.control_socket = given.text("control-socket");
    }
    if given.is_given("control-socket-group") {
        c.control_socket_group = given.text("control-socket-group");
    }
    if given.is_given("state-on-any-address") {
        c.state_on_any_address = given.boolean("state-on-any-address");
    }
    if given.is_given("recorder-bytes") {
        c.recorder_bytes = given.integer("recorder-bytes");
    }
    if given.is_given("service-counters") {
        c.service_counters = given.boolean("service-counters");
    }
    if given.is_given("passive-health-checks") {
        c.passive_health_checks = given.boolean("passive-health-checks");
    }
    if given.is_given("service-metrics") {
        c.service_metrics = given.integer("service-metrics");
    }
}

/// Replaces the field in a configuration error with the name of its flag. With a file, only given flags count,
/// because the others have no effect.
pub(super) fn name_flag(given: &Given, error: FieldError) -> FieldError {
    let has_file = given.is_given("config");
    // The flags of the iptables mode set the fields of the nftables mode too.
    let field = if has_file { error.path.clone() } else { error.path.replace("nftables.", "iptables.") };
    let says = |flag: &&Flag| {
        let rest = field.strip_prefix(flag.field).filter(|_| !flag.field.is_empty());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let flags = FLAGS.iter().filter(|flag| !has_file || (flag.with_config && given.is_given(flag.name)));
    match flags.into_iter().find(says) {
        Some(flag) => {
            let rest = field.strip_prefix(flag.field).unwrap_or_default();
            FieldError { path: format!("--{}{rest}", flag.name), ..error }
        }
        None => error,
    }
}

/// Creates the error of an invalid flag.
fn wrong(flag: &str, problem: Problem) -> FieldError {
    FieldError { path: format!("--{flag}"), place: None, problem }
}

fn api_server(given: &Given, c: &mut Configuration) {
    let connection = &mut c.client_connection;
    connection.kubeconfig = given.text("kubeconfig");
    connection.content_type = given.non_empty("kube-api-content-type").unwrap_or_default();
    // Zero means the default, as in a file.
    let (qps, burst) = (given.number("kube-api-qps"), given.integer("kube-api-burst"));
    connection.qps = if qps == 0.0 { connection.qps } else { qps };
    connection.burst = if burst == 0 { connection.burst } else { burst };
}

/// Sets the address of one of the two servers. Its deprecated port flag fills in a missing port, or disables the
/// server with 0. The port flag is ignored with `--write-config-to`.
fn server(
    given: &Given,
    name: &str,
    default_port: u16,
    slot: &mut Option<SocketAddr>,
    errors: &mut Vec<FieldError>,
) {
    let port_flag = format!("{name}-port");
    let written = given.integer(&port_flag);
    let port = match u16::try_from(written) {
        _ if given.is_given("write-config-to") => default_port,
        Ok(port) => port,
        Err(_) => {
            let problem = Problem::OutOfRange { value: written.into(), minimum: 0, maximum: u16::MAX.into() };
            errors.push(wrong(&port_flag, problem));
            default_port
        }
    };
    if port == 0 {
        *slot = None;
    } else if let Some(at) = given.ip_port(&format!("{name}-bind-address")) {
        *slot = Some(at.or_port(port));
    }
}

fn node_port_addresses(given: &Given, errors: &mut Vec<FieldError>) -> NodePortAddresses {
    const FLAG: &str = "nodeport-addresses";
    let list = given.list(FLAG);
    match list.as_slice() {
        [] => return NodePortAddresses::Default,
        [only] if only == "primary" => return NodePortAddresses::Primary,
        _ => {}
    }
    if list.iter().any(|element| element == "primary") {
        errors.push(wrong(FLAG, Problem::PrimaryMixed));
    }
    let cidrs = list.iter().filter(|element| *element != "primary").map(String::as_str);
    NodePortAddresses::Cidrs(parse_cidrs(FLAG, cidrs, errors))
}

fn modes(given: &Given, c: &mut Configuration, errors: &mut Vec<FieldError>) {
    let modes = MODES.map(|mode| (mode.name(), mode));
    c.mode = given.non_empty("proxy-mode").and_then(|text| choice("proxy-mode", &text, &modes, errors));
    // One flag sets the fields of both modes.
    let masquerade_all = given.boolean("masquerade-all");
    (c.iptables.masquerade_all, c.nftables.masquerade_all) = (masquerade_all, masquerade_all);
    let bit = given.integer("iptables-masquerade-bit");
    if let Some(bit) = u8::try_from(bit).ok().filter(|bit| *bit < 32) {
        c.iptables.masquerade_bit = bit;
    } else {
        let problem = Problem::OutOfRange { value: bit.into(), minimum: 0, maximum: 31 };
        errors.push(wrong("iptables-masquerade-bit", problem));
    }
    c.iptables.localhost_node_ports = given.boolean("iptables-localhost-nodeports");
    let period = given.duration("iptables-sync-period");
    (c.iptables.sync_period, c.nftables.sync_period) = (period, period);
    let period = given.duration("iptables-min-sync-period");
    (c.iptables.min_sync_period, c.nftables.min_sync_period) = (period, period);
    // The flag's default differs from the file's.
    if c.mode == Some(Mode::Ipvs) || given.is_given("ipvs-min-sync-period") {
        c.ipvs.min_sync_period = given.duration("ipvs-min-sync-period");
    }
    ipvs(given, &mut c.ipvs, errors);
    c.port_range = given.text("proxy-port-range");
    c.udp_idle_timeout = given.duration("udp-timeout");
}

fn ipvs(given: &Given, c: &mut Ipvs, errors: &mut Vec<FieldError>) {
    c.sync_period = given.duration("ipvs-sync-period");
    c.scheduler = given.text("ipvs-scheduler");
    let exclude = given.list("ipvs-exclude-cidrs");
    c.exclude_cidrs = parse_cidrs("ipvs-exclude-cidrs", exclude.iter().map(String::as_str), errors);
    c.strict_arp = given.boolean("ipvs-strict-arp");
    c.tcp_timeout = given.duration("ipvs-tcp-timeout");
    c.tcp_fin_timeout = given.duration("ipvs-tcpfin-timeout");
    c.udp_timeout = given.duration("ipvs-udp-timeout");
}

fn local(given: &Given, c: &mut Configuration, errors: &mut Vec<FieldError>) {
    const FLAG: &str = "detect-local-mode";
    let modes = LOCAL_MODES.map(|mode| (mode.name(), mode));
    let mode = given.non_empty(FLAG).and_then(|text| choice(FLAG, &text, &modes, errors));
    c.detect_local_mode = mode.unwrap_or_default();
    c.detect_local.bridge_interface = given.text("pod-bridge-interface");
    c.detect_local.interface_name_prefix = given.text("pod-interface-name-prefix");
    // An empty flag means no CIDRs: a template writes it for an empty variable.
    let written = given.non_empty("cluster-cidr");
    let elements = written.as_deref().into_iter().flat_map(|text| text.split(','));
    c.cluster_cidrs = parse_cidrs("cluster-cidr", elements, errors);
}

fn address_guard(given: &Given, c: &mut Configuration, errors: &mut Vec<FieldError>) {
    let (flag, allowed) = ("address-guard", "address-guard-allowed");
    let actions = given.list(flag);
    if let Err(problem) = set_actions(&mut c.address_guard, actions.iter().map(String::as_str)) {
        errors.push(wrong(flag, problem));
    }
    c.address_guard.allowed = parse_cidrs(allowed, given.list(allowed).iter().map(String::as_str), errors);
}

fn readiness(given: &Given, c: &mut Configuration, errors: &mut Vec<FieldError>) {
    let (taint, condition) = ("readiness-taint", "readiness-condition");
    match given.non_empty(taint).map(|text| Taint::parse(&text)).transpose() {
        Ok(parsed) => c.readiness.taint = parsed,
        Err(problem) => errors.push(wrong(taint, problem)),
    }
    match given.non_empty(condition).map(|text| parse_condition(&text)).transpose() {
        Ok(parsed) => c.readiness.condition = parsed,
        Err(problem) => errors.push(wrong(condition, problem)),
    }
}

fn conntrack(given: &Given, c: &mut Conntrack) {
    c.max_per_core = given.integer("conntrack-max-per-core");
    c.min = given.integer("conntrack-min");
    c.tcp_established_timeout = given.duration("conntrack-tcp-timeout-established");
    c.tcp_close_wait_timeout = given.duration("conntrack-tcp-timeout-close-wait");
    c.tcp_be_liberal = given.boolean("conntrack-tcp-be-liberal");
    c.udp_timeout = given.duration("conntrack-udp-timeout");
    c.udp_stream_timeout = given.duration("conntrack-udp-timeout-stream");
}

fn parse_cidrs<'a>(
    flag: &str,
    texts: impl Iterator<Item = &'a str>,
    errors: &mut Vec<FieldError>,
) -> Vec<ipnet::IpNet> {
    let mut cidrs = Vec::new();
    for text in texts {
        match address::parse_cidr(text) {
            Ok(cidr) => cidrs.push(cidr),
            Err(error) => errors.push(wrong(flag, error.into())),
        }
    }
    cidrs
}

fn choice<T: Copy>(
    flag: &str,
    text: &str,
    words: &[(&'static str, T)],
    errors: &mut Vec<FieldError>,
) -> Option<T> {
    let found = words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
    if found.is_none() {
        let allowed = words.iter().map(|(word, _)| *word).collect();
        errors.push(wrong(flag, Problem::NotOneOf { value: text.to_owned(), allowed }));
    }
    found
}
