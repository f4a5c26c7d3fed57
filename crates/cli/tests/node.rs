//! The Node object changes, appears late or disappears while the proxy runs. Needs root and nft, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::net::IpAddr;

use portolan_serve::Resource;
use portolan_testkit::{Pod, Probe, ProbeResult, Protocol, eventually};
use serde_json::{Value, json};

use common::load::{assert_lossless, busy_services};
use common::{Cluster, NODE, PATIENCE, at, ends_as, http, load, logged, objects, reaches};

const INSIDE: &str = "192.168.100.1";
const OUTSIDE: &str = "203.0.113.1";

/// Returns the Node object with these addresses.
fn node_at(cluster: &Cluster, addresses: &[&str]) -> Value {
    let mut node = objects::node(&cluster.world);
    let list = addresses.iter().map(|address| json!({"type": "InternalIP", "address": address}));
    node["status"]["addresses"] = list.collect();
    node
}

fn with_pod_cidrs(cluster: &Cluster, cidrs: &[&str]) -> Value {
    let mut node = objects::node(&cluster.world);
    node["spec"]["podCIDRs"] = json!(cidrs);
    node
}

fn seen_source(from: &Pod, to: &str) -> IpAddr {
    let result = from.namespace().probe(Probe::new(Protocol::Tcp, at(to))).unwrap();
    result.seen_source().unwrap_or_else(|| panic!("{to}: {result:?}"))
}

#[test]
fn node_ports_and_their_health_checks_follow_the_addresses_of_the_node_object() {
    let cluster = Cluster::new();
    let backend = &cluster.world.pods()[0];
    let mut service = objects::load_balancer("web", "10.96.0.10", 30_080, "198.51.100.7");
    service["spec"]["externalTrafficPolicy"] = json!("Local");
    service["spec"]["healthCheckNodePort"] = json!(32_000);
    cluster.service(service, &[backend]);
    cluster.service(objects::cluster_ip("v4", "10.96.0.11"), &[backend]);
    cluster.service(objects::cluster_ip("v6", "fd00:96::11"), &[backend]);
    cluster.apply(node_at(&cluster, &[INSIDE, "fd00:192:168:100::1"]));
    let proxy = cluster.proxy();
    let (node, client) = (cluster.world.node().namespace(), cluster.world.client().namespace());
    let answers = |address: &str| {
        http::get(node, at(&format!("{address}:32000")), "/").map(|answer| answer.status) == Some(200)
    };
    let check = |here: &str, elsewhere: &str| {
        reaches(client, Protocol::Tcp, at(&format!("{here}:30080")), &[backend]);
        ends_as(client, Protocol::Tcp, at(&format!("{elsewhere}:30080")), ProbeResult::Refused);
        let moved = eventually(PATIENCE, "the health check", || answers(here) && !answers(elsewhere));
        assert!(moved.is_ok(), "{}", proxy.output());
    };
    check(INSIDE, OUTSIDE);
    // Services that do not depend on the node's addresses must not be disturbed.
    let ways = [("cluster IP", "10.96.0.11:80"), ("IPv6", "[fd00:96::11]:80")];
    let load =
        ways.map(|(name, to)| (name, portolan_testkit::Traffic::start(client, load::plan(to)).unwrap()));
    cluster.apply(node_at(&cluster, &[OUTSIDE]));
    check(OUTSIDE, INSIDE);
    // A Node without any address keeps the old ones.
    cluster.apply(node_at(&cluster, &[]));
    cluster.delete(Resource::Node, NODE);
    let mut again = node_at(&cluster, &[]);
    again["metadata"]["labels"] = json!({});
    cluster.apply(again);
    check(OUTSIDE, INSIDE);
    cluster.apply(node_at(&cluster, &[INSIDE]));
    check(INSIDE, OUTSIDE);
    assert_lossless(load.into());
}

#[test]
fn health_checks_follow_addresses_that_come_and_go() {
    let cluster = Cluster::new();
    let mut service = objects::load_balancer("web", "10.96.0.10", 30_080, "198.51.100.7");
    service["spec"]["externalTrafficPolicy"] = json!("Local");
    service["spec"]["healthCheckNodePort"] = json!(32_000);
    cluster.service(service, &[&cluster.world.pods()[0]]);
    let yaml = "nodePortAddresses: [192.168.100.0/24, 198.18.0.0/24, 'fd00:192:168:100::/64']\n";
    let proxy = cluster.proxy_with(yaml);
    let node = cluster.world.node().namespace();
    let answers = |address: &str| http::get(node, at(&format!("{address}:32000")), "/").is_some();
    let open = |address: &str, wanted: bool| {
        let outcome = eventually(PATIENCE, "the listener", || answers(address) == wanted);
        assert!(outcome.is_ok(), "{address} {wanted}: {}", proxy.output());
    };
    open(INSIDE, true);
    open("198.18.0.9", false);
    node.ip("addr add 198.18.0.9/32 dev eth0\n").unwrap();
    open("198.18.0.9", true);
    assert!(answers(INSIDE));
    node.ip("addr del 198.18.0.9/32 dev eth0\n").unwrap();
    node.ip("addr add 198.18.0.10/32 dev eth0\n").unwrap();
    open("198.18.0.10", true);
    open("198.18.0.9", false);
    assert!(answers(INSIDE));
}

#[test]
fn a_source_range_with_the_node_in_it_follows_the_node() {
    let cluster = Cluster::new();
    let backend = &cluster.world.remote_pods()[0];
    let mut service = objects::load_balancer("web", "10.96.0.10", 30_080, "198.51.100.7");
    service["spec"]["loadBalancerSourceRanges"] = json!(["203.0.113.1/32"]);
    cluster.service(service, &[backend]);
    let mut proxy = cluster.proxy();
    let settings = "\"settings changed: comparing everything\" family=\"IPv4\"";
    cluster.apply(node_at(&cluster, &[OUTSIDE, "fd00:192:168:100::1"]));
    logged(&mut proxy, settings, 1);
    let node = cluster.world.node().namespace();
    let range = || common::kernel::nft(node, "list set ip portolan source-ranges");
    let allowed = |wanted| {
        let outcome = eventually(PATIENCE, "the rule", || {
            range().contains("198.51.100.7 . tcp . 80 . 198.51.100.7") == wanted
        });
        assert!(outcome.is_ok(), "{}", range());
    };
    allowed(true);
    cluster.apply(node_at(&cluster, &[INSIDE, "fd00:192:168:100::1"]));
    allowed(false);
}

#[test]
fn pod_cidrs_are_followed_without_a_restart_or_a_loss() {
    let cluster = Cluster::new();
    busy_services(&cluster);
    let remote = &cluster.world.remote_pods()[0];
    cluster.service(objects::cluster_ip("far", "10.96.0.11"), &[remote]);
    let mut proxy = cluster.proxy_with("detectLocalMode: NodeCIDR\n");
    let pod = &cluster.world.pods()[0];
    let own = pod.addresses().both();
    let local = |wanted: bool| {
        let outcome = eventually(PATIENCE, "local detection", || {
            own.contains(&seen_source(pod, "10.96.0.11:80")) == wanted
        });
        assert!(outcome.is_ok(), "{}", proxy.output());
    };
    local(true);
    let load = load::start(&cluster);
    cluster.overwrite_node(with_pod_cidrs(&cluster, &["10.244.99.0/24"]));
    local(false);
    // The pod CIDRs are removed for a moment: the last known ones stay active.
    cluster.overwrite_node(with_pod_cidrs(&cluster, &[]));
    cluster.overwrite_node(with_pod_cidrs(&cluster, &["10.244.1.0/24", "fd00:10:244:1::/64"]));
    local(true);
    assert_lossless(load);
    assert!(proxy.ended().is_none());
}

#[test]
fn the_start_waits_for_a_missing_node_object() {
    let cluster = Cluster::new();
    cluster.delete(Resource::Node, NODE);
    busy_services(&cluster);
    let mut proxy = cluster.start_proxy("detectLocalMode: NodeCIDR\n");
    let healthz = || http::get(cluster.world.node().namespace(), at("127.0.0.1:10256"), "/healthz");
    let outcome =
        eventually(PATIENCE, "the health server", || healthz().is_some_and(|got| got.status == 503));
    assert!(outcome.is_ok(), "{}", proxy.output());
    proxy.wait_for_output(PATIENCE, "awaited=\"pod CIDRs of Node node1\"").unwrap();
    cluster.apply(with_pod_cidrs(&cluster, &[]));
    let outcome = eventually(PATIENCE, "a node", || healthz().is_some_and(|got| got.status == 200));
    assert!(outcome.is_ok(), "{}", proxy.output());
    assert!(!proxy.output().contains(common::IN_SYNC), "there are no pod CIDRs yet");
    cluster.apply(objects::node(&cluster.world));
    common::in_sync(&mut proxy);
}

#[test]
fn a_fatal_finding_ends_the_start_despite_endpoint_changes() {
    let cluster = Cluster::new();
    busy_services(&cluster);
    // Only the Node object shows that the pod CIDRs are not of the primary family.
    cluster.overwrite_node(with_pod_cidrs(&cluster, &["fd00:10:244:1::/64"]));
    let (service, pods) = (objects::cluster_ip("churn", "10.96.0.12"), cluster.world.pods());
    cluster.service(service.clone(), &[&pods[0]]);
    let ports = objects::ports(&service);
    let mut proxy = cluster.start_proxy("detectLocalMode: NodeCIDR\n");
    // Endpoints change all the time.
    let mut backends = pods.iter().cycle();
    let ended = eventually(PATIENCE, "the end", || {
        cluster.apply(objects::slice("churn", &[backends.next().unwrap()], &ports));
        proxy.ended().is_some()
    });
    assert!(ended.is_ok(), "{}", proxy.output());
    let status = proxy.wait_for_end(PATIENCE).unwrap();
    let output = proxy.output();
    assert_eq!(status.code(), Some(1), "{output}");
    assert!(output.contains("the Node's spec.podCIDRs is fd00:10:244:1::/64"), "{output}");
    let tables = common::kernel::nft(cluster.world.node().namespace(), "list tables");
    assert!(!tables.contains("portolan"), "nothing is touched: {tables}");
}

#[test]
fn a_primary_family_that_the_host_does_not_have_ends_the_start() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    node.write_sysctls(&[("net/ipv6/conf/all/disable_ipv6".to_owned(), "1")]).unwrap();
    cluster.apply(node_at(&cluster, &["fd00:192:168:100::1"]));
    let mut proxy = cluster.start_proxy("clusterCIDR: 'fd00:10:244::/48'\n");
    let status = proxy.wait_for_end(PATIENCE).unwrap();
    let output = proxy.output();
    assert_eq!(status.code(), Some(1), "{output}");
    assert!(output.contains("clusterCIDR is fd00:10:244::/48"), "{output}");
    let mut proxy = cluster.start_proxy("");
    let status = proxy.wait_for_end(PATIENCE).unwrap();
    let output = proxy.output();
    assert_eq!(status.code(), Some(1), "{output}");
    assert!(output.contains("no support for primary IP family"), "{output}");
    assert!(!common::kernel::nft(node, "list tables").contains("portolan"), "nothing is touched");
}

const TAINT: &str = "portolan.dev/agent-not-ready";
const READINESS: &str =
    "readiness: {taint: 'portolan.dev/agent-not-ready:NoSchedule', condition: ServicesUnavailable}\n";

/// Returns the taints that the tests set: that of the agent, the same with another effect, and one of another owner.
fn taints() -> Value {
    json!([
        {"key": "example.com/dedicated", "value": "gpu", "effect": "NoSchedule"},
        {"key": TAINT, "effect": "NoSchedule"},
        {"key": TAINT, "effect": "NoExecute"},
    ])
}

/// Stores the Node object with the taints, and with a condition of another owner.
fn overwrite_tainted(cluster: &Cluster, mut node: Value) {
    node["spec"]["taints"] = taints();
    node["status"]["conditions"] = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady"}]);
    cluster.overwrite_node(node);
}

fn stored_node(cluster: &Cluster) -> Value {
    let path = format!("/api/v1/nodes/{NODE}");
    let answer = http::get(cluster.world.node().namespace(), cluster.address, &path).unwrap();
    serde_json::from_str(&answer.body).unwrap()
}

/// Returns the condition `ServicesUnavailable` of the Node: status and reason.
fn condition(node: &Value) -> Option<(String, String)> {
    let conditions = node["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == "ServicesUnavailable")?;
    Some((found["status"].as_str()?.to_owned(), found["reason"].as_str()?.to_owned()))
}

fn is_programmed(node: &Value) -> bool {
    condition(node) == Some(("False".to_owned(), "ServicesProgrammed".to_owned()))
}

/// Waits until the Node lacks the agent's taint and has the condition, and checks that nothing else of it changed.
fn becomes_ready(cluster: &Cluster, proxy: &mut portolan_testkit::PortolanProcess) {
    let others = json!([taints()[0], taints()[2]]);
    let outcome = proxy.wait_until(PATIENCE, "the Node is ready", || {
        let node = stored_node(cluster);
        node["spec"]["taints"] == others && is_programmed(&node)
    });
    assert!(outcome.is_ok(), "{:#}", stored_node(cluster));
    let node = stored_node(cluster);
    let has_ready = |condition: &Value| condition["type"] == "Ready" && condition["reason"] == "KubeletReady";
    assert!(node["status"]["conditions"].as_array().unwrap().iter().any(has_ready), "{node:#}");
    assert_eq!(node["spec"]["podCIDRs"], objects::node(&cluster.world)["spec"]["podCIDRs"]);
}

#[test]
fn the_taint_stays_until_everything_is_programmed_and_read_back() {
    for mode in ["nftables", "iptables", "userspace"] {
        let cluster = Cluster::new();
        busy_services(&cluster);
        overwrite_tainted(&cluster, with_pod_cidrs(&cluster, &[]));
        let yaml = format!("mode: {mode}\ndetectLocalMode: NodeCIDR\n{READINESS}");
        let mut proxy = cluster.start_proxy(&yaml);
        // The start waits for pod CIDRs.
        let not_yet = Some(("True".to_owned(), "ServicesNotProgrammed".to_owned()));
        let outcome =
            proxy.wait_until(PATIENCE, "the condition", || condition(&stored_node(&cluster)) == not_yet);
        assert!(outcome.is_ok(), "{mode}: {}", proxy.output());
        assert_eq!(stored_node(&cluster)["spec"]["taints"], taints(), "{mode}");
        assert!(common::page(&cluster, "/metrics").contains("portolan_programmed_and_verified 0\n"));
        overwrite_tainted(&cluster, objects::node(&cluster.world));
        common::in_sync(&mut proxy);
        becomes_ready(&cluster, &mut proxy);
        let page = common::page(&cluster, "/metrics");
        assert!(page.contains("portolan_programmed_and_verified 1\n"), "{page}");
        // The taint comes back, as with a Node that is registered again.
        overwrite_tainted(&cluster, objects::node(&cluster.world));
        let outcome = proxy.wait_until(PATIENCE, "the taint is removed again", || {
            stored_node(&cluster)["spec"]["taints"] == json!([taints()[0], taints()[2]])
        });
        assert!(outcome.is_ok(), "{mode}: {:#}", stored_node(&cluster));
    }
}

#[test]
fn a_restart_writes_nothing_to_a_node_that_is_ready() {
    let cluster = Cluster::new();
    busy_services(&cluster);
    overwrite_tainted(&cluster, objects::node(&cluster.world));
    let mut proxy = cluster.proxy_with(READINESS);
    becomes_ready(&cluster, &mut proxy);
    drop(proxy);
    let before = stored_node(&cluster)["metadata"]["resourceVersion"].clone();
    let mut proxy = cluster.proxy_with(READINESS);
    let outcome = proxy.wait_until(PATIENCE, "the verification", || {
        let page = common::page(&cluster, "/metrics");
        page.contains("portolan_programmed_and_verified 1\n")
            && page.lines().any(|line| line.starts_with("portolan_node_writes_total{result=\"ok\"} "))
    });
    assert!(outcome.is_ok(), "{}", proxy.output());
    assert_eq!(stored_node(&cluster)["metadata"]["resourceVersion"], before, "{}", proxy.output());
}

#[test]
fn a_node_that_cannot_be_written_is_reported_and_services_work() {
    let cluster = Cluster::new();
    busy_services(&cluster);
    cluster.delete(Resource::Node, NODE);
    let mut proxy = cluster.proxy_with(&format!("bindAddress: {INSIDE}\n{READINESS}"));
    let event = cluster.event("NodeNotUpdated");
    assert_eq!((&event["type"], &event["regarding"]["kind"]), (&json!("Warning"), &json!("Node")));
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("the Node object does not exist"), "{note}");
    let page = common::page(&cluster, "/metrics");
    assert!(page.contains("portolan_node_writes_total{result=\"failed\"} "), "{page}");
    let pod = &cluster.world.pods()[0];
    cluster.service(objects::cluster_ip("later", "10.96.0.12"), &[pod]);
    reaches(cluster.world.client().namespace(), Protocol::Tcp, at("10.96.0.12:80"), &[pod]);
    // The write is tried again.
    cluster.apply(objects::node(&cluster.world));
    overwrite_tainted(&cluster, objects::node(&cluster.world));
    becomes_ready(&cluster, &mut proxy);
}

#[test]
fn readiness_can_be_switched_on_while_the_proxy_runs() {
    let cluster = Cluster::new();
    busy_services(&cluster);
    overwrite_tainted(&cluster, objects::node(&cluster.world));
    let mut proxy = cluster.proxy();
    assert_eq!(stored_node(&cluster)["spec"]["taints"], taints(), "without the setting nothing is written");
    cluster.configure(READINESS);
    becomes_ready(&cluster, &mut proxy);
}
