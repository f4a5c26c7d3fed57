use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use super::*;
use crate::address::Family;

mod exposition;

pub(crate) use exposition::read;

pub(crate) fn metrics() -> ProxyMetrics {
    ProxyMetrics::new(BuildInfo {
        git_commit: "abc".into(),
        ..BuildInfo::of_version("v1.36.2+portolan-0.1.0")
    })
}

#[test]
fn label_values_have_distinct_members() {
    fn check<L: Labels>() {
        let indexes: Vec<usize> = L::all().into_iter().map(Labels::index).collect();
        assert_eq!(indexes, (0..indexes.len()).collect::<Vec<_>>(), "{}", std::any::type_name::<L>());
        let texts: std::collections::BTreeSet<String> = L::all().into_iter().map(Labels::text).collect();
        assert_eq!(texts.len(), indexes.len());
    }
    check::<Family>();
    check::<(TrafficPolicy, Family)>();
    check::<(Family, labels::TableLabel)>();
    check::<labels::Code>();
    check::<Resource>();
    check::<ObjectKind>();
    check::<Reload>();
    check::<NodeWrite>();
}

#[test]
fn a_bound_belongs_to_its_bucket() {
    let histogram = Histogram::new(&[1.0, 2.0]);
    for value in [0.5, 1.0, 1.5, 2.0, 2.5] {
        histogram.observe(value);
    }
    let mut page = Page::default();
    histogram.collect("h", "", &mut page);
    insta::assert_snapshot!(page.into_text(), @r#"
    h_bucket{le="1"} 2
    h_bucket{le="2"} 4
    h_bucket{le="+Inf"} 5
    h_sum 7.5
    h_count 5
    "#);
}

#[test]
fn only_counters_that_begin_with_zero_are_shown_before_their_first_use() {
    let page = metrics().page();
    let page = page.replace(&format!("/{}", platform()), "/PLATFORM");
    insta::assert_snapshot!(page, @r#"
    # HELP disabled_metrics_total [BETA] Disabled metrics
    # TYPE disabled_metrics_total counter
    disabled_metrics_total 0
    # HELP hidden_metrics_total [BETA] Hidden metrics
    # TYPE hidden_metrics_total counter
    hidden_metrics_total 0
    # HELP kubeproxy_conntrack_reconciler_deleted_entries_total [ALPHA] Cumulative conntrack flows deleted by conntrack reconciler
    # TYPE kubeproxy_conntrack_reconciler_deleted_entries_total counter
    kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 0
    kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv6"} 0
    # HELP kubeproxy_proxy_healthz_total [ALPHA] Cumulative proxy healthz HTTP status
    # TYPE kubeproxy_proxy_healthz_total counter
    kubeproxy_proxy_healthz_total{code="200"} 0
    kubeproxy_proxy_healthz_total{code="503"} 0
    # HELP kubeproxy_proxy_livez_total [ALPHA] Cumulative proxy livez HTTP status
    # TYPE kubeproxy_proxy_livez_total counter
    kubeproxy_proxy_livez_total{code="200"} 0
    kubeproxy_proxy_livez_total{code="503"} 0
    # HELP kubeproxy_sync_proxy_rules_endpoint_changes_pending [ALPHA] Pending proxy rules Endpoint changes
    # TYPE kubeproxy_sync_proxy_rules_endpoint_changes_pending gauge
    kubeproxy_sync_proxy_rules_endpoint_changes_pending 0
    # HELP kubeproxy_sync_proxy_rules_endpoint_changes_total [ALPHA] Cumulative proxy rules Endpoint changes
    # TYPE kubeproxy_sync_proxy_rules_endpoint_changes_total counter
    kubeproxy_sync_proxy_rules_endpoint_changes_total 0
    # HELP kubeproxy_sync_proxy_rules_service_changes_pending [ALPHA] Pending proxy rules Service changes
    # TYPE kubeproxy_sync_proxy_rules_service_changes_pending gauge
    kubeproxy_sync_proxy_rules_service_changes_pending 0
    # HELP kubeproxy_sync_proxy_rules_service_changes_total [ALPHA] Cumulative proxy rules Service changes
    # TYPE kubeproxy_sync_proxy_rules_service_changes_total counter
    kubeproxy_sync_proxy_rules_service_changes_total 0
    # HELP kubernetes_build_info [ALPHA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.
    # TYPE kubernetes_build_info gauge
    kubernetes_build_info{build_date="",compiler="rustc",git_commit="abc",git_tree_state="",git_version="v1.36.2+portolan-0.1.0",go_version="",major="1",minor="36",platform="linux/PLATFORM"} 1
    # HELP portolan_build_info 1, with the version of Portolan
    # TYPE portolan_build_info gauge
    portolan_build_info{version="0.1.0"} 1
    # HELP portolan_config_last_reload_successful Whether the configuration in use is the one that was written last
    # TYPE portolan_config_last_reload_successful gauge
    portolan_config_last_reload_successful 1
    # HELP portolan_dataplane_drift_repairs_total Repairs of what another program changed in the kernel
    # TYPE portolan_dataplane_drift_repairs_total counter
    portolan_dataplane_drift_repairs_total 0
    # HELP portolan_leftover_removal_failures Failures of the last removal of what kube-proxy left; it is repeated while there are any
    # TYPE portolan_leftover_removal_failures gauge
    portolan_leftover_removal_failures 0
    # HELP portolan_passive_endpoints_aside Endpoints that are set aside at present because connections to them failed
    # TYPE portolan_passive_endpoints_aside gauge
    portolan_passive_endpoints_aside 0
    # HELP portolan_passive_set_aside_total How often endpoints were set aside because connections to them failed
    # TYPE portolan_passive_set_aside_total counter
    portolan_passive_set_aside_total 0
    # HELP portolan_programmed_and_verified 1 once everything was programmed and read back without a difference; only with readiness
    # TYPE portolan_programmed_and_verified gauge
    portolan_programmed_and_verified 0
    # HELP portolan_watch_empty_lists_held_total Empty lists, where objects were known, that were asked for again before they were believed
    # TYPE portolan_watch_empty_lists_held_total counter
    portolan_watch_empty_lists_held_total{resource="services"} 0
    portolan_watch_empty_lists_held_total{resource="endpointslices"} 0
    portolan_watch_empty_lists_held_total{resource="nodes"} 0
    portolan_watch_empty_lists_held_total{resource="servicecidrs"} 0
    # HELP portolan_watch_restarts_total Watches that ended early or could not begin, whether or not they had to list again
    # TYPE portolan_watch_restarts_total counter
    portolan_watch_restarts_total{resource="services"} 0
    portolan_watch_restarts_total{resource="endpointslices"} 0
    portolan_watch_restarts_total{resource="nodes"} 0
    portolan_watch_restarts_total{resource="servicecidrs"} 0
    # HELP registered_metrics_total [BETA] Registered metrics by stability level and the version that deprecates them
    # TYPE registered_metrics_total counter
    registered_metrics_total{deprecated_version="",stability_level="ALPHA"} 25
    registered_metrics_total{deprecated_version="",stability_level="BETA"} 4
    "#);
}

fn counted() -> PacketCounters {
    PacketCounters { invalid: Some(7), localhost: Some(8) }
}

fn relays() -> RelayMeasures {
    RelayMeasures { open: 3, accepted: 9, no_room: 1, flows: 5, flows_open: 2, ..RelayMeasures::default() }
}

/// Uses every metric at least once.
fn touch_everything(metrics: &ProxyMetrics) {
    let (at, quick, slow) = (
        UNIX_EPOCH + Duration::from_millis(1_772_359_200_500),
        Duration::from_micros(90),
        Duration::from_secs(2),
    );
    for family in Family::BOTH {
        metrics.sync_queued(family, at);
        metrics.sync_finished(family, true, slow, true, at);
    }
    metrics.sync_finished(Family::Ipv4, false, quick, false, at + slow);
    metrics.network_programmed(Family::Ipv4, Duration::from_millis(700));
    metrics.endpoint_change();
    metrics.endpoint_change();
    metrics.endpoint_change();
    metrics.service_change();
    metrics.changes_pending(3, 1);
    metrics.no_local_endpoints(TrafficPolicy::Internal, Family::Ipv6, 2);
    metrics.no_local_endpoints(TrafficPolicy::External, Family::Ipv4, 1);
    metrics.healthz_answered(200);
    metrics.healthz_answered(503);
    metrics.livez_answered(200);
    metrics.nftables_sync_failed(Family::Ipv4);
    metrics.nftables_cleanup_failed(Family::Ipv6);
    metrics.conntrack_reconciled(Family::Ipv4, quick, 5);
    metrics.committed(Family::Ipv4, quick);
    metrics.drift_repaired();
    metrics.watch_restarted(Resource::EndpointSlices);
    metrics.empty_list_held(Resource::Services);
    metrics.bad_objects(Resource::Services, 1);
    metrics.request_finished("GET", "10.0.0.1:443", Some(200), slow);
    metrics.request_finished("GET", "10.0.0.1:443", None, slow);
    metrics.request_delayed("GET", "10.0.0.1:443", quick);
    metrics.config_reload(Reload::Ok);
    metrics.config_reload(Reload::Refused);
    metrics.guarded_addresses(&[(["warn", "nodeAddresses"], 2)]);
    metrics.endpoints_aside(2);
    metrics.endpoint_set_aside();
    metrics.node_written(NodeWrite::Ok);
    metrics.node_written(NodeWrite::Failed);
    metrics.verified();
    metrics.leftovers(2);
    metrics.mode("iptables", "no_ipvs", "ipvs");
    metrics.mode_runs(Family::Ipv4, "iptables");
    // The rules of this mode are not complete.
    metrics.mode("nftables", "configured", "nftables");
    let measures = IptablesMeasures {
        rules: [20, 300],
        written: [20, 12],
        restore_failures: 3,
        partial_restore_failures: 1,
        lock_wait: Duration::from_millis(1500),
        lock_timeouts: 2,
    };
    metrics.iptables(Family::Ipv4, &measures);
    metrics.feature("ComponentFlagz", "BETA", true);
    metrics.feature("AllowServiceExternalIPs", "", false);
}

/// Dashboards and alerts depend on names, types, labels and buckets, so this list must change on purpose only. The next
/// test compares it with kube-proxy's metrics.
#[test]
fn the_golden_list() {
    let metrics = metrics()
        .with_process()
        .with_packet_counters(counted)
        .with_relays(|| Some(relays()))
        .with_ipvs(|_| Some(2))
        .with_watch_ages(|_| Some(Duration::from_millis(2500)));
    touch_everything(&metrics);
    let mut list = String::new();
    for shown in read(&metrics.page()).expect("a valid page") {
        let labels: Vec<&str> = shown.label_names().into_iter().collect();
        let _ = write!(list, "{} {} {{{}}}", shown.kind, shown.name, labels.join(","));
        let bounds = shown.bounds();
        let _ = if bounds.is_empty() { writeln!(list) } else { writeln!(list, " {}", bounds.join(" ")) };
    }
    insta::assert_snapshot!("golden_list", list);
}

/// A metric that the code moves but that the page never shows would be 0 for ever.
#[test]
fn every_metric_has_a_value_that_is_not_zero() {
    // Nothing is hidden or disabled. The kernel's figures of a process that has just begun, in a new network namespace.
    const MAY_BE_ZERO: [&str; 5] = [
        "disabled_metrics_total",
        "hidden_metrics_total",
        "process_cpu_seconds_total",
        "process_network_receive_bytes_total",
        "process_network_transmit_bytes_total",
    ];
    let relays = RelayMeasures {
        open: 1,
        accepted: 2,
        no_room: 3,
        unknown: 4,
        attempts_failed: 5,
        all_failed: 6,
        expired: 7,
        flows: 8,
        flows_open: 9,
        flows_replaced: 10,
        datagrams_lost: 11,
        bytes_to_endpoints: 12,
        bytes_to_clients: 13,
        failing: 14,
        is_redirected: true,
    };
    let metrics = metrics()
        .with_process()
        .with_packet_counters(counted)
        .with_relays(move || Some(relays))
        .with_ipvs(|_| Some(2))
        .with_watch_ages(|_| Some(Duration::from_millis(2500)));
    touch_everything(&metrics);
    metrics.config_reload(Reload::Ok);
    let page = read(&metrics.page()).expect("a valid page");
    assert_eq!(page.len(), metrics.registered(), "some have no samples");
    let is_zero = |shown: &&exposition::Shown| shown.samples.iter().all(|sample| sample.value.abs() <= 0.0);
    let zero = page.iter().filter(is_zero).map(|shown| shown.name.as_str());
    let zero: Vec<&str> = zero.filter(|name| !MAY_BE_ZERO.contains(name)).collect();
    assert_eq!(zero, [""; 0]);
}

/// The metrics of kube-proxy 1.36 in nftables and in iptables mode.
#[test]
fn every_metric_of_kube_proxy_is_there() {
    const UPSTREAM: &str = "
        histogram kubeproxy_sync_proxy_rules_duration_seconds ip_family
        histogram kubeproxy_sync_full_proxy_rules_duration_seconds ip_family
        histogram kubeproxy_sync_partial_proxy_rules_duration_seconds ip_family
        gauge kubeproxy_sync_proxy_rules_last_timestamp_seconds ip_family
        gauge kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds ip_family
        histogram kubeproxy_network_programming_duration_seconds ip_family
        gauge kubeproxy_sync_proxy_rules_endpoint_changes_pending -
        counter kubeproxy_sync_proxy_rules_endpoint_changes_total -
        gauge kubeproxy_sync_proxy_rules_service_changes_pending -
        counter kubeproxy_sync_proxy_rules_service_changes_total -
        gauge kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family,traffic_policy
        counter kubeproxy_proxy_healthz_total code
        counter kubeproxy_proxy_livez_total code
        counter kubeproxy_sync_proxy_rules_nftables_sync_failures_total ip_family
        counter kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total ip_family
        histogram kubeproxy_conntrack_reconciler_sync_duration_seconds ip_family
        counter kubeproxy_conntrack_reconciler_deleted_entries_total ip_family
        gauge kubeproxy_sync_proxy_rules_iptables_total ip_family,table
        gauge kubeproxy_sync_proxy_rules_iptables_last ip_family,table
        counter kubeproxy_sync_proxy_rules_iptables_restore_failures_total ip_family
        counter kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total ip_family
        counter kubeproxy_iptables_ct_state_invalid_dropped_packets_total -
        counter kubeproxy_iptables_localhost_nodeports_accepted_packets_total -
        gauge kubernetes_build_info build_date,compiler,git_commit,git_tree_state,git_version,go_version,major,minor,platform
        gauge kubernetes_feature_enabled name,stage
        counter rest_client_requests_total code,host,method
        histogram rest_client_request_duration_seconds host,verb
        histogram rest_client_rate_limiter_duration_seconds host,verb
        counter registered_metrics_total deprecated_version,stability_level
        counter hidden_metrics_total -
        counter disabled_metrics_total -
        counter process_cpu_seconds_total -
        counter process_network_receive_bytes_total -
        counter process_network_transmit_bytes_total -
        gauge process_resident_memory_bytes -
        gauge process_virtual_memory_bytes -
        gauge process_virtual_memory_max_bytes -
        gauge process_open_fds -
        gauge process_max_fds -
        gauge process_start_time_seconds -";
    let metrics = metrics()
        .with_process()
        .with_packet_counters(counted)
        .with_relays(|| Some(relays()))
        .with_ipvs(|_| Some(2));
    touch_everything(&metrics);
    let page = read(&metrics.page()).expect("a valid page");
    let mut wanted = Vec::new();
    for line in UPSTREAM.trim().lines() {
        let [kind, name, labels] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
        wanted.push(name);
        let shown = page.iter().find(|shown| shown.name == name).unwrap_or_else(|| panic!("no {name}"));
        let got: Vec<&str> = shown.label_names().into_iter().collect();
        let got = if got.is_empty() { "-".to_owned() } else { got.join(",") };
        assert_eq!((shown.kind.as_str(), got.as_str()), (kind, labels), "{name}");
        let alpha = name.starts_with("kubeproxy_") || name.starts_with("rest_client_");
        assert!(!alpha || shown.help.starts_with("[ALPHA] "), "{name}: {}", shown.help);
    }
    let ours = page.iter().filter(|shown| !wanted.contains(&shown.name.as_str()));
    let unmarked: Vec<&str> =
        ours.map(|shown| shown.name.as_str()).filter(|name| !name.starts_with("portolan_")).collect();
    assert_eq!(unmarked, [""; 0], "what is ours alone says so");
}

#[test]
fn values_arrive_where_they_belong() {
    let first = |resource| (resource == Resource::Services).then_some(Duration::from_millis(2500));
    let metrics = metrics().with_watch_ages(first);
    touch_everything(&metrics);
    let page = metrics.page();
    let shown = page.lines().filter(|line| !line.starts_with('#') && !line.contains("_bucket{"));
    let shown = shown.filter(|line| !line.contains("_build_info{"));
    insta::assert_snapshot!("values", shown.collect::<Vec<_>>().join("\n"));
}

#[test]
fn hostile_label_values_stay_inside_their_quotes() {
    let vector = DynamicVector::new(["host", "verb"], Counter::default);
    vector.with(["a\"} 1\nb", "\\"], Counter::increment);
    for other in 0..1000 {
        vector.with([&other.to_string(), "GET"], Counter::increment);
    }
    let registry = Registry::default();
    let vector = registry.add("v", "help", vector);
    let page = read(&registry.page()).expect("a valid page");
    let samples = &page.first().expect("one metric").samples;
    assert_eq!(samples.len(), 512, "the number of members is bounded");
    assert!(samples.iter().any(|sample| sample.labels.values().any(|value| value == "a\"} 1\nb")));
    vector.with(["a\"} 1\nb", "\\"], |counter| counter.add(5));
    assert!(registry.page().contains("v{host=\"a\\\"} 1\\nb\",verb=\"\\\\\"} 6\n"), "known members go on");
}

/// The last part of the platform label differs between machines.
fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
