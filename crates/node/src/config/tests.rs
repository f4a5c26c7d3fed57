use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Debug;

use super::*;

mod document;
mod own;
mod written;

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn read(body: &str) -> Result<Configuration, ConfigError> {
    parse(&format!("{HEAD}{body}"))
}

fn good(body: &str) -> Configuration {
    read(body).unwrap_or_else(|error| panic!("{body}\n{error}"))
}

/// Returns the errors as text, one per line, without their places.
fn mistakes(body: &str) -> String {
    match read(body) {
        Err(ConfigError::Invalid(errors)) => {
            let reported = errors.iter().map(|error| format!("{}: {}", error.path, error.problem));
            reported.collect::<Vec<_>>().join("\n")
        }
        Err(error) => panic!("{body}\n{error}"),
        Ok(_) => panic!("{body}\nis accepted"),
    }
}

thread_local! {
    /// Paths of the fields that this thread has tested.
    static TESTED: RefCell<BTreeSet<String>> = RefCell::default();
}

fn tested(path: &str) {
    TESTED.with_borrow_mut(|paths| paths.insert(path.to_owned()));
}

#[test]
fn every_field_is_tested() {
    every_switch();
    every_free_text();
    every_duration();
    every_whole_number();
    the_other_connection_and_logging_fields();
    addresses();
    the_node_name();
    the_control_socket();
    the_size_of_the_history();
    the_number_of_service_ports_with_metrics();
    modes();
    cidrs();
    node_port_addresses();
    the_alpha_options_of_logging();
    own::the_sections_of_portolan();
    document::the_head_is_required();
    let known: BTreeSet<String> = fields().iter().map(|field| field.path.to_owned()).collect();
    assert_eq!(TESTED.take(), known);
    assert_eq!(known.len(), fields().len(), "a field is there twice");
}

/// Returns a YAML document with a value at a dotted path.
fn yaml(path: &str, value: &str) -> String {
    let mut text = String::new();
    let parts: Vec<&str> = path.split('.').collect();
    for (depth, part) in parts.iter().enumerate() {
        let indent = "  ".repeat(depth);
        let end = if depth + 1 == parts.len() { format!(" {value}\n") } else { "\n".into() };
        text.extend([indent.as_str(), part, ":", end.as_str()]);
    }
    text
}

/// Tests one field: its default, some values with their meaning, and bad values with a part of their message.
#[allow(clippy::needless_pass_by_value, reason = "calls read better without `&`")]
fn field<T: PartialEq + Debug>(
    path: &str,
    get: impl Fn(Configuration) -> T,
    default: T,
    set: &[(&str, T)],
    bad: &[(&str, &str)],
) {
    tested(path);
    assert_eq!(get(good("")), default, "default of {path}");
    assert_eq!(get(good(&yaml(path, "null"))), default, "{path}: null");
    for (value, want) in set {
        assert_eq!(get(good(&yaml(path, value))), *want, "{path}: {value}");
    }
    for (value, part) in bad {
        let got = mistakes(&yaml(path, value));
        assert!(got.starts_with(path) && got.contains(part), "{path}: {value} gives\n{got}");
        assert_eq!(got.lines().count(), 1, "{path}: {value} gives\n{got}");
    }
}

fn boolean(path: &str, get: impl Fn(Configuration) -> bool, default: bool) {
    let set = [("true", true), ("false", false), ("yes", true), ("off", false)];
    field(path, get, default, &set, &[("1", "true or false"), ("\"maybe\"", "true or false")]);
}

fn text_field(path: &str, get: impl Fn(Configuration) -> String, default: &str) {
    let set = [("abc", "abc".to_owned()), ("\"1\"", "1".to_owned()), ("\"\"", default.to_owned())];
    field(path, get, default.to_owned(), &set, &[("1", "quotes"), ("[a]", "a list is not a text")]);
}

fn duration(path: &str, get: impl Fn(Configuration) -> Duration, default: Duration, zero: Duration) {
    let set = [
        ("5s", Duration::from_secs(5)),
        ("\"2.5s\"", Duration::from_millis(2500)),
        ("0s", zero),
        ("0", zero),
        ("\"0\"", zero),
    ];
    let bad = [
        ("5", "`5`: not a duration"),
        ("5 s", "`5 s`: not a duration"),
        ("-5s", "negative"),
        ("9999999h", "longer than"),
        ("true", "`true` is not a duration"),
    ];
    field(path, get, default, &set, &bad);
}

fn integer(path: &str, get: impl Fn(Configuration) -> i64, default: i64, range: (i64, i64)) {
    let (low, high) = (range.0.to_string(), range.1.to_string());
    let (below, above) = ((range.0 - 1).to_string(), (range.1 + 1).to_string());
    let set = [("7", 7), (high.as_str(), range.1)];
    let message = format!("out of range; write {low} to {high}");
    let bad = [
        (below.as_str(), message.as_str()),
        (above.as_str(), message.as_str()),
        ("\"7\"", "the text `7` is not a whole number"),
        ("7.5", "not a whole number"),
    ];
    field(path, get, default, &set, &bad);
}

const INT32: i64 = i32::MAX as i64;
const ZERO: Duration = Duration::ZERO;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn every_switch() {
    boolean("bindAddressHardFail", |c| c.bind_address_hard_fail, false);
    boolean("enableProfiling", |c| c.enable_profiling, false);
    boolean("windowsRunAsService", |c| c.windows_run_as_service, false);
    boolean("iptables.masqueradeAll", |c| c.iptables.masquerade_all, false);
    boolean("iptables.localhostNodePorts", |c| c.iptables.localhost_node_ports, true);
    boolean("ipvs.strictARP", |c| c.ipvs.strict_arp, false);
    boolean("nftables.masqueradeAll", |c| c.nftables.masquerade_all, false);
    boolean("winkernel.enableDSR", |c| c.winkernel.enable_dsr, false);
    boolean("winkernel.forwardHealthCheckVip", |c| c.winkernel.forward_health_check_vip, false);
    boolean("conntrack.tcpBeLiberal", |c| c.conntrack.tcp_be_liberal, false);
    boolean("portolan.stateOnAnyAddress", |c| c.portolan.state_on_any_address, false);
    boolean("portolan.serviceCounters", |c| c.portolan.service_counters, false);
    boolean("portolan.passiveHealthChecks", |c| c.portolan.passive_health_checks, false);
}

#[test]
fn every_free_text() {
    text_field("clientConnection.kubeconfig", |c| c.client_connection.kubeconfig, "");
    text_field("clientConnection.acceptContentTypes", |c| c.client_connection.accept_content_types, "");
    let protobuf = "application/vnd.kubernetes.protobuf";
    text_field("clientConnection.contentType", |c| c.client_connection.content_type, protobuf);
    text_field("portRange", |c| c.port_range, "");
    text_field("ipvs.scheduler", |c| c.ipvs.scheduler, "");
    text_field("winkernel.networkName", |c| c.winkernel.network_name, "");
    text_field("winkernel.sourceVip", |c| c.winkernel.source_vip, "");
    text_field("winkernel.rootHnsEndpointName", |c| c.winkernel.root_hns_endpoint_name, "");
    text_field("detectLocal.bridgeInterface", |c| c.detect_local.bridge_interface, "");
    text_field("detectLocal.interfaceNamePrefix", |c| c.detect_local.interface_name_prefix, "");
    text_field("portolan.controlSocketGroup", |c| c.portolan.control_socket_group, "");
}

#[test]
fn every_duration() {
    duration("iptables.syncPeriod", |c| c.iptables.sync_period, seconds(30), seconds(30));
    duration("ipvs.syncPeriod", |c| c.ipvs.sync_period, seconds(30), seconds(30));
    duration("nftables.syncPeriod", |c| c.nftables.sync_period, seconds(30), seconds(30));
    // An explicit zero stays zero.
    duration("iptables.minSyncPeriod", |c| c.iptables.min_sync_period, seconds(1), ZERO);
    duration("ipvs.minSyncPeriod", |c| c.ipvs.min_sync_period, ZERO, ZERO);
    duration("nftables.minSyncPeriod", |c| c.nftables.min_sync_period, seconds(1), ZERO);
    duration("ipvs.tcpTimeout", |c| c.ipvs.tcp_timeout, ZERO, ZERO);
    duration("ipvs.tcpFinTimeout", |c| c.ipvs.tcp_fin_timeout, ZERO, ZERO);
    duration("ipvs.udpTimeout", |c| c.ipvs.udp_timeout, ZERO, ZERO);
    let day = seconds(24 * 3600);
    duration("conntrack.tcpEstablishedTimeout", |c| c.conntrack.tcp_established_timeout, day, ZERO);
    duration("conntrack.tcpCloseWaitTimeout", |c| c.conntrack.tcp_close_wait_timeout, seconds(3600), ZERO);
    duration("udpIdleTimeout", |c| c.udp_idle_timeout, ZERO, ZERO);
    duration("conntrack.udpTimeout", |c| c.conntrack.udp_timeout, ZERO, ZERO);
    duration("conntrack.udpStreamTimeout", |c| c.conntrack.udp_stream_timeout, ZERO, ZERO);
    duration("configSyncPeriod", |c| c.config_sync_period, seconds(900), seconds(900));
}

#[test]
fn every_whole_number() {
    integer("iptables.masqueradeBit", |c| c.iptables.masquerade_bit.into(), 14, (0, 31));
    integer("nftables.masqueradeBit", |c| c.nftables.masquerade_bit.into(), 14, (0, 31));
    integer("oomScoreAdj", |c| c.oom_score_adj.into(), -999, (-1000, 1000));
    integer("conntrack.maxPerCore", |c| c.conntrack.max_per_core.into(), 32768, (0, INT32));
    integer("conntrack.min", |c| c.conntrack.min.into(), 131_072, (0, INT32));
    integer("clientConnection.burst", |c| c.client_connection.burst.into(), 10, (0, INT32));
    integer("logging.verbosity", |c| c.logging.verbosity.into(), 0, (0, INT32));
    assert_eq!(good("clientConnection: {burst: 0}").client_connection.burst, 10, "zero means unset");
    assert_eq!(good("conntrack: {maxPerCore: 0, min: 0}").conntrack.max_per_core, 0, "zero means zero");
}

#[test]
fn the_other_connection_and_logging_fields() {
    let set = [("50", 50.0), ("0.5", 0.5), ("-1", -1.0), ("0", 5.0)];
    let bad = [("fast", "not a number"), ("1e300", "not a number")];
    field("clientConnection.qps", |c| c.client_connection.qps, 5.0, &set, &bad);
    let set = [("json", LogFormat::Json), ("text", LogFormat::Text), ("\"\"", LogFormat::Text)];
    let bad = [("xml", "`xml` is not supported; write one of: text, json")];
    field("logging.format", |c| c.logging.format, LogFormat::Text, &set, &bad);
    let set = [("1s", seconds(1)), ("2000000000", seconds(2)), ("0", seconds(5))];
    let bad = [("-1", "negative"), ("-1s", "negative"), ("x", "not a duration")];
    field("logging.flushFrequency", |c| c.logging.flush_frequency, seconds(5), &set, &bad);
    let path = "logging.vmodule";
    let item = VmoduleItem { file_pattern: "proxy*".into(), verbosity: 4 };
    let set = [("[{filePattern: proxy*, verbosity: 4}]", vec![item]), ("[]", vec![])];
    let bad = [
        ("[{filePattern: a=b}]", "logging.vmodule[0].filePattern: `a=b` is not a file pattern"),
        ("[{filePattern: a, level: 1}]", "logging.vmodule[0].level: unknown field"),
        ("[1]", "logging.vmodule[0]: `1` is not a mapping"),
        ("{a: 1}", "a mapping is not a list"),
    ];
    field(path, |c| c.logging.vmodule, vec![], &set, &bad);
    assert!(mistakes("logging: {format: json, vmodule: [{filePattern: a}]}").contains("format text"));
    let gates = [("ComponentFlagz".into(), false), ("NativeHistograms".into(), true)];
    let set = [("{NativeHistograms: true, ComponentFlagz: false}", BTreeMap::from(gates))];
    let bad = [
        ("{A: 1}", "featureGates.A: `1` is not true or false"),
        ("[A]", "a list is not a mapping"),
        ("{NoSuchGate: true}", "featureGates.NoSuchGate: unrecognized feature gate"),
        ("{NFTablesProxyMode: false}", "featureGates.NFTablesProxyMode: cannot be set to false"),
    ];
    field("featureGates", |c| c.feature_gates, BTreeMap::new(), &set, &bad);
    let set = [("\"1.35\"", "1.35".to_owned())];
    let bad = [("\"1.34\"", "write one of: 1.35"), ("1.35", "quotes")];
    field("showHiddenMetricsForVersion", |c| c.show_hidden_metrics_for_version, String::new(), &set, &bad);
}

#[test]
fn addresses() {
    let ip = |text: &str| text.parse::<IpAddr>().expect("a test address");
    let set = [("10.0.0.1", ip("10.0.0.1")), ("010.0.0.1", ip("10.0.0.1")), ("\"\"", ip("0.0.0.0"))];
    let bad = [("\"[::]\"", "not an IP address"), ("10.0.0.1:80", "not an IP address"), ("4", "quotes")];
    field("bindAddress", |c| c.bind_address, ip("0.0.0.0"), &set, &bad);
    let at = |text: &str| Some(text.parse::<SocketAddr>().expect("a test address"));
    let bad =
        [("a:1", "is not IP:port"), ("1.2.3.4:0", "from 1 to 65535"), ("1.2.3.4:65536", "is not IP:port")];
    let set = [
        ("1.2.3.4", at("1.2.3.4:10256")),
        ("\"::\"", at("[::]:10256")),
        ("1.2.3.4:5", at("1.2.3.4:5")),
        ("\"\"", at("0.0.0.0:10256")),
    ];
    field("healthzBindAddress", |c| c.healthz_bind_address, at("0.0.0.0:10256"), &set, &bad);
    let set = [("1.2.3.4", at("1.2.3.4:10249")), ("\"[::1]:5\"", at("[::1]:5"))];
    field("metricsBindAddress", |c| c.metrics_bind_address, at("127.0.0.1:10249"), &set, &bad);
    let v6 = good("bindAddress: \"fd00::1\"");
    assert_eq!((v6.healthz_bind_address, v6.metrics_bind_address), (at("[::]:10256"), at("[::1]:10249")));
}

#[test]
fn the_node_name() {
    let name = |text: &str| Some(text.to_owned());
    let set = [("Node-A", name("node-a")), ("\"  B \"", name("b")), ("\"\"", None)];
    let bad = [("\"  \"", "only blanks"), ("5", "quotes")];
    field("hostnameOverride", |c| c.hostname_override, None, &set, &bad);
    assert_eq!(good("").node_name(" Host.Example\n").as_deref(), Ok("host.example"));
    assert_eq!(good("hostnameOverride: X").node_name("host").as_deref(), Ok("x"));
    assert!(good("").node_name(" ").is_err());
}

#[test]
fn the_control_socket() {
    let long = format!("/{}", "x".repeat(107));
    let set = [("/a/b", "/a/b".to_owned()), ("\"\"", String::new()), (&long[..107], long[..107].to_owned())];
    let bad = [("a/b", "`a/b` is not the path of a socket"), (&long, "at most 107 bytes"), ("5", "quotes")];
    field("portolan.controlSocket", |c| c.portolan.control_socket, CONTROL_SOCKET.to_owned(), &set, &bad);
}

#[test]
fn the_size_of_the_history() {
    let set = [("0", 0), ("65536", 65_536), ("67108864", 67_108_864)];
    let range = "is out of range; write 65536 to 67108864";
    let bad = [
        ("65535", range),
        ("67108865", "write 0 to 67108864"),
        ("-1", "out of range"),
        ("4Mi", "whole number"),
    ];
    field("portolan.recorderBytes", |c| c.portolan.recorder_bytes, RECORDER_BYTES, &set, &bad);
}

#[test]
fn the_number_of_service_ports_with_metrics() {
    let set = [("0", 0), ("50", 50), ("10000", 10_000)];
    let bad = [("10001", "write 0 to 10000"), ("-1", "out of range"), ("all", "whole number")];
    field("portolan.serviceMetrics", |c| c.portolan.service_metrics, 0, &set, &bad);
}

#[test]
fn modes() {
    let set = [
        ("nftables", Some(Mode::Nftables)),
        ("iptables", Some(Mode::Iptables)),
        ("ipvs", Some(Mode::Ipvs)),
        ("userspace", Some(Mode::Userspace)),
        ("\"\"", None),
    ];
    let bad = [
        ("kernelspace", "`kernelspace` is not supported; write one of: nftables, iptables, ipvs, userspace"),
        ("NFTables", "not supported"),
    ];
    field("mode", |c| c.mode, None, &set, &bad);
    assert_eq!(good("").mode_or_default(), Mode::Iptables);
    let set = [
        ("\"\"", DetectLocalMode::ClusterCidr),
        ("ClusterCIDR", DetectLocalMode::ClusterCidr),
        ("NodeCIDR", DetectLocalMode::NodeCidr),
    ];
    let bad = [("Guess", "ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix")];
    field("detectLocalMode", |c| c.detect_local_mode, DetectLocalMode::ClusterCidr, &set, &bad);
    assert_eq!(
        mistakes("detectLocalMode: BridgeInterface"),
        "detectLocal.bridgeInterface: empty; detectLocalMode BridgeInterface needs it"
    );
    assert_eq!(
        mistakes("detectLocalMode: InterfaceNamePrefix"),
        "detectLocal.interfaceNamePrefix: empty; detectLocalMode InterfaceNamePrefix needs it"
    );
    for (name, is_right) in [
        ("abcdefghijklmno", true),
        ("abcdefghijklmnop", false),
        ("br-0.1@x", true),
        ("br 0", false),
        ("br/0", false),
        ("br:0", false),
        ("br+", false),
        ("br*", false),
        ("..", false),
        ("br\\u0007", false),
    ] {
        let text = format!("detectLocalMode: BridgeInterface\ndetectLocal: {{bridgeInterface: \"{name}\"}}");
        if is_right {
            assert_eq!(good(&text).detect_local.bridge_interface, name);
        } else {
            let wrong = mistakes(&text);
            assert!(
                wrong.contains("is not the name of an interface; write 1 to 15 bytes"),
                "{name}: {wrong}"
            );
        }
    }
    let prefix =
        |name| format!("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {{interfaceNamePrefix: {name}}}");
    good(&prefix("abcdefghijklmn"));
    let wrong = mistakes(&prefix("abcdefghijklmno"));
    assert!(
        wrong.contains("`abcdefghijklmno` is not the start of interfaces' names; write 1 to 14"),
        "{wrong}"
    );
    let bridge = good("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: br0}");
    assert_eq!(bridge.detect_local_mode, DetectLocalMode::BridgeInterface);
}

#[test]
fn cidrs() {
    let nets =
        |texts: &[&str]| texts.iter().map(|text| text.parse().expect("a CIDR")).collect::<Vec<IpNet>>();
    let set = [
        ("10.1.2.3/8", nets(&["10.0.0.0/8"])),
        ("\"fd00::/64,010.0.0.0/8\"", nets(&["fd00::/64", "10.0.0.0/8"])),
        ("\"\"", vec![]),
    ];
    let bad = [
        ("10.0.0.0", "is not a CIDR"),
        ("\"10.0.0.0/8, fd00::/64\"", "` fd00::/64` is not a CIDR"),
        ("10.0.0.0/8,", "`` is not a CIDR"),
        ("10.0.0.0/8,11.0.0.0/8", "two of different families"),
        ("10.0.0.0/8,fd00::/64,11.0.0.0/8", "two of different families"),
        ("[10.0.0.0/8]", "a list is not a text"),
    ];
    field("clusterCIDR", |c| c.cluster_cidrs, vec![], &set, &bad);
    let many = good("detectLocalMode: NodeCIDR\nclusterCIDR: 10.0.0.0/8,11.0.0.0/8").cluster_cidrs;
    assert_eq!(many.len(), 2, "the number matters in ClusterCIDR mode only");
    let set = [("[10.1.2.3/8]", nets(&["10.0.0.0/8"]))];
    let bad = [("[10.0.0.0/8, x]", "ipvs.excludeCIDRs[1]: `x`"), ("10.0.0.0/8", "is not a list")];
    field("ipvs.excludeCIDRs", |c| c.ipvs.exclude_cidrs, vec![], &set, &bad);
}

#[test]
fn node_port_addresses() {
    use NodePortAddresses as Setting;
    let net = |text: &str| text.parse::<IpNet>().expect("a CIDR");
    let set = [
        ("[]", Setting::Default),
        ("[primary]", Setting::Primary),
        ("[10.1.2.3/8, \"fd00::/8\"]", Setting::Cidrs(vec![net("10.0.0.0/8"), net("fd00::/8")])),
    ];
    let bad = [
        ("[primary, 10.0.0.0/8]", "nodePortAddresses[0]: `primary` cannot be mixed"),
        ("[10.0.0.0/8, nonsense]", "nodePortAddresses[1]: `nonsense` is not a CIDR"),
        ("[5]", "nodePortAddresses[0]: `5` is not a text"),
        ("primary", "is not a list"),
    ];
    field("nodePortAddresses", |c| c.node_port_addresses, Setting::Default, &set, &bad);
    assert_eq!(
        good("mode: nftables").node_port_addresses(),
        Setting::Primary,
        "what nftables means by nothing"
    );
    assert_eq!(good("").node_port_addresses(), Setting::Default);
    assert_eq!(good("mode: ipvs").node_port_addresses(), Setting::Default);
}

#[test]
fn periods_of_the_mode_in_use() {
    assert_eq!(
        mistakes("mode: nftables\nnftables: {syncPeriod: 1s, minSyncPeriod: 2s}"),
        "nftables.minSyncPeriod: 2s is above syncPeriod (1s); write at most that"
    );
    good("mode: ipvs\nnftables: {syncPeriod: 1s, minSyncPeriod: 2s}");
    assert_eq!(
        mistakes("mode: iptables\niptables: {minSyncPeriod: 1m}"),
        "iptables.minSyncPeriod: 1m0s is above syncPeriod (30s); write at most that"
    );
}

/// The kernel would refuse a longer one, and its value would stay.
#[test]
fn timeouts_of_ipvs_that_no_kernel_accepts() {
    let written = |field: &str, seconds: u32| format!("ipvs: {{{field}: {seconds}s}}");
    for field in ["tcpTimeout", "tcpFinTimeout", "udpTimeout"] {
        good(&written(field, 2_147_483));
        assert_eq!(
            mistakes(&written(field, 2_147_484)),
            format!("ipvs.{field}: 596h31m24s is longer than the kernel accepts; write at most 596h31m23s")
        );
    }
}

#[test]
fn the_alpha_options_of_logging() {
    let head = "featureGates: {LoggingAlphaOptions: true}\n";
    for format in ["text", "json"] {
        let options = |written: &str| format!("logging: {{options: {{{format}: {written}}}}}");
        let get = |c: Configuration| if format == "text" { c.logging.text } else { c.logging.json };
        let path = format!("logging.options.{format}");
        tested(&format!("{path}.splitStream"));
        tested(&format!("{path}.infoBufferSize"));
        assert_eq!(get(good("")), OutputOptions { split_stream: false, info_buffer_size: "0".into() });
        let table = [
            ("{splitStream: true}", true, "0"),
            ("{splitStream: off}", false, "0"),
            ("{infoBufferSize: 4Ki}", false, "4Ki"),
            ("{infoBufferSize: 4096}", false, "4096"),
            ("{infoBufferSize: null, splitStream: null}", false, "0"),
        ];
        for (written, split_stream, size) in table {
            let got = get(good(&format!("{head}{}", options(written))));
            assert_eq!(got, OutputOptions { split_stream, info_buffer_size: size.into() }, "{written}");
        }
        let bad = [
            ("{splitStream: 1}", "splitStream: `1` is not true or false"),
            ("{infoBufferSize: true}", "infoBufferSize: `true` is not a text"),
            ("{infoBufferSize: many}", "infoBufferSize: `many` is not a quantity"),
        ];
        for (written, part) in bad {
            let got = mistakes(&format!("{head}{}", options(written)));
            assert!(got.starts_with(&format!("{path}.{part}")), "{got}");
        }
        let got = mistakes(&options("{splitStream: true, infoBufferSize: 1}"));
        assert_eq!(got.matches("needs the feature gate LoggingAlphaOptions").count(), 2, "{got}");
        good(&options("{splitStream: false, infoBufferSize: 0Ki}"));
    }
    let got = mistakes("featureGates: {LoggingBetaOptions: false}\nlogging: {format: json}");
    assert!(got.starts_with("logging.format: needs the feature gate LoggingBetaOptions"), "{got}");
}
