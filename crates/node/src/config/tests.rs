use std::fmt::Debug;

use proptest::prelude::*;

use super::*;

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn read(body: &str) -> Result<Configuration, ConfigError> {
    parse(&format!("{HEAD}{body}"))
}

fn good(body: &str) -> Configuration {
    read(body).unwrap_or_else(|error| panic!("{body}\n{error}"))
}

/// The mistakes as text, one a line.
fn mistakes(body: &str) -> String {
    match read(body) {
        Err(ConfigError::Invalid(errors)) => {
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        }
        Err(error) => panic!("{body}\n{error}"),
        Ok(_) => panic!("{body}\nis accepted"),
    }
}

/// A YAML document for a dotted path and a value.
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

/// One field: its default, some values and what they mean, and bad values with a part of their message.
#[allow(clippy::needless_pass_by_value)] // calls read better without `&`
fn field<T: PartialEq + Debug>(
    path: &str,
    get: impl Fn(Configuration) -> T,
    default: T,
    set: &[(&str, T)],
    bad: &[(&str, &str)],
) {
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
    boolean("logging.options.text.splitStream", |c| c.logging.text.split_stream, false);
    boolean("logging.options.json.splitStream", |c| c.logging.json.split_stream, false);
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
}

#[test]
fn every_duration() {
    duration("iptables.syncPeriod", |c| c.iptables.sync_period, seconds(30), seconds(30));
    duration("ipvs.syncPeriod", |c| c.ipvs.sync_period, seconds(30), seconds(30));
    duration("nftables.syncPeriod", |c| c.nftables.sync_period, seconds(30), seconds(30));
    // An explicit zero is what the operator asked for.
    duration("iptables.minSyncPeriod", |c| c.iptables.min_sync_period, seconds(1), ZERO);
    duration("ipvs.minSyncPeriod", |c| c.ipvs.min_sync_period, ZERO, ZERO);
    duration("nftables.minSyncPeriod", |c| c.nftables.min_sync_period, seconds(1), ZERO);
    duration("ipvs.tcpTimeout", |c| c.ipvs.tcp_timeout, ZERO, ZERO);
    duration("ipvs.tcpFinTimeout", |c| c.ipvs.tcp_fin_timeout, ZERO, ZERO);
    duration("ipvs.udpTimeout", |c| c.ipvs.udp_timeout, ZERO, ZERO);
    let day = seconds(24 * 3600);
    duration("conntrack.tcpEstablishedTimeout", |c| c.conntrack.tcp_established_timeout, day, ZERO);
    duration("conntrack.tcpCloseWaitTimeout", |c| c.conntrack.tcp_close_wait_timeout, seconds(3600), ZERO);
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
    let path = "logging.options.json.infoBufferSize";
    let set = [("4Ki", "4Ki".to_owned()), ("4096", "4096".to_owned())];
    field(path, |c| c.logging.json.info_buffer_size, "0".to_owned(), &set, &[("true", "not a text")]);
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
    let set = [("{A: true, B: false}", BTreeMap::from([("A".into(), true), ("B".into(), false)]))];
    let bad = [("{A: 1}", "featureGates.A: `1` is not true or false"), ("[A]", "a list is not a mapping")];
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
fn modes() {
    let set = [
        ("nftables", Some(Mode::Nftables)),
        ("iptables", Some(Mode::Iptables)),
        ("ipvs", Some(Mode::Ipvs)),
        ("\"\"", None),
    ];
    let bad = [
        ("userspace", "`userspace` is not supported; write one of: nftables, iptables, ipvs"),
        ("NFTables", "not supported"),
    ];
    field("mode", |c| c.mode, None, &set, &bad);
    assert_eq!(good("").mode_or_default(), Mode::Nftables);
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
    assert_eq!(good("").node_port_addresses(), Setting::Primary, "what nftables means by nothing");
    assert_eq!(good("mode: ipvs").node_port_addresses(), Setting::Default);
}

#[test]
fn periods_of_the_mode_in_use() {
    assert_eq!(
        mistakes("nftables: {syncPeriod: 1s, minSyncPeriod: 2s}"),
        "nftables.minSyncPeriod: 2s is above syncPeriod (1s); write at most that"
    );
    good("mode: ipvs\nnftables: {syncPeriod: 1s, minSyncPeriod: 2s}");
    assert_eq!(
        mistakes("mode: iptables\niptables: {minSyncPeriod: 1m}"),
        "iptables.minSyncPeriod: 1m0s is above syncPeriod (30s); write at most that"
    );
}

#[test]
fn every_mistake_is_told_at_once() {
    let text =
        "kind: Config\nmode: fast\nnftables: {masqBit: 1, syncPeriod: 5}\nBindAddress: x\nconntrack: 4";
    let Err(ConfigError::Invalid(errors)) = parse(text) else { panic!("it is invalid") };
    insta::assert_snapshot!(errors, @r#"
    the configuration is invalid:
      apiVersion: missing; it must be `kubeproxy.config.k8s.io/v1alpha1`
      kind: `Config` is not supported; write one of: KubeProxyConfiguration
      mode: `fast` is not supported; write one of: nftables, iptables, ipvs
      nftables.syncPeriod: `5`: not a duration; write numbers with units, such as 30s, 1h30m or 250ms
      nftables.masqBit: unknown field; known fields here: masqueradeBit, masqueradeAll, syncPeriod, minSyncPeriod
      conntrack: `4` is not a mapping of fields
      BindAddress: unknown field; known fields here: apiVersion, kind, featureGates, clientConnection, logging, hostnameOverride, bindAddress, healthzBindAddress, metricsBindAddress, bindAddressHardFail, enableProfiling, showHiddenMetricsForVersion, mode, iptables, ipvs, nftables, winkernel, detectLocalMode, detectLocal, clusterCIDR, nodePortAddresses, oomScoreAdj, conntrack, configSyncPeriod, portRange, windowsRunAsService
    "#);
}

#[test]
fn the_head_is_required() {
    for (text, part) in [
        ("", "apiVersion: missing; it must be `kubeproxy.config.k8s.io/v1alpha1`"),
        ("kind: KubeProxyConfiguration", "apiVersion: missing"),
        ("apiVersion: v1\nkind: KubeProxyConfiguration", "apiVersion: `v1` is not supported"),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1",
            "kind: missing; it must be `KubeProxyConfiguration`",
        ),
        ("- a", "the document: a list is not a mapping of fields"),
        ("just a text", "the document: the text `just a text` is not a mapping"),
    ] {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn bad_yaml_is_told_with_its_place() {
    for text in ["a: [", "a: 1\na: 2", "a: \"x", "a: 1\n---\nb: 2"] {
        let error = parse(text).expect_err(text);
        assert!(matches!(error, ConfigError::Syntax(_)), "{text}: {error}");
        assert!(error.to_string().contains("line "), "{text}: {error}");
    }
}

#[test]
fn json_is_read_too() {
    let text = "{\n\t\"apiVersion\": \"kubeproxy.config.k8s.io/v1alpha1\",\n\t\"kind\": \
                \"KubeProxyConfiguration\",\n\t\"mode\": \"ipvs\"\n}";
    assert_eq!(parse(text).expect("JSON with tabs").mode, Some(Mode::Ipvs));
}

#[test]
fn a_missing_file_is_named() {
    let error = load(Path::new("/nonexistent/config.yaml")).expect_err("no such file").to_string();
    assert!(error.starts_with("cannot read configuration file /nonexistent/config.yaml: "), "{error}");
}

#[test]
fn a_command_line_is_checked_by_the_same_rules() {
    assert!(Configuration::default().validate().is_ok());
    assert_eq!(Configuration::default(), good(""), "no flag and no field mean the same");
    let mut c = Configuration::default();
    c.nftables.masquerade_bit = 32;
    c.nftables.sync_period = ZERO;
    c.oom_score_adj = 2000;
    c.client_connection.burst = -1;
    c.metrics_bind_address = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let errors = c.validate().expect_err("five mistakes and what follows");
    let paths: Vec<&str> = errors.iter().map(|error| error.path.as_str()).collect();
    let want = [
        "clientConnection.burst",
        "nftables.masqueradeBit",
        "oomScoreAdj",
        "nftables.syncPeriod",
        "nftables.minSyncPeriod",
        "metricsBindAddress",
    ];
    assert_eq!(paths, want);
    assert!(c.set_hostname_override(" \t").is_err());
}

/// A document that sets every field to something other than its default.
const FULL: &str = "
featureGates: {NFTablesProxyMode: true}
clientConnection: {kubeconfig: /k, acceptContentTypes: a/b, contentType: c/d, qps: 7.5, burst: 8}
logging:
  format: text
  flushFrequency: 1s
  verbosity: 3
  vmodule: [{filePattern: a, verbosity: 2}]
  options: {text: {splitStream: true, infoBufferSize: 1Ki}, json: {splitStream: true, infoBufferSize: \"5\"}}
hostnameOverride: node-a
bindAddress: fd00::1
healthzBindAddress: 1.2.3.4:5
metricsBindAddress: '[::1]:6'
bindAddressHardFail: true
enableProfiling: true
showHiddenMetricsForVersion: '1.35'
mode: iptables
iptables: {masqueradeBit: 1, masqueradeAll: true, localhostNodePorts: false, syncPeriod: 2m, minSyncPeriod: 3s}
ipvs: {syncPeriod: 1m, minSyncPeriod: 2s, scheduler: rr, excludeCIDRs: [10.0.0.0/8], strictARP: true,
  tcpTimeout: 1s, tcpFinTimeout: 2s, udpTimeout: 3s}
nftables: {masqueradeBit: 2, masqueradeAll: true, syncPeriod: 9m, minSyncPeriod: 0s}
winkernel: {networkName: a, sourceVip: b, enableDSR: true, rootHnsEndpointName: c, forwardHealthCheckVip: true}
detectLocalMode: BridgeInterface
detectLocal: {bridgeInterface: br0, interfaceNamePrefix: veth}
clusterCIDR: 10.0.0.0/8,fd00::/64
nodePortAddresses: [10.0.0.0/8]
oomScoreAdj: 5
conntrack: {maxPerCore: 1, min: 2, tcpEstablishedTimeout: 3s, tcpCloseWaitTimeout: 4s, tcpBeLiberal: true,
  udpTimeout: 5s, udpStreamTimeout: 6s}
configSyncPeriod: 7s
portRange: 1-2
windowsRunAsService: true
";

#[test]
fn what_is_written_back_reads_as_the_same() {
    for body in ["", "nodePortAddresses: [primary]", FULL] {
        let configuration = good(body);
        let written = configuration.to_v1alpha1();
        let again = parse(&written.to_string()).expect("what was written is valid");
        assert_eq!(again, configuration);
    }
    // Every field has a place in the output that follows its value.
    let (default, full) = (good("").to_v1alpha1(), good(FULL).to_v1alpha1());
    let mut same = Vec::new();
    same_leaves("", &default, &full, &mut same);
    assert_eq!(same, [".apiVersion", ".kind", ".logging.format"]);
}

fn same_leaves(path: &str, left: &serde_json::Value, right: &serde_json::Value, same: &mut Vec<String>) {
    match (left.as_object(), right.as_object()) {
        (Some(left), Some(right)) => {
            for (name, value) in left {
                let other = right.get(name).unwrap_or(&serde_json::Value::Null);
                same_leaves(&format!("{path}.{name}"), value, other, same);
            }
        }
        _ if left == right => same.push(path.to_owned()),
        _ => {}
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC*|[-a-z0-9:\\[\\]{}#&*!|>'\"%@`,?\\n\\t ]{0,80}") {
        let _ = parse(&text);
        let _ = read(&text);
    }

    #[test]
    fn a_damaged_document_is_read_or_refused(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..8),
    ) {
        let mut bytes = format!("{HEAD}{FULL}").into_bytes();
        for (place, byte, kind) in edits {
            let place = place.index(bytes.len());
            match kind {
                0 => bytes[place] = byte,
                1 => drop(bytes.remove(place)),
                _ => bytes.insert(place, byte),
            }
        }
        let _ = parse(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn a_wrong_value_in_any_field_is_read_or_named(
        field in 0..200usize,
        value in prop_oneof!["[0-9a-f:./,smh-]{0,20}", Just("[]".to_owned()), Just("{a: [1]}".to_owned()),
            any::<i64>().prop_map(|n| n.to_string()), any::<f64>().prop_map(|n| n.to_string())],
    ) {
        let Some(text) = with_value(field, &value) else { return Ok(()) };
        if let Err(ConfigError::Invalid(errors)) = parse(&text) {
            prop_assert!(errors.iter().all(|error| !error.path.is_empty()));
        }
    }
}

/// The full document with one of its values replaced.
fn with_value(field: usize, value: &str) -> Option<String> {
    let text = format!("{HEAD}{FULL}");
    let (colon, _) = text.match_indices(": ").nth(field)?;
    let (head, tail) = text.split_at(colon + 2);
    let end = tail.find([',', '}', '\n']).unwrap_or(tail.len());
    Some(format!("{head}{value}{}", &tail[end..]))
}
