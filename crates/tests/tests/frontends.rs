//! Which addresses a Service answers at, and to whom.

use std::net::IpAddr;

use portolan_model::{Family, NodePortAddresses};
use portolan_tests::{At, Cluster, Service, service};
use serde_json::json;

const CLIENT: [&str; 2] = ["203.0.113.0/24", "2001:db8:113::/64"];
const NODES: [&str; 2] = ["192.168.100.0/24", "fd00:192:168:100::/64"];

#[test]
fn source_ranges_guard_load_balancer_ips_and_nothing_else() {
    let mut cluster = Cluster::new();
    let guarded = service().source_ranges(&CLIENT);
    let at = &[At::LoadBalancerIp];
    cluster.check(at, &guarded, "Rl1 Rr1", "client l1* r1*, pod drop, l1 drop, node drop, remote drop");
    let others = [At::ClusterIp, At::ExternalIp, At::NodePort];
    cluster.expect(&others[..1], "pod l1 r1, client l1* r1*", "cluster IP");
    cluster.expect(&others[1..], "pod l1* r1*, node l1* r1*, client l1* r1*", "external IP and node port");
    cluster.check(at, &guarded, "", "client reject, pod drop, node drop");
    let local = guarded.external_local();
    cluster.check(at, &local, "Rl1 Rr1", "client l1, pod drop, node drop");
    cluster.check(at, &local, "Rr1", "client drop, pod drop, node drop");
}

#[test]
fn source_ranges_may_overlap_touch_and_be_idle() {
    let mut cluster = Cluster::new();
    let at = &[At::LoadBalancerIp];
    let nested = ["10.0.0.0/8", "10.244.1.0/24", "10.244.1.11/32", "fd00::/8", "fd00:10:244:1::/64"];
    cluster.check(at, &service().source_ranges(&nested), "Rl1", "pod l1*, l1 l1*, remote l1*, client drop");
    let halves = ["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"];
    cluster.check(at, &service().source_ranges(&halves), "Rl1", "pod l1*, node l1*, client l1*");
    let all = [CLIENT[0], CLIENT[1], "0.0.0.0/0", "::/0"];
    cluster.check(at, &service().source_ranges(&all), "Rl1", "pod l1*, node l1*, client l1*");
    cluster.check(
        at,
        &service().source_ranges(&[" 203.0.113.10/32", "2001:db8:113::a/128 "]),
        "Rl1",
        "client l1*, pod drop",
    );
}

#[test]
fn source_ranges_of_one_family_leave_the_other_open() {
    let mut cluster = Cluster::new();
    cluster.put(&service().source_ranges(&CLIENT[..1]), "Rl1");
    cluster.expect_in(&[Family::Ipv4], &[At::LoadBalancerIp], "client l1*, pod drop", "guarded");
    cluster.expect_in(&[Family::Ipv6], &[At::LoadBalancerIp], "client l1*, pod l1*, node l1*", "open");
}

#[test]
fn a_node_inside_the_source_ranges_may_appear_as_the_load_balancer() {
    let mut cluster = Cluster::new();
    let addresses = Family::BOTH.map(|family| At::LoadBalancerIp.socket(family).ip());
    cluster.add_node_addresses("vip", addresses);
    let at = &[At::LoadBalancerIp];
    cluster.check(at, &service().source_ranges(&NODES), "Rl1 Rr1", "vip l1* r1*, node l1* r1*, client drop");
    cluster.check(at, &service().source_ranges(&CLIENT), "Rl1", "vip drop, node drop, client l1*");
    cluster.configure(|settings| settings.node_ip = None);
    cluster.check(at, &service().source_ranges(&NODES), "Rl1", "vip drop, node l1*, client drop");
}

#[test]
fn node_ports_answer_at_the_chosen_addresses() {
    let mut cluster = Cluster::new();
    cluster.put(&service().external(), "Rl1 Rr1");
    let at = &[At::NodePort];
    cluster.expect(at, "pod l1* r1*, node l1* r1*, client l1* r1*", "the node's own address");
    cluster.configure(|settings| settings.node_port_addresses = NodePortAddresses::Addresses(Vec::new()));
    cluster.expect(at, "pod ignored, node ignored, client ignored", "no address at all");
    cluster.configure(|settings| settings.node_port_addresses = NodePortAddresses::MatchAll);
    cluster.expect(at, "pod l1* r1*, node l1* r1*, client l1* r1*", "every address");
    cluster.expect(&[At::LoopbackNodePort], "node ignored", "but loopback");
    cluster.put_endpoints("");
    cluster.expect(at, "pod reject, node reject, client reject", "no endpoint");
    cluster.expect(&[At::LoopbackNodePort], "node ignored", "no endpoint, loopback");
}

#[test]
fn a_load_balancer_that_is_a_proxy_is_left_alone() {
    let mut cluster = Cluster::new();
    let proxy = |address: IpAddr| json!({ "ip": address, "ipMode": "Proxy" });
    let ingress = Family::BOTH.map(|family| proxy(At::LoadBalancerIp.socket(family).ip()));
    let service = service().external().with("/status/loadBalancer/ingress", json!(ingress));
    for family in Family::BOTH {
        cluster.serve_outside(At::LoadBalancerIp.socket(family));
    }
    cluster.check(&[At::LoadBalancerIp], &service, "Rl1", "pod ignored, node ignored, remote ignored");
    cluster.expect(&[At::ExternalIp, At::NodePort], "pod l1*, client l1*", "the rest of it");
}

#[test]
fn services_that_are_not_for_a_proxy() {
    let mut cluster = Cluster::new();
    let usual = service().external();
    let headless =
        usual.clone().with("/spec/clusterIP", json!("None")).with("/spec/clusterIPs", json!(["None"]));
    let external_name = usual.clone().with("/spec/type", json!("ExternalName"));
    let label = "/metadata/labels/service.kubernetes.io~1service-proxy-name";
    let foreign = usual.clone().with(label, json!(""));
    for skipped in [headless, external_name, foreign] {
        assert_taken(&mut cluster, &usual);
        cluster.check(&[At::ClusterIp], &skipped, "Rl1", "pod drop, node drop, client drop");
        cluster.expect(&At::EXTERNAL, "pod ignored, node ignored, client ignored", "skipped");
    }
    assert_taken(&mut cluster, &usual);
}

fn assert_taken(cluster: &mut Cluster, service: &Service) {
    cluster.check(&[At::ClusterIp], service, "Rl1", "pod l1, client l1*");
    cluster.expect(&At::EXTERNAL, "pod l1*, client l1*", "not skipped");
}

#[test]
fn a_service_of_one_family_says_nothing_in_the_other() {
    let mut cluster = Cluster::new();
    let single = service()
        .external()
        .with("/spec/ipFamilies", json!(["IPv6"]))
        .with("/spec/clusterIP", json!(At::ClusterIp.socket(Family::Ipv6).ip()))
        .with("/spec/clusterIPs", json!([At::ClusterIp.socket(Family::Ipv6).ip()]));
    cluster.put(&single, "Rl1");
    cluster.expect_in(&[Family::Ipv6], &[At::ClusterIp], "pod l1, client l1*", "its family");
    cluster.expect_in(&[Family::Ipv6], &At::EXTERNAL, "pod l1*, client l1*", "its family");
    cluster.expect_in(&[Family::Ipv4], &[At::ClusterIp], "pod drop, client drop", "the other");
    cluster.expect_in(&[Family::Ipv4], &At::EXTERNAL, "pod ignored, client ignored", "the other");
}
