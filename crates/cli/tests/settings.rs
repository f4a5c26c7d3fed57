//! The effects of the configuration, the Node object, ServiceCIDRs and the node's addresses on packets. Needs root
//! and nft, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::net::IpAddr;

use portolan_testkit::{Namespace, Pod, PortolanProcess, Probe, ProbeResult, Protocol, eventually};
use serde_json::{Value, json};

use common::kernel::generation;
use common::{Cluster, PATIENCE, at, ends_as, in_sync, objects, reaches};

const WEB: &str = "10.96.0.10:80";
const WEB_V6: &str = "[fd00:96::10]:80";
const NODE_PORT: &str = "192.168.100.1:30080";
const NODE_PORT_OUTSIDE: &str = "203.0.113.1:30080";

/// Creates Services with one backend, which is on another node.
fn web(cluster: &Cluster) -> &Pod {
    let pod = &cluster.world.remote_pods()[0];
    cluster.service(objects::load_balancer("web", "10.96.0.10", 30_080, "198.51.100.7"), &[pod]);
    cluster.service(objects::cluster_ip("web-v6", "fd00:96::10"), &[pod]);
    pod
}

/// Returns the source address that the backend sees.
fn seen_source(from: &Namespace, to: &str) -> IpAddr {
    let result = from.probe(Probe::new(Protocol::Tcp, at(to))).unwrap();
    result.seen_source().unwrap_or_else(|| panic!("{to} from {}: {result:?}", from.name()))
}

/// Returns true if the backend sees one of the node's addresses instead of the sender's.
fn is_masqueraded(cluster: &Cluster, sender: &Pod, to: &str) -> bool {
    let seen = seen_source(sender.namespace(), to);
    let (own, node) = (sender.addresses().both(), cluster.world.node().all_addresses());
    assert!(own.contains(&seen) != node.contains(&seen), "{to}: seen from {seen}");
    node.contains(&seen)
}

#[test]
fn a_service_cidr_added_later_drops_what_is_not_allocated() {
    let cluster = Cluster::new();
    let (pod, client) = (&cluster.world.pods()[0], cluster.world.client());
    let to = at("10.97.0.5:8080");
    client.add_addresses(&[to.ip()]).unwrap();
    cluster.world.echo().listen(client.namespace(), Protocol::Tcp, to).unwrap();
    let _proxy = cluster.proxy();
    let reached = pod.namespace().probe(Probe::new(Protocol::Tcp, to)).unwrap();
    assert_eq!(reached.backend(), Some(to));
    cluster.apply(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"},
        "spec": {"cidrs": ["10.97.0.0/24"]},
    }));
    ends_as(pod.namespace(), Protocol::Tcp, to, ProbeResult::TimedOut);
    cluster.delete(portolan_serve::Resource::ServiceCidr, "more");
    let back = || pod.namespace().probe(Probe::new(Protocol::Tcp, to).expecting_silence()).unwrap().backend();
    assert!(eventually(PATIENCE, "the way back", || back() == Some(to)).is_ok());
}

#[test]
fn node_ports_follow_the_addresses_of_the_node() {
    let cluster = Cluster::new();
    let backend = web(&cluster);
    let client = cluster.world.client().namespace();
    let _proxy = cluster.proxy_with("nodePortAddresses: [192.168.100.0/24, 198.18.0.0/24]\n");
    let later = at("198.18.0.9:30080");
    reaches(client, Protocol::Tcp, at(NODE_PORT), &[backend]);
    ends_as(client, Protocol::Tcp, at(NODE_PORT_OUTSIDE), ProbeResult::Refused);
    ends_as(client, Protocol::Tcp, later, ProbeResult::TimedOut);
    cluster.world.node().namespace().ip("addr add 198.18.0.9/32 dev eth0\n").unwrap();
    reaches(client, Protocol::Tcp, later, &[backend]);
    reaches(client, Protocol::Udp, later, &[backend]);
    cluster.world.node().namespace().ip("addr del 198.18.0.9/32 dev eth0\n").unwrap();
    ends_as(client, Protocol::Tcp, later, ProbeResult::TimedOut);
    reaches(client, Protocol::Tcp, at(NODE_PORT), &[backend]);
}

#[test]
fn external_ips_need_their_feature_gate() {
    let cluster = Cluster::new();
    let pod = &cluster.world.remote_pods()[0];
    let mut service = objects::cluster_ip("web", "10.96.0.10");
    service["spec"]["externalIPs"] = json!(["198.51.100.9"]);
    cluster.service(service, &[pod]);
    let (client, external) = (cluster.world.client().namespace(), at("198.51.100.9:80"));
    let proxy = cluster.proxy();
    reaches(client, Protocol::Tcp, external, &[pod]);
    drop(proxy);
    let _proxy = cluster.proxy_with("featureGates: {AllowServiceExternalIPs: false}\n");
    reaches(client, Protocol::Tcp, at(WEB), &[pod]);
    let probe = Probe::new(Protocol::Tcp, external).expecting_silence();
    let gone = || client.probe(probe).unwrap().backend().is_none();
    assert!(eventually(PATIENCE, "the external IP to go", gone).is_ok());
}

#[test]
fn the_value_that_chose_an_endpoint_never_leaves_the_node() {
    let cluster = Cluster::new();
    let backend = web(&cluster);
    let node = cluster.world.node().namespace();
    let nft = |command: &str| common::kernel::nft(node, command);
    // Without this, the kernel overwrites the value in forwarded packets.
    node.output("sysctl", &["-qw", "net.ipv4.ip_forward_update_priority=0"]).unwrap();
    nft("add table inet watch");
    nft("add chain inet watch out { type filter hook postrouting priority -200 ; }");
    nft("add rule inet watch out th dport 8080 meta priority != none counter comment \"leaked\"");
    nft("add rule inet watch out th dport 8080 counter comment \"translated\"");
    let _proxy = cluster.proxy();
    for from in [cluster.world.client().namespace(), cluster.world.pods()[0].namespace(), node] {
        for (protocol, to) in [(Protocol::Tcp, WEB), (Protocol::Udp, WEB), (Protocol::Tcp, WEB_V6)] {
            reaches(from, protocol, at(to), &[backend]);
        }
    }
    let rules = nft("list chain inet watch out");
    let of = |comment: &str| rules.lines().find(|line| line.contains(comment)).unwrap().to_owned();
    assert!(of("leaked").contains("packets 0 "), "{rules}");
    assert!(!of("translated").contains("packets 0 "), "{rules}");
}

/// As in a container without privileges.
#[test]
fn a_read_only_proc_is_reported_and_everything_else_works() {
    let cluster = Cluster::new();
    let backend = web(&cluster);
    cluster.configure("conntrack: {tcpBeLiberal: true}\n");
    let read_only =
        "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec \"$0\" \"$@\"";
    let (file, master) = (cluster.configuration_file(), cluster.master());
    let portolan =
        [env!("CARGO_BIN_EXE_portolan"), "proxy", "--config", file.to_str().unwrap(), "--master", &master];
    let arguments = [&["--mount", "--", "sh", "-c", read_only][..], &portolan].concat();
    let node = cluster.world.node().namespace();
    let mut proxy = PortolanProcess::start(node, "unshare".as_ref(), &arguments).unwrap();
    in_sync(&mut proxy);
    reaches(cluster.world.client().namespace(), Protocol::Tcp, at(WEB), &[backend]);
    let log = proxy.output();
    let setting =
        "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal: wanted 1, is 0 (Read-only file system";
    assert!(
        log.contains(setting) && log.contains("sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1"),
        "{log}"
    );
    let value = node.output("sysctl", &["-n", "net.netfilter.nf_conntrack_tcp_be_liberal"]).unwrap();
    assert_eq!(value.trim(), "0");
}

#[test]
fn topology_hints_follow_the_zone_of_the_node() {
    let cluster = Cluster::new();
    let [one, other] = cluster.world.pods() else { panic!("two pods") };
    let service = objects::cluster_ip("web", "10.96.0.10");
    let mut slice = objects::slice("web", &[one, other], &objects::ports(&service));
    for (endpoint, zone) in slice["endpoints"].as_array_mut().unwrap().iter_mut().zip(["a", "b"]) {
        endpoint["hints"] = json!({"forZones": [{"name": zone}]});
    }
    cluster.apply(service);
    cluster.apply(slice);
    let _proxy = cluster.proxy();
    let client = cluster.world.client().namespace();
    reaches(client, Protocol::Tcp, at(WEB), &[one]);
    let zone = |zone: Value| {
        let mut node = objects::node(&cluster.world);
        node["metadata"]["labels"]["topology.kubernetes.io/zone"] = zone;
        cluster.apply(node);
    };
    zone(json!("b"));
    reaches(client, Protocol::Tcp, at(WEB), &[other]);
    // No endpoint has a hint for this zone, so all are used.
    zone(json!("c"));
    reaches(client, Protocol::Tcp, at(WEB), &[one, other]);
    zone(json!("a"));
    reaches(client, Protocol::Tcp, at(WEB), &[one]);
}

#[test]
fn the_configuration_decides_what_is_masqueraded() {
    let cases = [
        ("", false, true),
        ("clusterCIDR: 203.0.113.0/24,2001:db8:113::/64\n", true, false),
        ("nftables: {masqueradeAll: true}\n", true, true),
        ("nftables: {masqueradeAll: true, masqueradeBit: 7}\n", true, true),
        ("detectLocalMode: NodeCIDR\nclusterCIDR: ''\n", false, true),
        ("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: pod}\n", false, true),
        ("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: eth1}\n", true, false),
        ("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: pod1}\n", false, true),
        ("clusterCIDR: ''\n", false, false),
    ];
    let cluster = Cluster::new();
    let backend = web(&cluster);
    for (yaml, pod, client) in cases {
        let _proxy = cluster.proxy_with(yaml);
        reaches(cluster.world.pods()[0].namespace(), Protocol::Tcp, at(WEB), &[backend]);
        for to in [WEB, WEB_V6] {
            assert_eq!(is_masqueraded(&cluster, &cluster.world.pods()[0], to), pod, "{yaml:?}: a pod, {to}");
            assert_eq!(
                is_masqueraded(&cluster, cluster.world.client(), to),
                client,
                "{yaml:?}: the client, {to}"
            );
        }
        assert!(is_masqueraded(&cluster, cluster.world.client(), NODE_PORT), "{yaml:?}");
    }
}

#[test]
fn the_configuration_decides_where_node_ports_are_served() {
    let cases = [
        ("", true, false),
        ("nodePortAddresses: [primary]\n", true, false),
        ("nodePortAddresses: [0.0.0.0/0]\n", true, true),
        ("nodePortAddresses: [203.0.113.0/24]\n", false, true),
        ("bindAddress: 203.0.113.1\n", false, true),
    ];
    let cluster = Cluster::new();
    let backend = web(&cluster);
    let client = cluster.world.client().namespace();
    for (yaml, inside, outside) in cases {
        let _proxy = cluster.proxy_with(yaml);
        for (to, answers) in [(NODE_PORT, inside), (NODE_PORT_OUTSIDE, outside)] {
            if answers {
                reaches(client, Protocol::Tcp, at(to), &[backend]);
            } else {
                ends_as(client, Protocol::Tcp, at(to), ProbeResult::Refused);
            }
        }
    }
}

#[test]
fn a_configuration_that_makes_no_sense_ends_the_start_and_names_the_field() {
    let cluster = Cluster::new();
    let cases = [
        ("clusterCidr: 10.0.0.0/8\n", "clusterCidr"),
        ("nftables: {minSyncPeriods: 0s}\n", "nftables.minSyncPeriods"),
        ("nftables: {minSyncPeriod: soon}\n", "nftables.minSyncPeriod"),
        ("nftables: {masqueradeBit: 32}\n", "nftables.masqueradeBit"),
        ("clusterCIDR: 10.0.0.0/33\n", "clusterCIDR"),
        ("nodePortAddresses: [everywhere]\n", "nodePortAddresses"),
        ("detectLocalMode: Guess\n", "detectLocalMode"),
        ("detectLocalMode: BridgeInterface\n", "detectLocal.bridgeInterface"),
        ("healthzBindAddress: here\n", "healthzBindAddress"),
        ("mode: kernelspace\n", "mode"),
        ("mode: userspace\nportRange: '3000'\n", "portRange"),
        ("mode: ipvs\nipvs: {syncPeriod: soon}\n", "ipvs.syncPeriod"),
    ];
    for (yaml, field) in cases {
        let mut proxy = cluster.start_proxy(yaml);
        let status = proxy.wait_for_end(PATIENCE).unwrap();
        let output = proxy.output();
        assert_eq!(status.code(), Some(1), "{yaml}: {output}");
        assert!(output.contains(field), "{yaml}: {output}");
    }
}

/// Waits until the proxy knows this many changes of EndpointSlices.
fn known(cluster: &Cluster, changes: usize) {
    let line = format!("kubeproxy_sync_proxy_rules_endpoint_changes_total {changes}");
    let known = || common::page(cluster, "/metrics").lines().any(|other| other == line);
    assert!(eventually(PATIENCE, &line, known).is_ok());
}

#[test]
fn min_sync_period_merges_changes_into_one_commit() {
    const CHANGES: usize = 20;
    let cluster = Cluster::new();
    let [one, other] = cluster.world.pods() else { panic!("two pods") };
    let service = objects::cluster_ip("web", "10.96.0.10");
    let slice = |pods: &[&Pod]| objects::slice("web", pods, &objects::ports(&service));
    cluster.service(service.clone(), &[one]);
    let node = cluster.world.node().namespace();
    let client = cluster.world.client().namespace();
    let _proxy = cluster.proxy_with("nftables: {minSyncPeriod: 1h, syncPeriod: 1h}\n");
    let before = generation(node);
    for number in 0..CHANGES {
        let pod = if number.is_multiple_of(2) { other } else { one };
        cluster.apply(slice(&[pod]));
        // Without the period, this change is committed before the next one.
        known(&cluster, number + 2);
    }
    cluster.apply(slice(&[other]));
    known(&cluster, CHANGES + 2);
    assert_eq!(generation(node), before, "the period has not ended");
    reaches(client, Protocol::Tcp, at(WEB), &[one]);
    cluster.configure("nftables: {minSyncPeriod: 0s, syncPeriod: 1h}\n");
    reaches(client, Protocol::Tcp, at(WEB), &[other]);
    assert_eq!(generation(node), before + 1, "one commit has all changes");
    // Without a period, each change has a commit of its own.
    for (number, pod) in [one, other, one, other].into_iter().enumerate() {
        cluster.apply(slice(&[pod]));
        reaches(client, Protocol::Tcp, at(WEB), &[pod]);
        assert_eq!(generation(node), before + 2 + u32::try_from(number).unwrap());
    }
}
