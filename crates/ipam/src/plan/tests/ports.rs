use super::*;
use crate::Protocol::{Tcp, Udp};

fn node_port(ports: Vec<ServicePort>) -> ServiceSpec {
    ServiceSpec { service_type: ServiceType::NodePort, ports, ..cluster_ip(SingleStack) }
}

fn local(spec: ServiceSpec) -> ServiceSpec {
    ServiceSpec { service_type: ServiceType::LoadBalancer, is_external_local: true, ..spec }
}

fn port(name: &str, protocol: Protocol, port: u16, node_port: u16) -> ServicePort {
    ServicePort { name: name.to_owned(), protocol, port, node_port }
}

fn numbers(spec: &ServiceSpec) -> Vec<u16> {
    spec.ports.iter().map(|port| port.node_port).collect()
}

#[test]
fn new_services_share_a_number_between_protocols() {
    let mut cluster = Cluster::dual();
    let dns = vec![port("a", Tcp, 53, 0), port("b", Udp, 53, 0), port("c", Tcp, 80, 0)];
    let plan = cluster.create(node_port(dns)).unwrap();
    let got = numbers(&plan.spec);
    assert!(got[0] == got[1] && got[0] != got[2], "{got:?}");
    assert_eq!(plan.take.ports, [got[0], got[2]]);
    assert!(got.iter().all(|number| *number >= 30_016), "{got:?} from the static band");
    // The entries share the number that one of them requests, in any order.
    let dns = vec![port("a", Tcp, 53, 0), port("b", Udp, 53, 30_005)];
    assert_eq!(numbers(&cluster.create(node_port(dns)).unwrap().spec), [30_005, 30_005]);
    let dns = vec![port("a", Tcp, 53, 30_004), port("b", Udp, 53, 30_005)];
    assert_eq!(cluster.create(node_port(dns)).unwrap().take.ports, [30_004, 30_005]);
    let two = vec![port("a", Tcp, 80, 30_004), port("b", Udp, 53, 30_004)];
    assert_eq!(cluster.create(node_port(two)).unwrap().take.ports, [30_004]);
}

#[test]
fn refused_ports_are_reported_on_their_entry() {
    let mut cluster = Cluster::dual();
    cluster.stored(node_port(vec![port("", Tcp, 80, 30_004)]));
    let range = cluster.allocations.ports.range();
    for (protocol, number, reason) in [
        (Udp, 30_004, Refusal::PortAllocated),
        (Tcp, 29_999, Refusal::PortNotInRange(range)),
        (Tcp, 30_001, Refusal::PortTwice),
    ] {
        let ports = vec![port("a", Tcp, 1, 30_001), port("b", protocol, 2, number)];
        let errors = cluster.create(node_port(ports)).unwrap_err();
        assert_eq!((errors.len(), errors[0].field.as_str()), (1, "spec.ports[1].nodePort"));
        assert_eq!((&errors[0].reason, errors[0].value.as_str()), (&reason, number.to_string().as_str()));
        assert!(errors[0].is_invalid());
    }
    let many = (1..=20).map(|number| port(&number.to_string(), Tcp, number, 0)).collect();
    let errors = cluster.create(node_port(many)).unwrap_err();
    assert_eq!((errors.len(), &errors[0].reason), (1, &Refusal::PortsFull(range)));
    assert!(!errors[0].is_invalid());
    assert_eq!(cluster.allocations.ports.taken(), 1);
}

#[test]
fn updates_keep_ports_by_name() {
    let mut cluster = Cluster::dual();
    let old = cluster.stored(node_port(vec![port("a", Tcp, 80, 30_001), port("b", Tcp, 81, 30_002)]));
    let update = |cluster: &mut Cluster, ports| cluster.update(node_port(ports), &old).unwrap();
    let plan = update(&mut cluster, vec![port("b", Tcp, 81, 0), port("a", Tcp, 80, 0)]);
    assert_eq!(numbers(&plan.spec), [30_002, 30_001]);
    assert!(plan.take.is_empty() && plan.release.is_empty());
    let plan = update(&mut cluster, vec![port("a", Tcp, 80, 0), port("new", Tcp, 81, 0)]);
    assert_eq!((plan.spec.ports[0].node_port, plan.release.ports.as_slice()), (30_001, &[30_002][..]));
    assert_eq!(plan.take.ports, [plan.spec.ports[1].node_port]);
    assert_ne!(plan.take.ports, [30_002], "given back and taken in one plan");
    // Another port of the new object has the old number.
    let plan = update(&mut cluster, vec![port("a", Tcp, 80, 30_002), port("b", Tcp, 81, 0)]);
    assert_eq!((plan.spec.ports[0].node_port, plan.release.ports.as_slice()), (30_002, &[30_001][..]));
    assert!(plan.spec.ports[1].node_port >= 30_016);
}

#[test]
fn a_type_without_node_ports_gives_them_back() {
    let mut cluster = Cluster::dual();
    let old = cluster.stored(node_port(vec![port("a", Tcp, 80, 30_001)]));
    for service_type in [ServiceType::ClusterIp, ServiceType::ExternalName] {
        let plan = cluster.update(ServiceSpec { service_type, ..old.clone() }, &old).unwrap();
        assert_eq!((numbers(&plan.spec), plan.release.ports.as_slice()), (vec![0], &[30_001][..]));
    }
    let external = ServiceSpec { service_type: ServiceType::ExternalName, ..old.clone() };
    assert!(cluster.delete(&external).is_empty());
    // A type with node ports gets new ones.
    let single = ServiceSpec { service_type: ServiceType::ClusterIp, ..old.clone() };
    let single = cluster.update(single, &old).unwrap().spec;
    let new = ServiceSpec { service_type: ServiceType::NodePort, ..single.clone() };
    assert_eq!(cluster.update(new, &single).unwrap().take.ports.len(), 1);
}

#[test]
fn a_load_balancer_may_do_without_node_ports() {
    let mut cluster = Cluster::dual();
    let ports = vec![port("a", Tcp, 80, 0), port("b", Tcp, 81, 30_003)];
    let spec = ServiceSpec {
        service_type: ServiceType::LoadBalancer,
        no_load_balancer_node_ports: true,
        ..node_port(ports)
    };
    let plan = cluster.create(spec).unwrap();
    assert_eq!((numbers(&plan.spec), plan.take.ports.as_slice()), (vec![0, 30_003], &[30_003][..]));
}

#[test]
fn health_check_node_ports_follow_the_external_traffic_policy() {
    let mut cluster = Cluster::dual();
    let spec = local(node_port(vec![port("a", Tcp, 80, 30_001)]));
    let old = cluster.stored(spec.clone());
    let number = old.health_check_node_port;
    assert!(number >= 30_016 && cluster.allocations.ports.is_taken(number));
    let same = cluster.update(spec.clone(), &old).unwrap();
    assert_eq!((same.spec.health_check_node_port, same.take.is_empty()), (number, true));
    let changed = ServiceSpec { health_check_node_port: 30_009, ..spec };
    let errors = cluster.update(changed.clone(), &old).unwrap_err();
    assert_eq!(
        (errors[0].field.as_str(), &errors[0].reason),
        ("spec.healthCheckNodePort", &Refusal::Immutable)
    );
    assert!(errors[0].is_invalid());
    let left = ServiceSpec { is_external_local: false, ..old.clone() };
    let plan = cluster.update(left, &old).unwrap();
    assert_eq!((plan.spec.health_check_node_port, plan.release.ports.as_slice()), (0, &[number][..]));
    assert_eq!(cluster.delete(&old).ports, [30_001, number]);
    let mut other = changed;
    other.ports[0].node_port = 0;
    assert!(cluster.create(other.clone()).unwrap().take.ports.contains(&30_009));
    other.health_check_node_port = number;
    let errors = cluster.create(other.clone()).unwrap_err();
    assert_eq!((&errors[0].reason, errors[0].is_invalid()), (&Refusal::PortAllocated, false));
    (other.health_check_node_port, other.ports[0].node_port) = (30_008, 30_008);
    assert_eq!(cluster.create(other).unwrap_err()[0].reason, Refusal::PortAllocated);
}

/// Quadratic work would take minutes here.
#[test]
#[expect(clippy::cast_possible_truncation, reason = "a small number")]
fn a_service_of_very_many_ports_is_refused_soon() {
    let mut cluster = Cluster::dual();
    let old = cluster.stored(node_port(vec![port("", Tcp, 80, 30_001)]));
    let entry = |index: u32, node_port: u16| port(&index.to_string(), Tcp, index as u16, node_port);
    let range = cluster.allocations.ports.range();
    for asked in [0, 30_002, 40_000] {
        let spec = node_port((0..200_000).map(|index| entry(index, asked)).collect());
        let errors = cluster.create(spec.clone()).unwrap_err();
        let reason = errors.last().map(|error| &error.reason);
        let expected = if asked == 0 { Refusal::PortsFull(range) } else { Refusal::PortTwice };
        assert_eq!(reason, Some(&expected));
        assert!(cluster.update(spec, &old).is_err());
    }
}

#[test]
fn the_only_free_port_is_not_given_twice_in_one_service() {
    let mut cluster = Cluster::dual();
    let all = (30_000..30_019).map(|number| port(&number.to_string(), Tcp, number, number)).collect();
    cluster.stored(node_port(all));
    let two = vec![port("a", Tcp, 1, 0), port("b", Tcp, 2, 0)];
    let errors = cluster.create(node_port(two)).unwrap_err();
    assert_eq!((errors.len(), errors[0].field.as_str()), (1, "spec.ports[1].nodePort"));
    let one = local(node_port(vec![port("a", Tcp, 1, 0)]));
    assert_eq!(cluster.create(one).unwrap_err()[0].field, "spec.healthCheckNodePort");
}

/// Repair records such a port again. Until then no plan for its Service allocates it to another port.
#[test]
fn a_held_port_that_is_not_recorded_is_not_chosen() {
    let mut cluster = Cluster::dual();
    let all = (30_000..=30_019).map(|number| port(&number.to_string(), Tcp, number, number)).collect();
    cluster.stored(node_port(all));
    let old = node_port(vec![port("a", Tcp, 1, 30_019)]);
    cluster.allocations.ports.release(30_019);
    let new = ServiceSpec { ports: vec![port("a", Tcp, 1, 0), port("b", Tcp, 2, 0)], ..old.clone() };
    let errors = cluster.update(new, &old).unwrap_err();
    assert_eq!((errors.len(), errors[0].field.as_str()), (1, "spec.ports[1].nodePort"));
}

/// As upstream, only a new Service shares node ports.
#[test]
fn an_update_gives_each_entry_a_number_of_its_own() {
    let mut cluster = Cluster::dual();
    let old = cluster.stored(node_port(vec![port("a", Tcp, 53, 30_001)]));
    let two = vec![port("a", Tcp, 53, 0), port("b", Udp, 53, 0)];
    let plan = cluster.update(node_port(two.clone()), &old).unwrap();
    assert_eq!(plan.spec.ports[0].node_port, 30_001);
    assert_eq!(plan.take.ports, [plan.spec.ports[1].node_port]);
    let old =
        ServiceSpec { service_type: ServiceType::ClusterIp, ports: two.clone(), ..node_port(Vec::new()) };
    assert_eq!(cluster.update(node_port(two), &old).unwrap().take.ports.len(), 2);
}
