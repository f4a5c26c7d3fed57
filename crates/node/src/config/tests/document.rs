use proptest::prelude::*;

use super::written::FULL;
use super::*;

#[test]
fn all_errors_are_reported_together() {
    let text =
        "kind: Config\nmode: fast\nnftables: {masqBit: 1, syncPeriod: 5}\nBindAddress: x\nconntrack: 4";
    let Err(ConfigError::Invalid(errors)) = parse(text) else { panic!("it is invalid") };
    insta::assert_snapshot!(errors, @r#"
    the configuration is invalid:
      apiVersion: missing; it must be `kubeproxy.config.k8s.io/v1alpha1`
      kind (line 1, column 1): `Config` is not supported; write one of: KubeProxyConfiguration
      mode (line 2, column 1): `fast` is not supported; write one of: nftables, iptables, ipvs, userspace
      nftables.syncPeriod (line 3, column 24): `5`: not a duration; write numbers with units, such as 30s, 1h30m or 250ms
      nftables.masqBit (line 3, column 12): unknown field; known fields here: masqueradeBit, masqueradeAll, syncPeriod, minSyncPeriod
      conntrack (line 5, column 1): `4` is not a mapping of fields
      BindAddress (line 4, column 1): unknown field; did you mean `bindAddress`?
    "#);
}

#[test]
pub(super) fn the_head_is_required() {
    tested("apiVersion");
    tested("kind");
    for (text, part) in [
        ("", "apiVersion: missing; it must be `kubeproxy.config.k8s.io/v1alpha1`"),
        ("kind: KubeProxyConfiguration", "apiVersion: missing"),
        (
            "apiVersion: v1\nkind: KubeProxyConfiguration",
            "apiVersion (line 1, column 1): `v1` is not supported",
        ),
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
fn a_field_without_a_name_is_reported() {
    let text = format!("{HEAD}\"\": 2\nnftables: {{\"\": 3}}");
    let Err(ConfigError::Invalid(errors)) = parse(&text) else { panic!("it is invalid") };
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let places = [r#"nftables."" (line 4, column 12): unknown"#, r#""" (line 3, column 1): unknown"#];
    assert!(texts.iter().zip(places).all(|(text, place)| text.starts_with(place)), "{texts:?}");
    assert_eq!(texts.len(), places.len());
}

#[test]
fn bad_yaml_is_reported_with_its_place() {
    for text in ["a: [", "a: \"x", "a: 1\n b: 2", "a: !!binary x\n"] {
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
    let mut c = Configuration { mode: Some(Mode::Nftables), ..Configuration::default() };
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

#[test]
fn repeated_fields_are_reported_and_hide_no_other_error() {
    let reported = |body: &str| read(body).expect_err(body).to_string();
    insta::assert_snapshot!(reported("mode: ipvs\nnftables:\n  syncPeriod: 1m\n  syncPeriod: 2m\noomScoreAdj: x"), @r"
    the configuration is invalid:
      nftables.syncPeriod (line 6, column 3): written twice; leave one of them
      oomScoreAdj (line 7, column 1): the text `x` is not a whole number
    ");
    insta::assert_snapshot!(reported("mode: ipvs\nmode: nftables"), @r"
    the configuration is invalid:
      mode (line 4, column 1): written twice; leave one of them
    ");
}

#[test]
fn every_repeated_field_is_reported() {
    let reported = |body: &str| read(body).expect_err(body).to_string();
    let sections = "iptables: {masqueradeBit: 1, masqueradeBit: 2}\nconntrack:\n  min: 1\n  max: 2\n  min: 3\n\
                    iptables: {masqueradeAll: x}";
    insta::assert_snapshot!(reported(sections), @r"
    the configuration is invalid:
      iptables.masqueradeBit (line 3, column 30): written twice; leave one of them
      conntrack.min (line 7, column 3): written twice; leave one of them
      iptables (line 8, column 1): written twice; leave one of them
      iptables.masqueradeAll (line 8, column 12): the text `x` is not true or false
    ");
    insta::assert_snapshot!(reported("mode: ipvs\nmode: fast\nmode: iptables"), @r"
    the configuration is invalid:
      mode (line 4, column 1): written twice; leave one of them
      mode (line 5, column 1): written twice; leave one of them
    ");
    let in_a_list = "logging:\n  vmodule:\n  - {filePattern: a, verbosity: 1, verbosity: 2}";
    insta::assert_snapshot!(reported(in_a_list), @r"
    the configuration is invalid:
      logging.vmodule[0].verbosity (line 5, column 36): written twice; leave one of them
    ");
    // Overriding a field of a merged anchor is not a repetition.
    let merged =
        "iptables: &base {masqueradeBit: 1, syncPeriod: 1m}\nnftables: {<<: *base, masqueradeBit: 3}";
    assert_eq!(good(merged).nftables.masquerade_bit, 3);
}

#[test]
fn places_are_those_of_names_and_of_elements() {
    let reported = |body: &str| read(body).expect_err(body).to_string();
    let list = "nodePortAddresses:\n- 10.0.0.0/8\n- nonsense\nipvs: {excludeCIDRs: [10.0.0.0/8,\n  x]}";
    insta::assert_snapshot!(reported(list), @r"
    the configuration is invalid:
      ipvs.excludeCIDRs[1] (line 7, column 3): `x` is not a CIDR; write an address and a prefix length, such as 10.0.0.0/16 or fd00::/64
      nodePortAddresses[1] (line 5, column 3): `nonsense` is not a CIDR; write an address and a prefix length, such as 10.0.0.0/16 or fd00::/64
    ");
    let json = "{\"apiVersion\": \"kubeproxy.config.k8s.io/v1alpha1\",\n \"kind\": \"KubeProxyConfiguration\",\n \
                \"clusterCidr\": \"10.0.0.0/8\"}";
    let error = parse(json).expect_err("a field in the wrong case").to_string();
    assert!(
        error.contains("clusterCidr (line 3, column 2): unknown field; did you mean `clusterCIDR`?"),
        "{error}"
    );
}

#[test]
fn fields_of_earlier_versions_are_reported_and_ignored() {
    let body = "udpIdleTimeout: 250ms\nresourceContainer: /kube-proxy\nconntrack: {max: null, min: 7}\n\
                logging: {sanitization: false}";
    let (configuration, notes) =
        super::super::document::parse(&format!("{HEAD}{body}")).expect("a file of an old cluster");
    assert_eq!(configuration.conntrack.min, 7);
    let reported: Vec<String> = notes.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(reported.join("\n"), @r"
    logging.sanitization (line 6, column 11): not part of v1alpha1 any more, and ignored; it can be deleted
    conntrack.max (line 5, column 13): not part of v1alpha1 any more, and ignored; it can be deleted
    udpIdleTimeout (line 3, column 1): not part of v1alpha1 any more, and ignored; it can be deleted
    resourceContainer (line 4, column 1): not part of v1alpha1 any more, and ignored; it can be deleted
    ");
    good(body);
}

#[test]
fn the_first_of_several_documents_is_read() {
    let text = format!("---\n{HEAD}mode: ipvs\n---\nmode: iptables\nnonsense: [\n");
    assert_eq!(parse(&text).expect("one good document").mode, Some(Mode::Ipvs));
    let second = "mode: iptables\n";
    for text in [
        format!("# comment\n%YAML 1.2\n---\n{HEAD}mode: ipvs\n...\n---\n{second}"),
        format!("\u{feff}---\n{HEAD}mode: ipvs\n--- # the next one\n{second}"),
        format!("{HEAD}mode: ipvs\n---\n{second}---\n{second}").replace('\n', "\r\n"),
        format!("{HEAD}metricsBindAddress: |-\n  ---\nmode: ipvs\n---\n{second}"),
    ] {
        let read = super::super::source::read(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(read.value["mode"], "ipvs", "{text}");
    }
    let error = parse(&format!("{HEAD}mod: ipvs\n---\na: 1\n")).expect_err("a mistake in the first");
    assert!(
        error.to_string().contains("mod (line 3, column 1): unknown field; did you mean `mode`?"),
        "{error}"
    );
}

#[test]
fn yaml_1_1_is_read_as_kube_proxy_reads_it() {
    for (word, want) in
        [("yes", true), ("No", false), ("ON", true), ("off", false), ("True", true), ("y", true)]
    {
        assert_eq!(good(&format!("bindAddressHardFail: {word}")).bind_address_hard_fail, want, "{word}");
    }
    assert_eq!(good("oomScoreAdj: 010").oom_score_adj, 8, "octal");
    assert_eq!(good("oomScoreAdj: 0x10").oom_score_adj, 16);
    assert_eq!(
        good("a: &a {syncPeriod: 7s}\nnftables: *a".replace("a: &a", "iptables: &a").as_str())
            .nftables
            .sync_period,
        seconds(7),
        "an alias"
    );
    assert!(mistakes("hostnameOverride: yes").contains("quotes"));
}

#[test]
fn periods_of_hours_are_accepted() {
    let c = good("iptables: {syncPeriod: 5h, minSyncPeriod: 2h}");
    assert_eq!(c.sync_periods(), (seconds(5 * 3600), seconds(2 * 3600)));
}

/// The file that kubeadm writes: it has every field, and most are empty.
const KUBEADM: &str = "
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection: {acceptContentTypes: \"\", burst: 0, contentType: \"\", kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null,
  tcpEstablishedTimeout: null, udpStreamTimeout: 0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: \"\", interfaceNamePrefix: \"\"}
detectLocalMode: \"\"
enableProfiling: false
healthzBindAddress: \"\"
hostnameOverride: \"\"
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: \"\", strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s,
  tcpTimeout: 0s, udpTimeout: 0s}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: \"0\"}, text: {infoBufferSize: \"0\"}}, verbosity: 0}
metricsBindAddress: \"\"
mode: \"\"
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: \"\"
showHiddenMetricsForVersion: \"\"
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: \"\", rootHnsEndpointName: \"\", sourceVip: \"\"}
";

#[test]
fn a_kubeadm_file_has_the_defaults() {
    let mut want = Configuration::default();
    want.client_connection.kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf".into();
    want.cluster_cidrs = vec!["10.244.0.0/16".parse().expect("a CIDR")];
    // A written zero stays zero.
    (want.iptables.min_sync_period, want.nftables.min_sync_period) = (ZERO, ZERO);
    assert_eq!(good(KUBEADM), want);
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
        if let Ok(configuration) = parse(&String::from_utf8_lossy(&bytes)) {
            let written = configuration.to_yaml();
            let again = parse(&written).map_err(|error| TestCaseError::fail(format!("{error}\n{written}")))?;
            prop_assert_eq!(again, configuration.effective());
        }
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

/// Returns the full document with one value replaced.
fn with_value(field: usize, value: &str) -> Option<String> {
    let text = format!("{HEAD}{FULL}");
    let (colon, _) = text.match_indices(": ").nth(field)?;
    let (head, tail) = text.split_at(colon + 2);
    let end = tail.find([',', '}', '\n']).unwrap_or(tail.len());
    Some(format!("{head}{value}{}", &tail[end..]))
}
