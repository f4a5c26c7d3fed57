use proptest::prelude::*;

use super::*;

/// A document that sets every field to a value other than its default.
pub(super) const FULL: &str = "
featureGates: {NFTablesProxyMode: true, LoggingAlphaOptions: true}
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
mode: userspace
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
udpIdleTimeout: 8s
windowsRunAsService: true
addressGuard: {clusterIPs: Warn, podCIDRs: Allow, nodeAddresses: Warn, serviceCIDRs: Refuse, clusterCIDR: Allow,
  allowed: [192.0.2.0/24]}
readiness: {taint: 'portolan.dev/agent-not-ready:NoSchedule', condition: ServicesUnavailable}
portolan: {controlSocket: /run/p.sock, controlSocketGroup: operators, stateOnAnyAddress: true, recorderBytes: 65536,
  serviceCounters: true, passiveHealthChecks: true, serviceMetrics: 50}
";

#[test]
fn a_written_configuration_reads_as_the_same() {
    for body in ["", "nodePortAddresses: [primary]", FULL] {
        let configuration = good(body);
        let written = configuration.to_v1alpha1();
        let again = parse(&written.to_string()).expect("what was written is valid");
        assert_eq!(again, configuration);
    }
    // Every field has a place in the output that has its value.
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

#[test]
fn the_written_file_of_the_defaults() {
    insta::assert_snapshot!(Configuration::default().to_yaml());
}

#[test]
fn written_files_of_the_modes_differ_in_few_lines() {
    let default = Configuration::default().to_yaml();
    let different = |mode: &str| {
        let written = good(&format!("mode: {mode}")).to_yaml();
        let lines = written.lines().filter(|line| !default.lines().any(|other| other == *line));
        lines.collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(different("nftables"), @r"
    mode: nftables
    nodePortAddresses:
    - primary
    ");
    assert_eq!(different("iptables"), "");
    insta::assert_snapshot!(different("ipvs"), @"mode: ipvs");
}

#[test]
fn the_written_file_of_everything() {
    let full = good(FULL);
    insta::assert_snapshot!(full.to_yaml());
    assert_eq!(parse(&full.to_yaml()).expect("what was written is valid"), full);
    let keys: Vec<String> = full
        .to_yaml()
        .lines()
        .filter(|line| !line.starts_with([' ', '-']))
        .filter_map(|line| Some(line.split_once(':')?.0.to_owned()))
        .collect();
    assert!(keys.is_sorted(), "{keys:?}");
}

/// Collects every leaf of the written object, with its text.
fn leaves(path: &str, value: &serde_json::Value, found: &mut BTreeMap<String, String>) {
    match value {
        serde_json::Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                leaves(&path, value, found);
            }
        }
        serde_json::Value::String(text) => drop(found.insert(path.to_owned(), text.clone())),
        serde_json::Value::Number(_) | serde_json::Value::Bool(_) => {
            found.insert(path.to_owned(), value.to_string());
        }
        _ => drop(found.insert(path.to_owned(), String::new())),
    }
}

#[test]
fn the_table_of_fields_has_every_field_and_its_default() {
    let mut written = BTreeMap::new();
    leaves("", &Configuration::default().to_v1alpha1(), &mut written);
    let table = fields().iter().map(|field| (field.path.to_owned(), field.default.to_owned()));
    let table: BTreeMap<String, String> = table.collect();
    assert_eq!(table, written);
    assert_eq!(table.len(), fields().len(), "a field is there twice");
    for field in fields() {
        assert!(field.doc.ends_with('.') && !field.kind.is_empty(), "{}", field.path);
    }
}

/// Compares `docs/reference/configuration.md` with the table. With `UPDATE=1` in the environment, writes the file.
#[test]
fn the_reference_page_is_made_from_the_table() {
    let mut page = String::from(PAGE_HEAD);
    for field in fields() {
        let default = if field.default.is_empty() { String::new() } else { format!("`{}`", field.default) };
        let row = [&format!("`{}`", field.path), field.kind, &default, field.rule, field.doc];
        page.extend(["| ", &row.join(" | "), " |\n"]);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/configuration.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("docs/reference");
        std::fs::write(&path, &page).expect("configuration.md");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == page,
        "docs/reference/configuration.md is not what the code says: run with UPDATE=1"
    );
}

const PAGE_HEAD: &str = "\
# Configuration file

`portolan-proxy --config FILE` reads a `KubeProxyConfiguration` of version `kubeproxy.config.k8s.io/v1alpha1`,
in YAML or JSON. This page is made from the code: `UPDATE=1 cargo test -p portolan-node reference_page`.

- A field that is left out, or `null`, has its default. All mistakes are reported together, each with the path of the field and
  its line and column. Unknown fields and fields that are written twice are mistakes; fields that earlier versions of
  v1alpha1 had are ignored with a warning.
- Durations are Go's: `30s`, `1h30m`, `250ms`, `0`. Addresses may have leading zeros, CIDRs host bits.
- `yes`, `no`, `on` and `off` are booleans. Of several documents the first is read.

| field | type | default | rule | meaning |
|---|---|---|---|---|
";

fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (1..100_000_000_000u64).prop_map(Duration::from_nanos),
        (1..100_000u64).prop_map(Duration::from_secs),
    ]
}

fn any_cidrs() -> impl Strategy<Value = Vec<IpNet>> {
    let v4 = (any::<[u8; 4]>(), 0..=32u8).prop_map(|(ip, length)| IpNet::new(IpAddr::from(ip), length));
    // Below 2000::/3, so that no address maps an IPv4 address.
    let v6 = (any::<[u8; 15]>(), 0..=128u8).prop_map(|(tail, length)| {
        let mut octets = [0x20; 16];
        octets.iter_mut().skip(1).zip(tail).for_each(|(octet, byte)| *octet = byte);
        IpNet::new(IpAddr::from(octets), length)
    });
    let net = prop_oneof![v4, v6].prop_map(|net| net.expect("a length in range").trunc());
    proptest::collection::vec(net, 0..4)
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9./-]{0,12}",
        "\\PC{0,12}",
        Just("yes".to_owned()),
        Just("0x1f".to_owned()),
        Just("~".to_owned())
    ]
}

prop_compose! {
    fn addresses()(
        hostname in "[a-z0-9.-]{1,20}", bind in any::<[u8; 4]>(), healthz in any::<([u8; 16], u16)>(),
        metrics in any::<([u8; 4], u16)>(), cidrs in any_cidrs(), node_ports in any_cidrs(), primary in any::<bool>(),
    ) -> Configuration {
        Configuration {
            hostname_override: Some(hostname),
            bind_address: bind.into(),
            // An IPv6 address that maps no IPv4 address.
            healthz_bind_address: Some((IpAddr::from(healthz.0).to_canonical(), healthz.1.max(1)).into()),
            metrics_bind_address: Some((metrics.0, metrics.1.max(1)).into()),
            detect_local_mode: DetectLocalMode::NodeCidr,
            cluster_cidrs: cidrs,
            node_port_addresses: match (primary, node_ports.is_empty()) {
                (true, _) => NodePortAddresses::Primary,
                (false, true) => NodePortAddresses::Default,
                (false, false) => NodePortAddresses::Cidrs(node_ports),
            },
            ..Configuration::default()
        }
    }
}

prop_compose! {
    fn sections()(
        base in addresses(), texts in [any_text(), any_text(), any_text(), any_text()], switches in any::<[bool; 8]>(),
        (bits, numbers) in ([0..=31u8, 0..=31u8], [0..=i32::MAX, 0..=i32::MAX, -1000..=1000]),
        periods in [duration(), duration(), duration(), duration(), duration(), duration()],
        qps in prop_oneof![-10.0..1000.0f32, Just(5.0)], mode in 0..4usize, exclude in any_cidrs(),
    ) -> Configuration {
        let mut c = base;
        c.mode = [None, Some(Mode::Nftables), Some(Mode::Iptables), Some(Mode::Ipvs)][mode];
        [c.client_connection.kubeconfig, c.port_range, c.ipvs.scheduler, c.detect_local.bridge_interface] = texts;
        c.client_connection.qps = if qps == 0.0 { 1.0 } else { qps };
        [c.conntrack.max_per_core, c.conntrack.min, c.oom_score_adj] = numbers;
        [c.iptables.masquerade_bit, c.nftables.masquerade_bit] = bits;
        [c.enable_profiling, c.bind_address_hard_fail, c.ipvs.strict_arp, c.conntrack.tcp_be_liberal,
            c.iptables.masquerade_all, c.nftables.masquerade_all, c.iptables.localhost_node_ports,
            c.windows_run_as_service] = switches;
        [c.iptables.sync_period, c.nftables.sync_period, c.ipvs.sync_period, c.config_sync_period,
            c.logging.flush_frequency, c.conntrack.udp_timeout] = periods;
        c.iptables.min_sync_period = c.iptables.sync_period;
        c.nftables.min_sync_period = ZERO;
        c.ipvs.exclude_cidrs = exclude;
        c.feature_gates.insert("ComponentFlagz".into(), switches[0]);
        c
    }
}

proptest! {
    #[test]
    fn a_written_file_loads_as_the_same(configuration in sections()) {
        let written = configuration.to_yaml();
        let again = parse(&written).map_err(|error| TestCaseError::fail(format!("{error}\n{written}")))?;
        prop_assert_eq!(&again, &configuration.effective());
        prop_assert_eq!(again.to_yaml(), written);
    }
}
