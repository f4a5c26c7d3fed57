//! The addresses at which a Service responds, and the clients that may use them.

use std::net::IpAddr;

use portolan_model::{Family, NodePortAddresses};
use portolan_tests::{At, Cluster, Mode, ModeOptions, Service, in_every_mode, service};
use serde_json::json;

in_every_mode! {
    source_ranges_guard_load_balancer_ips_and_nothing_else,
    source_ranges_may_overlap_touch_and_be_idle,
    source_ranges_of_one_family_leave_the_other_open,
    source_ranges_that_cannot_be_read_let_no_client_in,
    a_node_inside_the_source_ranges_may_appear_as_the_load_balancer,
    node_ports_answer_at_the_chosen_addresses,
    node_ports_on_loopback_are_a_setting,
    a_load_balancer_that_is_a_proxy_is_left_alone,
    services_that_are_not_for_a_proxy,
    a_service_of_one_family_says_nothing_in_the_other,
}

const CLIENT: [&str; 2] = ["203.0.113.0/24", "2001:db8:113::/64"];
/// The fate of packets to an address of a service CIDR that no Service has.
const IGNORED_OR_DROPPED: &str = "pod drop [iptables/redirect/ipvs: ignored], node drop [iptables/redirect/ipvs: ignored], client drop [iptables/redirect/ipvs: ignored]";
const NODES: [&str; 2] = ["192.168.100.0/24", "fd00:192:168:100::/64"];

fn source_ranges_guard_load_balancer_ips_and_nothing_else(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    let guarded = service().source_ranges(&CLIENT);
    let at = &[At::LoadBalancerIp];
    cluster.check(
        at,
        &guarded,
        "Rl1 Rr1",
        "client l1* r1* because source-in-range, pod drop because source-outside-ranges, l1 drop, node drop, \
         remote drop",
    );
    let others = [At::ClusterIp, At::ExternalIp, At::NodePort];
    cluster.expect(&others[..1], "pod l1 r1, client l1* r1*", "cluster IP");
    cluster.expect(&others[1..], "pod l1* r1*, node l1* r1*, client l1* r1*", "external IP and node port");
    let refused = "client reject because no-endpoints, \
                  pod drop [iptables/redirect: reject] because source-outside-ranges \
                  [iptables/redirect: source-ranges-not-checked], node drop [iptables/redirect: ignored]";
    cluster.check(at, &guarded, "", refused);
    let local = guarded.external_local();
    cluster.check(at, &local, "Rl1 Rr1", "client l1, pod drop, node drop");
    cluster.check(at, &local, "Rr1", "client drop, pod drop, node drop");
}

fn source_ranges_may_overlap_touch_and_be_idle(mode: Mode) {
    let mut cluster = Cluster::new(mode);
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

fn source_ranges_of_one_family_leave_the_other_open(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    cluster.put(&service().source_ranges(&CLIENT[..1]), "Rl1");
    cluster.expect_in(&[Family::Ipv4], &[At::LoadBalancerIp], "client l1*, pod drop", "guarded");
    cluster.expect_in(&[Family::Ipv6], &[At::LoadBalancerIp], "client l1*, pod l1*, node l1*", "open");
}

fn source_ranges_that_cannot_be_read_let_no_client_in(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    let (at, unreadable) = (&[At::LoadBalancerIp], service().source_ranges(&["10.0.0.0/33", "everybody"]));
    cluster.check(
        at,
        &unreadable,
        "Rl1 Rr1",
        "client drop because source-ranges-unreadable, pod drop, l1 drop, node drop, remote drop",
    );
    let others = [At::ClusterIp, At::ExternalIp, At::NodePort];
    cluster.expect(&others[..1], "pod l1 r1, client l1* r1*", "cluster IP");
    cluster.expect(&others[1..], "pod l1* r1*, node l1* r1*, client l1* r1*", "external IP and node port");
    cluster.put(&service().source_ranges(&[CLIENT[0], "everybody"]), "Rl1");
    cluster.expect_in(&[Family::Ipv4], at, "client l1*, pod drop", "one can be read");
    cluster.expect_in(&[Family::Ipv6], at, "client drop, pod drop, node drop", "none can be read");
}

fn a_node_inside_the_source_ranges_may_appear_as_the_load_balancer(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    let addresses = Family::BOTH.map(|family| At::LoadBalancerIp.socket(family).ip());
    cluster.add_node_addresses("vip", addresses);
    let at = &[At::LoadBalancerIp];
    cluster.check(
        at,
        &service().source_ranges(&NODES),
        "Rl1 Rr1",
        "vip l1* r1* because source-is-load-balancer-ip, node l1* r1*, client drop",
    );
    cluster.check(at, &service().source_ranges(&CLIENT), "Rl1", "vip drop, node drop, client l1*");
    cluster.configure(|settings| settings.node_ip = None);
    cluster.check(at, &service().source_ranges(&NODES), "Rl1", "vip drop, node l1*, client drop");
}

fn node_ports_answer_at_the_chosen_addresses(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    cluster.put(&service().external(), "Rl1 Rr1");
    let (at, ipv4, ipv6) = (&[At::NodePort], &[Family::Ipv4], &[Family::Ipv6]);
    let loopback = &[At::LoopbackNodePort];
    cluster.expect(at, "pod l1* r1*, node l1* r1*, client l1* r1*", "the node's own address");
    cluster.configure(|settings| settings.node_port_addresses = NodePortAddresses::Addresses(Vec::new()));
    cluster.expect(
        at,
        "pod ignored because node-port-not-accepted left-to-node, node ignored, client ignored",
        "no address at all",
    );
    cluster.expect(loopback, "node ignored", "no address at all");
    cluster.configure(|settings| settings.node_port_addresses = NodePortAddresses::MatchAll);
    cluster.expect(at, "pod l1* r1*, node l1* r1*, client l1* r1*", "every address");
    cluster.expect_in(ipv4, loopback, "node ignored [iptables: l1* r1*]", "every address, but loopback");
    cluster.expect_in(ipv6, loopback, "node ignored", "every address, but loopback");
    cluster.put(&service().external_local(), "Rl1 Rr1");
    cluster.expect_in(ipv4, loopback, "node ignored [iptables: l1* r1*]", "the short cut");
    cluster.put_endpoints("");
    cluster.expect(at, "pod reject, node reject, client reject", "no endpoint");
    cluster.expect(loopback, "node ignored [iptables/redirect: reject]", "no endpoint, loopback");
    cluster.configure(|settings| settings.node_port_addresses = NodePortAddresses::Addresses(Vec::new()));
    cluster.expect(
        at,
        "pod ignored [iptables/redirect: reject] because left-to-node \
         [iptables/redirect: node-port-stopped no-endpoints], client ignored [iptables/redirect: reject]",
        "neither",
    );
}

fn node_ports_on_loopback_are_a_setting(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    cluster.configure(|settings| settings.node_port_addresses = NodePortAddresses::MatchAll);
    cluster.put(&service().external(), "Rl1 Rr1");
    let (ipv4, at) = (&[Family::Ipv4], &[At::LoopbackNodePort]);
    cluster.set_options(ModeOptions { localhost_node_ports: false, lists_loopback: false });
    cluster.expect(at, "node ignored", "off");
    cluster.expect(&[At::NodePort], "pod l1* r1*, node l1* r1*", "every other address");
    cluster.set_options(ModeOptions { localhost_node_ports: true, lists_loopback: true });
    cluster.configure(|settings| settings.node_port_addresses = NodePortAddresses::Addresses(Vec::new()));
    cluster.expect_in(ipv4, at, "node ignored [iptables: l1* r1*]", "this address only");
    cluster.expect(&[At::NodePort], "pod ignored, node ignored", "another address");
}

fn a_load_balancer_that_is_a_proxy_is_left_alone(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    let proxy = |address: IpAddr| json!({ "ip": address, "ipMode": "Proxy" });
    let ingress = Family::BOTH.map(|family| proxy(At::LoadBalancerIp.socket(family).ip()));
    let service = service().external().with("/status/loadBalancer/ingress", json!(ingress));
    for family in Family::BOTH {
        cluster.serve_outside(At::LoadBalancerIp.socket(family));
    }
    cluster.check(&[At::LoadBalancerIp], &service, "Rl1", "pod ignored, node ignored, remote ignored");
    cluster.expect(&[At::ExternalIp, At::NodePort], "pod l1*, client l1*", "the rest of it");
}

fn services_that_are_not_for_a_proxy(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    let usual = service().external();
    let headless =
        usual.clone().with("/spec/clusterIP", json!("None")).with("/spec/clusterIPs", json!(["None"]));
    let external_name = usual.clone().with("/spec/type", json!("ExternalName"));
    let label = "/metadata/labels/service.kubernetes.io~1service-proxy-name";
    let foreign = usual.clone().with(label, json!(""));
    for skipped in [headless, external_name, foreign] {
        assert_taken(&mut cluster, &usual);
        cluster.check(&[At::ClusterIp], &skipped, "Rl1", IGNORED_OR_DROPPED);
        cluster.expect(&At::EXTERNAL, "pod ignored, node ignored, client ignored", "skipped");
    }
    assert_taken(&mut cluster, &usual);
}

fn assert_taken(cluster: &mut Cluster, service: &Service) {
    cluster.check(&[At::ClusterIp], service, "Rl1", "pod l1, client l1*");
    cluster.expect(&At::EXTERNAL, "pod l1*, client l1*", "not skipped");
}

fn a_service_of_one_family_says_nothing_in_the_other(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    let single = service()
        .external()
        .with("/spec/ipFamilies", json!(["IPv6"]))
        .with("/spec/clusterIP", json!(At::ClusterIp.socket(Family::Ipv6).ip()))
        .with("/spec/clusterIPs", json!([At::ClusterIp.socket(Family::Ipv6).ip()]));
    cluster.put(&single, "Rl1");
    cluster.expect_in(&[Family::Ipv6], &[At::ClusterIp], "pod l1, client l1*", "its family");
    cluster.expect_in(&[Family::Ipv6], &At::EXTERNAL, "pod l1*, client l1*", "its family");
    cluster.expect_in(&[Family::Ipv4], &[At::ClusterIp], IGNORED_OR_DROPPED, "the other");
    cluster.expect_in(&[Family::Ipv4], &At::EXTERNAL, "pod ignored, client ignored", "the other");
}
