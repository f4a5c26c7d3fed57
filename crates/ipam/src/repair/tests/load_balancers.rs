//! Load-balancer addresses in the audit.

use super::*;

impl World {
    /// Returns a world with a range of load-balancer addresses.
    fn balanced() -> Self {
        let range = AddressRange::new("192.0.2.0/28".parse().unwrap()).unwrap();
        Self { balancers: Some(vec![range]), ..Self::new() }
    }

    /// Adds a Service whose status lists the address, without its `IPAddress`.
    fn listing(mut self, name: &str, ip: &str) -> Self {
        let spec = ServiceSpec { service_type: ServiceType::LoadBalancer, ..ServiceSpec::default() };
        let load_balancer = vec![address(ip)];
        self.services.push(ServiceObject { key: key(name), spec, load_balancer, created: 0 });
        self
    }

    /// Adds the `IPAddress` of a load-balancer address.
    fn recorded(mut self, ip: &str, owner: &str) -> Self {
        let object = object(address(ip), Parent::Service(key(owner)));
        self.addresses.push(AddressObject { is_managed: false, is_load_balancer: true, ..object });
        self
    }
}

#[test]
fn what_fits_is_not_reported() {
    let world = World::balanced().listing("a", "192.0.2.1").recorded("192.0.2.1", "a");
    assert_eq!(world.audit().findings, []);
    // Another program wrote this address.
    assert_eq!(World::balanced().listing("a", "203.0.113.9").audit().findings, []);
    // The ranges are not known, so it may be such an address.
    assert_eq!(World::new().listing("a", "192.0.2.1").audit().findings, []);
}

#[test]
fn a_missing_record_is_made() {
    let (_, problem, mend) = World::balanced().listing("a", "192.0.2.1").finding();
    assert_eq!(problem, Problem::BalancerNotAllocated(address("192.0.2.1")));
    assert_eq!(mend, Mend::RecordLoadBalancer(address("192.0.2.1"), key("a")));
    // So is one without the label.
    let hand_made = World::balanced().listing("a", "192.0.2.1").recorded("192.0.2.1", "a");
    let mut world = hand_made;
    world.addresses[0].is_load_balancer = false;
    assert_eq!(world.finding().2, Mend::RecordLoadBalancer(address("192.0.2.1"), key("a")));
}

#[test]
fn two_services_with_one_address_are_reported() {
    let twins = World::balanced().listing("a", "192.0.2.1").listing("b", "192.0.2.1");
    let holder = "default/a".to_owned();
    let duplicate = Problem::BalancerDuplicate { address: address("192.0.2.1"), holder };
    let (subject, problem, mend) = twins.recorded("192.0.2.1", "a").finding();
    assert_eq!((subject, problem, mend), (Subject::Service(key("b")), duplicate.clone(), Mend::Nothing));
    // Without a record the older one gets it.
    let audit = World::balanced().listing("a", "192.0.2.1").listing("b", "192.0.2.1").audit();
    let problems: Vec<_> = audit.findings.into_iter().map(|finding| finding.problem).collect();
    assert_eq!(problems, [Problem::BalancerNotAllocated(address("192.0.2.1")), duplicate]);
}

#[test]
fn an_address_of_a_gateway_or_a_cluster_ip_is_a_duplicate() {
    let holder = |world: &World| match world.finding().1 {
        Problem::BalancerDuplicate { holder, .. } => holder,
        other => panic!("{other}"),
    };
    let mut gateway = World::balanced().listing("a", "192.0.2.1").object("192.0.2.1", Parent::Other);
    gateway.addresses[0].is_managed = false;
    assert_eq!(holder(&gateway), "something that is no Service");
    let mut cluster_ip = World::balanced().service("b", "10.0.0.1").listing("a", "10.0.0.1");
    cluster_ip.balancers = Some(vec![AddressRange::new("10.0.0.0/28".parse().unwrap()).unwrap()]);
    assert_eq!(holder(&cluster_ip), "default/b");
    // The same seen from the cluster IP.
    let world = World::balanced().listing("a", "10.0.0.9").recorded("10.0.0.9", "a");
    let world = world.unallocated("c", "10.0.0.9");
    let problems: Vec<_> = world.audit().findings.into_iter().map(|finding| finding.problem).collect();
    let duplicate =
        Problem::AddressDuplicate { address: address("10.0.0.9"), holder: "default/a".to_owned() };
    assert_eq!(problems, [duplicate, Problem::BalancerOutOfRange(address("10.0.0.9"))]);
}

#[test]
fn a_record_without_its_service_is_removed() {
    let address = address("192.0.2.1");
    let (_, problem, mend) = World::balanced().recorded("192.0.2.1", "a").finding();
    assert_eq!(
        (problem, mend),
        (Problem::Orphan { address, service: key("a") }, Mend::DeleteAddress(address))
    );
    let other = World::balanced().listing("a", "192.0.2.2").recorded("192.0.2.2", "a");
    let (_, problem, mend) = other.recorded("192.0.2.1", "a").finding();
    assert_eq!(
        (problem, mend),
        (Problem::Unlisted { address, service: key("a") }, Mend::DeleteAddress(address))
    );
    // It may belong to a write that is not visible yet.
    let mut fresh = World::balanced().recorded("192.0.2.1", "a");
    fresh.addresses[0].created = NOW;
    assert_eq!(fresh.audit().findings, []);
}

#[test]
fn an_address_outside_of_the_ranges_is_kept_and_named() {
    let world = World::balanced().listing("a", "203.0.113.9").recorded("203.0.113.9", "a");
    let (subject, problem, mend) = world.finding();
    assert_eq!((subject, mend), (Subject::Service(key("a")), Mend::Nothing));
    assert_eq!(problem, Problem::BalancerOutOfRange(address("203.0.113.9")));
    // If the ranges are not known, it may be in one.
    let unknown = World::new().listing("a", "203.0.113.9").recorded("203.0.113.9", "a");
    assert_eq!(unknown.audit().findings, []);
}

#[test]
fn a_node_in_a_range_of_load_balancers_is_reported() {
    let mut world = World::balanced();
    let networks = NodeNetworks { addresses: vec!["192.0.2.5/32".parse().unwrap()], pods: Vec::new() };
    world.nodes.set("inside", networks);
    let (_, problem, mend) = world.finding();
    assert_eq!((problem.event_reason(), mend), (Some("NodeOverlapsLoadBalancerRange"), Mend::Nothing));
    assert_eq!(
        problem.to_string(),
        "192.0.2.5/32, an address of the Node, overlaps the range 192.0.2.0/28 of load-balancer addresses; change one of them"
    );
}
