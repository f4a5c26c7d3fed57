//! Health, health-check node ports and metrics of the real binary. Needs root and nft, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use portolan_serve::Resource;
use portolan_testkit::{Pod, Protocol, eventually};
use serde_json::{Value, json};

use common::http::{Answer, get};
use common::{Cluster, NODE, PATIENCE, at, listen, logged, objects, reaches};

const HEALTH: &str = "127.0.0.1:10256";
const METRICS: &str = "127.0.0.1:10249";

/// Waits until a GET request on the node gets this status.
fn answers(cluster: &Cluster, to: SocketAddr, path: &str, status: u16) -> Answer {
    let node = cluster.world.node().namespace();
    let mut last = None;
    let outcome = eventually(PATIENCE, "the status", || {
        last = get(node, to, path);
        last.as_ref().is_some_and(|answer| answer.status == status)
    });
    let last = last.unwrap();
    assert!(outcome.is_ok(), "{path}: {} {} instead of {status}", last.status, last.body);
    last
}

#[test]
fn health_follows_the_node_object() {
    let cluster = Cluster::new();
    let _proxy = cluster.proxy();
    let node = objects::node(&cluster.world);
    let answer = answers(&cluster, at(HEALTH), "/healthz", 200);
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!((&body["healthy"], &body["nodeEligible"]), (&json!(true), &json!(true)));
    let mut tainted = node.clone();
    tainted["spec"]["taints"] = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    cluster.apply(tainted);
    let answer = answers(&cluster, at(HEALTH), "/healthz", 503);
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!((&body["healthy"], &body["nodeEligible"]), (&json!(true), &json!(false)));
    answers(&cluster, at(HEALTH), "/livez", 200);
    let mut other = node.clone();
    other["spec"]["taints"] = json!([{"key": "other", "effect": "NoSchedule"}]);
    cluster.apply(other);
    answers(&cluster, at(HEALTH), "/healthz", 200);
    let mut held = node;
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.apply(held);
    cluster.delete(Resource::Node, NODE);
    answers(&cluster, at(HEALTH), "/healthz", 503);
    answers(&cluster, at(HEALTH), "/livez", 200);
}

/// Waits until the health-check node port answers with this status and this number of endpoints.
fn counts(cluster: &Cluster, status: u16, count: usize) {
    let node = cluster.world.node().namespace();
    let mut last = String::new();
    let outcome = eventually(PATIENCE, "the count", || {
        let Some(answer) = get(node, at("192.168.100.1:32000"), "/") else { return false };
        let weight = format!("x-load-balancing-endpoint-weight: {count}");
        last = format!("{} {} {}", answer.status, answer.head, answer.body);
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        answer.status == status && answer.head.contains(&weight) && body["localEndpoints"] == json!(count)
    });
    assert!(outcome.is_ok(), "{count}: {last}");
}

#[test]
fn health_check_node_ports_follow_the_endpoints() {
    let cluster = Cluster::new();
    let [one, other] = cluster.world.pods() else { panic!("two pods") };
    let elsewhere = &cluster.world.remote_pods()[0];
    let _proxy = cluster.proxy();
    let mut service = objects::load_balancer("web", "10.96.0.10", 30_080, "198.51.100.7");
    service["spec"]["externalTrafficPolicy"] = json!("Local");
    service["spec"]["healthCheckNodePort"] = json!(32_000);
    let slice = |pods: &[&Pod]| objects::slice("web", pods, &objects::ports(&service));
    cluster.service(service.clone(), &[one, other, elsewhere]);
    let check = |pods: &[&Pod], status: u16, count: usize| {
        cluster.apply(slice(pods));
        counts(&cluster, status, count);
    };
    check(&[one, other, elsewhere], 200, 2);
    check(&[one, elsewhere], 200, 1);
    check(&[elsewhere], 503, 0);
    check(&[one, other], 200, 2);
    // The port is free again when the Service no longer has it.
    service["spec"]["externalTrafficPolicy"] = json!("Cluster");
    service["spec"].as_object_mut().unwrap().remove("healthCheckNodePort");
    cluster.apply(service);
    let node = cluster.world.node().namespace();
    let free = || node.run(|| TcpListener::bind("192.168.100.1:32000").is_ok()).unwrap();
    assert!(eventually(PATIENCE, "a free port", free).is_ok());
}

#[test]
fn the_count_of_a_health_check_rises_with_the_commit_and_falls_at_once() {
    let cluster = Cluster::new();
    let [one, other] = cluster.world.pods() else { panic!("two pods") };
    let mut service = objects::load_balancer("web", "10.96.0.10", 30_080, "198.51.100.7");
    service["spec"]["externalTrafficPolicy"] = json!("Local");
    service["spec"]["healthCheckNodePort"] = json!(32_000);
    let slice = |pods: &[&Pod]| objects::slice("web", pods, &objects::ports(&service));
    cluster.service(service.clone(), &[one]);
    let _proxy = cluster.proxy_with("nftables: {minSyncPeriod: 1h, syncPeriod: 1h}\n");
    counts(&cluster, 200, 1);
    pending(&cluster, 0, 0);
    cluster.apply(slice(&[one, other]));
    pending(&cluster, 0, 1);
    // This change has nothing for IPv4. The gauges show the family with more changes.
    cluster.service(objects::cluster_ip("six", "fd00:96::11"), &[one]);
    pending(&cluster, 1, 1);
    let node = cluster.world.node().namespace();
    let answer = get(node, at("192.168.100.1:32000"), "/").unwrap();
    assert!(answer.head.contains("x-load-balancing-endpoint-weight: 1"), "{}", answer.head);
    cluster.apply(slice(&[]));
    counts(&cluster, 503, 0);
    cluster.apply(slice(&[one, other]));
    cluster.configure("");
    counts(&cluster, 200, 2);
}

#[test]
fn metrics_have_the_names_that_dashboards_know() {
    let cluster = Cluster::new();
    let pod = &cluster.world.pods()[0];
    let _proxy = cluster.proxy();
    cluster.service(objects::cluster_ip("web", "10.96.0.10"), &[pod]);
    let mut slice = objects::slice("web", &[pod], &[("tcp".to_owned(), portolan_testkit::Family::Ipv4)]);
    slice["metadata"]["annotations"] =
        json!({"endpoints.kubernetes.io/last-change-trigger-time": "2200-01-01T00:00:00Z"});
    cluster.apply(slice);
    reaches(cluster.world.client().namespace(), Protocol::Tcp, at("10.96.0.10:80"), &[pod]);
    answers(&cluster, at(HEALTH), "/healthz", 200);
    answers(&cluster, at(HEALTH), "/livez", 200);
    let names = [
        "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}",
        "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv6\"}",
        "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}",
        "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}",
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}",
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv4\"}",
        "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"}",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{",
        "kubeproxy_sync_proxy_rules_endpoint_changes_total 2",
        "kubeproxy_sync_proxy_rules_service_changes_total 1",
        "kubeproxy_proxy_healthz_total{code=\"200\"}",
        "kubeproxy_proxy_livez_total{code=\"200\"}",
        "portolan_dataplane_commit_seconds_count{",
        "portolan_dataplane_drift_repairs_total 0",
        "process_resident_memory_bytes",
    ];
    pending(&cluster, 0, 0);
    // The packets of a change may arrive before its commit is counted.
    let (mut page, mut missing) = (String::new(), Vec::new());
    let outcome = eventually(PATIENCE, "the names", || {
        page = answers(&cluster, at(METRICS), "/metrics", 200).body;
        missing = names.to_vec();
        missing.retain(|name| !page.lines().any(|line| line.starts_with(*name)));
        missing.is_empty()
    });
    assert!(outcome.is_ok(), "{missing:?} in {page}");
    assert_eq!(answers(&cluster, at(METRICS), "/proxyMode", 200).body, "nftables");
}

/// Asserts the versions on `/metrics` and `/statusz`: Kubernetes' and Portolan's.
fn reports_version(cluster: &Cluster, kubernetes: &str) {
    let page = answers(cluster, at(METRICS), "/metrics", 200).body;
    let build = page.lines().find(|line| line.starts_with("kubernetes_build_info{")).unwrap();
    for label in [&format!("git_version=\"{kubernetes}\""), "major=\"1\"", "minor=\"36\""] {
        assert!(build.contains(label), "{label} in {build}");
    }
    let own = concat!("portolan_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1");
    assert!(page.lines().any(|line| line == own), "{own} in {page}");
    let status = answers(cluster, at(METRICS), "/statusz", 200).body;
    let binary = format!("Binary version: {}", kubernetes.trim_start_matches('v'));
    assert!(status.lines().any(|line| line == binary), "{binary} in {status}");
}

#[test]
fn the_reported_version_is_that_of_kube_proxy() {
    let cluster = Cluster::new();
    let proxy = cluster.start_proxy("");
    reports_version(&cluster, concat!("v1.36.2+portolan-", env!("CARGO_PKG_VERSION")));
    drop(proxy);
    let (file, master) = (cluster.configuration_file(), cluster.master());
    let file = file.to_str().unwrap();
    let _other = cluster.run(&["proxy", "--config", file, "--master", &master, "--version=v1.36.2-rc.1"]);
    reports_version(&cluster, "v1.36.2-rc.1");
}

/// Waits until the gauges show this many pending changes of Services and EndpointSlices.
fn pending(cluster: &Cluster, services: usize, endpoint_slices: usize) {
    let gauges = [("service", services), ("endpoint", endpoint_slices)]
        .map(|(kind, value)| format!("kubeproxy_sync_proxy_rules_{kind}_changes_pending {value}"));
    let mut page = String::new();
    let outcome = eventually(PATIENCE, "the gauges", || {
        page = answers(cluster, at(METRICS), "/metrics", 200).body;
        gauges.iter().all(|gauge| page.lines().any(|line| line == gauge))
    });
    assert!(outcome.is_ok(), "{gauges:?} in {page}");
}

#[test]
fn changes_are_pending_until_they_are_in_the_kernel() {
    let cluster = Cluster::new();
    let _proxy = cluster.proxy_with("nftables: {minSyncPeriod: 1h, syncPeriod: 1h}\n");
    let pod = &cluster.world.pods()[0];
    pending(&cluster, 0, 0);
    cluster.service(objects::cluster_ip("web", "10.96.0.10"), &[pod]);
    pending(&cluster, 1, 1);
    cluster.service(objects::cluster_ip("db", "10.96.0.11"), &[pod]);
    pending(&cluster, 2, 2);
    cluster.configure("");
    pending(&cluster, 0, 0);
}

#[test]
fn a_server_listens_when_its_port_becomes_free() {
    let cluster = Cluster::new();
    let pod = &cluster.world.pods()[0];
    let others =
        cluster.world.node().namespace().run(|| TcpListener::bind("0.0.0.0:10256").unwrap()).unwrap();
    let mut proxy = cluster.proxy();
    logged(&mut proxy, "cannot listen", 1);
    cluster.service(objects::cluster_ip("web", "10.96.0.10"), &[pod]);
    reaches(cluster.world.client().namespace(), Protocol::Tcp, at("10.96.0.10:80"), &[pod]);
    drop(others);
    answers(&cluster, at(HEALTH), "/healthz", 200);
}

#[test]
fn a_port_in_use_is_fatal_with_bind_address_hard_fail() {
    let cluster = Cluster::new();
    for field in ["healthzBindAddress", "metricsBindAddress"] {
        let _others = listen(cluster.world.node().namespace(), 19_999);
        let yaml = format!("bindAddressHardFail: true\n{field}: 127.0.0.1:19999\n");
        let mut proxy = cluster.start_proxy(&yaml);
        let status = proxy.wait_for_end(PATIENCE).unwrap();
        assert_eq!(status.code(), Some(1), "{}", proxy.output());
        let last = proxy.output().lines().last().unwrap_or_default().to_owned();
        assert!(last.contains(field) && last.contains("127.0.0.1:19999"), "{}", proxy.output());
    }
}

/// Sends bytes on a new connection and reads until the other side closes it.
fn exchange(cluster: &Cluster, to: SocketAddr, bytes: &[u8]) -> String {
    let talk = || {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    cluster.world.node().namespace().run(talk).unwrap()
}

#[test]
fn the_verbosity_of_the_log_can_be_raised_while_the_proxy_runs() {
    const ENDED_EARLY: &str = "a connection ended early";
    let cluster = Cluster::new();
    objects::node(&cluster.world);
    let mut proxy = cluster.start_proxy("enableProfiling: true\n");
    answers(&cluster, at(HEALTH), "/livez", 200);
    exchange(&cluster, at(HEALTH), b"rubbish\r\n\r\n");
    let put = b"PUT /debug/flags/v HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1\r\n\r\n4";
    let answer = exchange(&cluster, at(METRICS), put);
    assert!(answer.ends_with("successfully set klog.logging.verbosity to 4\n"), "{answer}");
    assert!(!proxy.output().contains(ENDED_EARLY), "{}", proxy.output());
    exchange(&cluster, at(HEALTH), b"rubbish\r\n\r\n");
    logged(&mut proxy, ENDED_EARLY, 1);
    assert_eq!(answers(&cluster, at(METRICS), "/debug/pprof/heap", 501).status, 501);
}

/// Returns what `/readyz` waits for.
fn awaited(cluster: &Cluster) -> Vec<String> {
    let answer = answers(cluster, at(HEALTH), "/readyz", 503);
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    body["waitingFor"].as_array().unwrap().iter().map(|what| what.as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_proxy_is_ready_when_everything_is_programmed() {
    for mode in ["nftables", "iptables"] {
        let mut cluster = Cluster::new();
        let pod = &cluster.world.pods()[0];
        cluster.service(objects::cluster_ip("web", "10.96.0.10"), &[pod]);
        cluster.delete(Resource::Node, NODE);
        cluster.stop_server();
        let mut proxy = cluster.start_proxy(&format!("mode: {mode}\n"));
        answers(&cluster, at(HEALTH), "/livez", 200);
        let lists = ["the list of Services", "the list of EndpointSlices", "the list of ServiceCIDRs"];
        assert_eq!(awaited(&cluster), lists, "{mode}");
        cluster.restart_server();
        let node = ["addresses of Node node1"];
        assert!(
            eventually(PATIENCE, "the lists", || awaited(&cluster) == node).is_ok(),
            "{}",
            proxy.output()
        );
        answers(&cluster, at(HEALTH), "/livez", 200);
        let line = "\"waiting before the rules are complete\" awaited=\"addresses of Node node1\"";
        proxy.wait_for_output(PATIENCE, line).unwrap();
        assert_eq!(proxy.output().matches(common::IN_SYNC).count(), 0, "{mode}: nothing is programmed yet");
        cluster.apply(objects::node(&cluster.world));
        answers(&cluster, at(HEALTH), "/readyz", 200);
        let healthz = answers(&cluster, at(HEALTH), "/healthz", 200);
        assert!(healthz.body.contains("\"nodeEligible\":true"), "{}", healthz.body);
        // A ready proxy has programmed everything, and has logged it; the log may arrive here later than the answer.
        let logged = eventually(PATIENCE, mode, || proxy.output().matches(common::IN_SYNC).count() == 2);
        assert!(logged.is_ok(), "{mode}: {}", proxy.output());
        let from = cluster.world.client().namespace();
        let probe = portolan_testkit::Probe::new(Protocol::Tcp, at("10.96.0.10:80"));
        assert!(from.probe(probe).unwrap().backend().is_some(), "{mode}");
        // After that, `/readyz` has the status of `/healthz`.
        let mut tainted = objects::node(&cluster.world);
        tainted["spec"]["taints"] =
            json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
        cluster.apply(tainted);
        answers(&cluster, at(HEALTH), "/readyz", 503);
        assert!(proxy.ended().is_none());
    }
}
