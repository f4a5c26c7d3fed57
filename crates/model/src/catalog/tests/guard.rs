//! External addresses of Services that belong to something else.

use super::*;
use crate::object::Notice;

/// A Catalog whose first lists are complete. This node has one address of each family and one pod CIDR; cluster IPs
/// are allocated from 10.96.0.0/16.
fn complete() -> Catalog {
    let mut catalog = Catalog::new("n1");
    catalog.apply(node_at(&["192.0.2.1", "2001:db8::1"], &["10.244.1.0/24"]));
    catalog.apply(cidr("main", &["10.96.0.0/16"]));
    finish_lists(&mut catalog);
    catalog.set_address_guard(AddressGuard::default(), vec!["10.244.0.0/16".parse().expect("a CIDR")]);
    catalog
}

fn finish_lists(catalog: &mut Catalog) -> Applied {
    [Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr]
        .map(|kind| catalog.apply(Event::ListEnd(kind)))
        .into_iter()
        .fold(Applied::default(), |mut all, applied| {
            all.faults.extend(applied.faults);
            all
        })
}

fn node_at(addresses: &[&str], pod_cidrs: &[&str]) -> Event {
    let list: Vec<Value> =
        addresses.iter().map(|address| json!({ "type": "InternalIP", "address": address })).collect();
    let object = json!({
        "metadata": { "name": "n1" }, "spec": { "podCIDRs": pod_cidrs }, "status": { "addresses": list },
    });
    Event::Node(decode_node(object.to_string().as_bytes()).expect("decodes"))
}

/// A Service with these external IPs and load-balancer IPs, and port 80. The cluster IP of `web` is 10.96.0.9; that of
/// others is 10.96.0.10.
fn external(name: &str, ips: &[&str], load_balancer_ips: &[&str]) -> Event {
    let ingress: Vec<Value> = load_balancer_ips.iter().map(|ip| json!({ "ip": ip })).collect();
    let own = if name == "web" { "10.96.0.9" } else { "10.96.0.10" };
    let object = json!({
        "metadata": { "namespace": "ns", "name": name },
        "spec": { "type": "LoadBalancer", "clusterIP": own, "externalIPs": ips, "ports": [{ "port": 80 }] },
        "status": { "loadBalancer": { "ingress": ingress } },
    });
    Event::Service(decode_service(object.to_string().as_bytes()).expect("decodes"))
}

/// The addresses and kinds of the frontends of a Service, besides its cluster IP.
fn served(catalog: &Catalog, name: &str) -> Vec<String> {
    let of_service = |(known, _): &(Arc<ServicePortName>, Arc<Forwarding>)| &*known.service == name;
    let found = catalog.forwardings(Family::Ipv4).find(of_service);
    let all = found.map(|(_, forwarding)| forwarding.frontends.to_vec()).unwrap_or_default();
    let external = all.iter().filter(|frontend| !matches!(frontend, Frontend::ClusterIp(..)));
    external.filter_map(|frontend| Some(frontend.socket()?.ip().to_string())).collect()
}

fn strict(owner: AddressOwner) -> AddressGuard {
    let mut guard = AddressGuard::default();
    guard.set(owner, GuardAction::Refuse);
    guard
}

fn count(catalog: &Catalog, owner: AddressOwner, action: GuardAction) -> usize {
    catalog.guarded_addresses().get(&(owner, action)).copied().unwrap_or_default()
}

#[test]
fn cluster_ips_are_indexed_for_the_first_address_among_them_and_followed_from_then_on() {
    let mut catalog = complete();
    catalog.apply(cluster_ip("low", "10.96.0.1", 80));
    catalog.apply(cluster_ip("high", "10.96.0.200", 80));
    catalog.apply(external("web", &["203.0.113.1"], &[]));
    assert!(!catalog.review.has_index(), "no node pays for it without need");
    catalog.apply(external("web", &["10.96.0.100"], &[]));
    assert!(catalog.review.has_index());
    let refused = |catalog: &Catalog| count(catalog, AddressOwner::ClusterIp, GuardAction::Refuse);
    assert_eq!(refused(&catalog), 0);
    catalog.apply(cluster_ip("new", "10.96.0.100", 80));
    assert_eq!(refused(&catalog), 1);
    catalog.apply(cluster_ip("new", "10.96.0.101", 80));
    assert_eq!(refused(&catalog), 0);
    catalog.apply(cluster_ip("high", "10.96.0.100", 80));
    assert_eq!(refused(&catalog), 1);
    let key = |name: &str| crate::object::ObjectKey { namespace: "ns".into(), name: name.into() };
    catalog.apply(Event::ServiceDeleted(key("high")));
    assert_eq!(refused(&catalog), 0);
    for name in ["low", "new", "web"] {
        catalog.apply(Event::ServiceDeleted(key(name)));
    }
    assert!(catalog.review.is_empty());
}

#[test]
fn each_kind_of_address_has_its_default() {
    use AddressOwner::{ClusterCidr, ClusterIp, Node, PodCidr, ServiceCidr};
    use GuardAction::{Refuse, Warn};
    let cases = [
        ("10.96.0.1", Some((ClusterIp, Refuse))),
        ("10.244.1.7", Some((PodCidr, Refuse))),
        ("192.0.2.1", Some((Node, Refuse))),
        ("10.96.7.7", Some((ServiceCidr, Warn))),
        ("10.244.7.7", Some((ClusterCidr, Warn))),
        ("203.0.113.1", None),
        // Its own cluster IP is no external address.
        ("10.96.0.9", None),
    ];
    for (address, wanted) in cases {
        for is_load_balancer_ip in [false, true] {
            let mut catalog = complete();
            catalog.apply(cluster_ip("dns", "10.96.0.1", 53));
            let (ips, balancers): (&[&str], &[&str]) =
                if is_load_balancer_ip { (&[], &[address]) } else { (&[address], &[]) };
            let applied = catalog.apply(external("web", ips, balancers));
            let found: Vec<_> = catalog.guarded_addresses().clone().into_iter().collect();
            assert_eq!(found, wanted.map(|found| (found, 1)).into_iter().collect::<Vec<_>>(), "{address}");
            let is_refused = wanted.is_some_and(|(_, action)| action == Refuse);
            let is_own = address == "10.96.0.9";
            assert_eq!(served(&catalog, "web").is_empty(), is_refused || is_own, "{address}");
            let notices: Vec<_> = applied.faults.iter().map(|fault| fault.fault.notice).collect();
            let notice = if is_refused { Notice::AddressRefused } else { Notice::AddressShared };
            assert_eq!(notices, wanted.map(|_| Some(notice)).into_iter().collect::<Vec<_>>(), "{address}");
        }
    }
}

#[test]
fn only_the_refused_address_is_left_out() {
    let mut catalog = complete();
    catalog.apply(cluster_ip("dns", "10.96.0.1", 53));
    catalog.apply(external("web", &["10.96.0.1", "203.0.113.1"], &["10.244.1.7", "203.0.113.2"]));
    assert_eq!(served(&catalog, "web"), ["203.0.113.1", "203.0.113.2"]);
    assert_eq!(table(&catalog).len(), 2);
}

#[test]
fn the_reports_name_the_address_the_reason_and_the_setting() {
    let mut catalog = complete();
    catalog.apply(cluster_ip("dns", "10.96.0.1", 53));
    let web = || external("web", &["10.96.0.1", "192.0.2.1"], &["10.244.1.7"]);
    let faults = catalog.apply(web()).faults;
    let texts: Vec<String> = faults.iter().map(|fault| fault.fault.to_string()).collect();
    insta::assert_snapshot!(texts.join("\n"), @r"
    spec.externalIPs: 10.96.0.1 is left out on this node, because it is the cluster IP of another Service; choose another address, or permit this one in the configuration (addressGuard.clusterIPs, addressGuard.allowed)
    spec.externalIPs: 192.0.2.1 is left out on this node, because it is an address of this node; choose another address, or permit this one in the configuration (addressGuard.nodeAddresses, addressGuard.allowed)
    status.loadBalancer.ingress: 10.244.1.7 is left out on this node, because it is in spec.podCIDRs of this node; choose another address, or permit this one in the configuration (addressGuard.podCIDRs, addressGuard.allowed)
    ");
    assert_eq!(catalog.apply(web()), Applied::default(), "a repeated event reports nothing");
}

#[test]
fn many_addresses_share_a_report() {
    let mut catalog = complete();
    let ips: Vec<String> = (1..=200).map(|last| format!("10.244.1.{last}")).collect();
    let ips: Vec<&str> = ips.iter().map(String::as_str).chain(["10.96.7.7", "10.96.7.8"]).collect();
    let faults = catalog.apply(external("web", &ips, &["10.244.1.201"])).faults;
    let texts: Vec<String> = faults.iter().map(|fault| fault.fault.to_string()).collect();
    insta::assert_snapshot!(texts.join("\n"), @r"
    spec.externalIPs: 200 addresses (10.244.1.1, 10.244.1.2, 10.244.1.3, 10.244.1.4, 10.244.1.5 and 195 more) are left out on this node, because they are in spec.podCIDRs of this node; choose others, or permit these in the configuration (addressGuard.podCIDRs, addressGuard.allowed)
    spec.externalIPs: 2 addresses (10.96.7.7, 10.96.7.8) are served, although they are in a service CIDR; choose others, or permit these in the configuration (addressGuard.serviceCIDRs, addressGuard.allowed)
    status.loadBalancer.ingress: 10.244.1.201 is left out on this node, because it is in spec.podCIDRs of this node; choose another address, or permit this one in the configuration (addressGuard.podCIDRs, addressGuard.allowed)
    ");
    assert_eq!(count(&catalog, AddressOwner::PodCidr, GuardAction::Refuse), 201, "each is counted");
}

#[test]
fn nothing_is_reported_before_the_first_lists_are_complete() {
    let mut catalog = Catalog::new("n1");
    catalog.apply(cidr("main", &["10.96.0.0/16"]));
    assert_eq!(catalog.apply(external("web", &["10.96.0.1"], &[])).faults, []);
    assert_eq!(catalog.apply(cluster_ip("dns", "10.96.0.1", 53)).faults, []);
    assert_eq!(served(&catalog, "web"), [""; 0], "it is refused nevertheless");
    let faults = finish_lists(&mut catalog).faults;
    assert_eq!(
        faults.iter().map(|fault| fault.fault.notice).collect::<Vec<_>>(),
        [Some(Notice::AddressRefused)]
    );
}

#[test]
fn a_cluster_ip_that_comes_and_goes_changes_only_the_services_that_name_it() {
    let mut catalog = complete();
    catalog.apply(external("web", &["10.96.0.1"], &[]));
    catalog.apply(external("other", &["10.96.0.2"], &[]));
    catalog.take_changes();
    assert_eq!(served(&catalog, "web"), ["10.96.0.1"]);
    let applied = catalog.apply(cluster_ip("dns", "10.96.0.1", 53));
    assert_eq!(applied.faults.len(), 1, "{applied:?}");
    let mut changed = summary(&catalog.take_changes().changes);
    changed.sort();
    assert_eq!(changed, ["ns/dns IPv4 -->1f[]", "ns/web IPv4 2f[]->1f[]"]);
    catalog.apply(cluster_ip("dns", "10.96.0.3", 53));
    catalog.apply(Event::ServiceDeleted(key("dns")));
    assert_eq!(served(&catalog, "web"), ["10.96.0.1"]);
    assert_eq!(summary(&catalog.take_changes().changes), ["ns/dns IPv4 1f[]->-", "ns/web IPv4 1f[]->2f[]"]);
}

#[test]
fn node_addresses_and_service_cidrs_are_followed() {
    let mut catalog = complete();
    catalog.set_address_guard(strict(AddressOwner::ServiceCidr), Vec::new());
    catalog.apply(external("web", &["192.0.2.2", "198.51.100.1"], &[]));
    catalog.apply(external("far", &["203.0.113.1"], &[]));
    catalog.take_changes();
    catalog.apply(node_at(&["192.0.2.2"], &[]));
    assert_eq!(served(&catalog, "web"), ["198.51.100.1"]);
    catalog.apply(cidr("more", &["198.51.100.0/24"]));
    assert_eq!(served(&catalog, "web"), [""; 0]);
    assert_eq!(summary(&catalog.take_changes().changes), ["ns/web IPv4 3f[]->1f[]"]);
    catalog.apply(Event::ServiceCidrDeleted(ObjectKey::new("", "more")));
    catalog.apply(node_at(&["192.0.2.3"], &[]));
    assert_eq!(served(&catalog, "web"), ["192.0.2.2", "198.51.100.1"]);
    assert_eq!(catalog.guarded_addresses().len(), 0);
}

#[test]
fn a_policy_can_allow_refuse_and_exempt() {
    let mut catalog = complete();
    catalog.apply(external("web", &["192.0.2.1", "10.244.1.7"], &[]));
    let mut warn = AddressGuard::default();
    warn.set(AddressOwner::Node, GuardAction::Warn);
    let applied = catalog.set_address_guard(warn.clone(), Vec::new());
    assert_eq!((served(&catalog, "web"), applied.faults.len()), (vec!["192.0.2.1".to_owned()], 1));
    assert_eq!(catalog.set_address_guard(warn, Vec::new()), Applied::default());
    let applied = catalog.set_address_guard(AddressGuard::default(), Vec::new());
    assert_eq!((served(&catalog, "web").len(), applied.faults.len()), (0, 1));
    let mut exempt = AddressGuard::default();
    exempt.allowed = vec!["192.0.2.0/28".parse().expect("a CIDR")];
    catalog.set_address_guard(exempt, Vec::new());
    assert_eq!(served(&catalog, "web"), ["192.0.2.1"]);
    let mut off = AddressGuard::default();
    for owner in AddressOwner::ALL {
        off.set(owner, GuardAction::Allow);
    }
    let applied = catalog.set_address_guard(off, Vec::new());
    assert_eq!((served(&catalog, "web").len(), applied.faults.len()), (2, 0));
    assert!(catalog.guarded_addresses().is_empty());
}

/// In a flat network, pods, nodes and load balancers have addresses of one CIDR.
#[test]
fn a_cluster_cidr_with_this_node_in_it_shows_nothing() {
    let mut catalog = complete();
    catalog.apply(external("web", &[], &["10.244.7.7"]));
    assert_eq!(count(&catalog, AddressOwner::ClusterCidr, GuardAction::Warn), 1);
    catalog.apply(node_at(&["10.244.0.10"], &[]));
    assert!(catalog.guarded_addresses().is_empty());
    // Nor does a CIDR before this node's addresses are known.
    catalog.apply(node_at(&[], &[]));
    assert!(catalog.guarded_addresses().is_empty());
}

#[test]
fn what_is_left_out_is_told_with_the_reason() {
    let mut catalog = complete();
    catalog.apply(cluster_ip("dns", "10.96.0.1", 80));
    catalog.apply(external("web", &["10.96.0.1", "203.0.113.1"], &[]));
    catalog.apply(external("web2", &["203.0.113.1"], &[]));
    let at = |text: &str| -> Vec<String> {
        let left_out = catalog.left_out_at(text.parse().expect("a socket"), Protocol::Tcp);
        left_out.iter().map(|left| format!("{} {}: {}", left.name, left.frontend, left.why)).collect()
    };
    insta::assert_snapshot!(at("10.96.0.1:80").join("\n"), @"ns/web external IP 10.96.0.1:80: it is the cluster IP of another Service (addressGuard.clusterIPs)");
    insta::assert_snapshot!(at("203.0.113.1:80").join("\n"), @"ns/web2 external IP 203.0.113.1:80: it belongs to Service ns/web");
    assert_eq!(at("203.0.113.1:81"), [""; 0]);
}
