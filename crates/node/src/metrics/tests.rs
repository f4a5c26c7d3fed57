use std::time::{Duration, UNIX_EPOCH};

use super::*;
use crate::address::Family;
use crate::config::{Configuration, Mode};
use crate::http::tests::{loopback, request, start};

fn metrics() -> ProxyMetrics {
    ProxyMetrics::new(BuildInfo {
        git_version: "v0.1.0".into(),
        git_commit: "abc".into(),
        ..BuildInfo::of_crate()
    })
}

#[test]
fn numbers_print_as_go_prints_them() {
    let table = [
        (0.0, "0"),
        (1.0, "1"),
        (-2.5, "-2.5"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (16.384, "16.384"),
        (300.0, "300"),
        (999_999.0, "999999"),
        (1_000_000.0, "1e+06"),
        (1_772_359_200.5, "1.7723592005e+09"),
        (f64::INFINITY, "+Inf"),
        (f64::NEG_INFINITY, "-Inf"),
        (f64::NAN, "NaN"),
    ];
    for (value, want) in table {
        assert_eq!(number(value), want);
    }
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
    check::<labels::Code>();
    check::<Resource>();
    check::<Kind>();
}

#[test]
fn a_bound_belongs_to_its_bucket() {
    let histogram = Histogram::new(&[1.0, 2.0]);
    for value in [0.5, 1.0, 1.5, 2.0, 2.5] {
        histogram.observe(value);
    }
    let mut page = String::new();
    histogram.collect("h", "", &mut page);
    insta::assert_snapshot!(page, @r#"
    h_bucket{le="1"} 2
    h_bucket{le="2"} 4
    h_bucket{le="+Inf"} 5
    h_sum 7.5
    h_count 5
    "#);
}

#[test]
fn nothing_is_shown_before_its_first_use() {
    let page = metrics().page();
    let page = page.replace(&format!("/{}", platform()), "/PLATFORM");
    insta::assert_snapshot!(page, @r#"
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
    kubernetes_build_info{build_date="",compiler="rustc",git_commit="abc",git_tree_state="",git_version="v0.1.0",go_version="",major="0",minor="1",platform="linux/PLATFORM"} 1
    # HELP portolan_dataplane_drift_repairs_total Repairs of what another program changed in the kernel
    # TYPE portolan_dataplane_drift_repairs_total counter
    portolan_dataplane_drift_repairs_total 0
    "#);
}

#[test]
fn the_whole_page() {
    let metrics = metrics();
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
    metrics.endpoint_change(true);
    metrics.endpoint_change(false);
    metrics.changes_taken();
    metrics.endpoint_change(true);
    metrics.service_change(3);
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
    metrics.bad_objects(Resource::Services, 1);
    let page = metrics.page().replace(&format!("/{}", platform()), "/PLATFORM");
    insta::assert_snapshot!("whole_page", page);
}

/// The last part of the platform label differs between machines.
fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[tokio::test]
async fn the_metrics_server_has_its_pages() {
    let metrics = Arc::new(metrics().with_process());
    let configuration = Configuration::default();
    let pages = Arc::new(Pages::new(metrics, &configuration));
    let address = start(server(loopback(), true, Arc::clone(&pages))).await;
    let ask = |path: &'static str| async move {
        let got = request(address, "GET", path).await.expect("an answer");
        let content_type = got.headers.iter().find_map(|header| header.strip_prefix("Content-Type: "));
        (got.status, content_type.map(str::to_owned).expect("a content type"), got.body)
    };
    let plain = |status, body: &str| (status, "text/plain; charset=utf-8".to_owned(), body.to_owned());
    assert_eq!(ask("/healthz").await, plain(200, "ok"));
    assert_eq!(ask("/healthz/ping").await, plain(200, "ok"));
    assert_eq!(ask("/healthz?verbose").await, plain(200, "[+]ping ok\nhealthz check passed\n"));
    assert_eq!(ask("/proxyMode").await, plain(200, "nftables"));
    assert_eq!(ask("/proxyMode/").await, plain(404, "404 page not found\n"));
    let (status, content_type, page) = ask("/metrics").await;
    assert_eq!((status, content_type.as_str()), (200, "text/plain; version=0.0.4; charset=utf-8"));
    assert!(page.contains("\nprocess_resident_memory_bytes "), "{page}");
    let (_, content_type, configz) = ask("/configz").await;
    assert_eq!(content_type, "application/json");
    let configz: serde_json::Value = serde_json::from_str(&configz).expect("JSON");
    let shown = configz.get("kubeproxy.config.k8s.io").expect("one component");
    assert_eq!(shown.get("mode").and_then(|mode| mode.as_str()), Some("nftables"));
    assert_eq!(shown.get("nodePortAddresses"), Some(&serde_json::json!(["primary"])));
    pages.set_configuration(&Configuration { mode: Some(Mode::Ipvs), ..configuration });
    assert_eq!(ask("/proxyMode").await, plain(200, "ipvs"));
}
