//! The binary `portolan-proxy` as the agent of a node: from the API server to packets, until SIGTERM. Needs root and nft,
//! and fails without.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use portolan_testcluster::{Agent, Cluster, PATIENCE, at, http, in_sync, objects, reaches};
use portolan_testkit::{Protocol, eventually};

struct PortolanProxy;

impl Agent for PortolanProxy {
    const BINARY: &'static str = env!("CARGO_BIN_EXE_portolan-proxy");
    const SUBCOMMAND: &'static [&'static str] = &[];
}

/// Returns the body of a page of the proxy. Waits until its status is 200.
fn page(cluster: &Cluster<PortolanProxy>, server: &str, path: &str) -> String {
    let mut last = None;
    let outcome = eventually(PATIENCE, path, || {
        last = http::get(cluster.world.node().namespace(), at(server), path);
        last.as_ref().is_some_and(|answer| answer.status == 200)
    });
    assert!(outcome.is_ok(), "{path}: {last:?}");
    last.unwrap().body
}

#[test]
fn it_serves_a_service_until_sigterm_and_leaves_its_rules() {
    let cluster = Cluster::<PortolanProxy>::new();
    let [pod, other] = cluster.world.pods() else { panic!("two pods") };
    let client = cluster.world.client().namespace();
    cluster.service(objects::load_balancer("web", "10.96.0.10", 30_080, "198.51.100.7"), &[pod]);
    let mut proxy = cluster.start_proxy("");
    in_sync(&mut proxy);
    for to in ["10.96.0.10:80", "192.168.100.1:30080", "198.51.100.7:80"] {
        reaches(client, Protocol::Tcp, at(to), &[pod]);
    }
    cluster.service(objects::cluster_ip("db", "fd00:96::11"), &[other]);
    reaches(client, Protocol::Udp, at("[fd00:96::11]:80"), &[other]);

    assert!(page(&cluster, "127.0.0.1:10256", "/healthz").contains("\"healthy\":true"));
    assert_eq!(page(&cluster, "127.0.0.1:10249", "/proxyMode"), "nftables");
    let metrics = page(&cluster, "127.0.0.1:10249", "/metrics");
    let changes = "kubeproxy_sync_proxy_rules_service_changes_total 2";
    assert!(metrics.lines().any(|line| line == changes), "{changes} in {metrics}");

    let status = proxy.terminate(PATIENCE).unwrap();
    assert!(status.success(), "{status}: {}", proxy.output());
    assert!(http::get(cluster.world.node().namespace(), at("127.0.0.1:10256"), "/healthz").is_none());
    for (to, pod) in [("10.96.0.10:80", pod), ("198.51.100.7:80", pod), ("[fd00:96::11]:80", other)] {
        reaches(client, Protocol::Tcp, at(to), &[pod]);
    }
}
