use super::*;
use crate::{ServicePort, ServiceType, check::NodeNetworks, family::Family::Ipv4};

mod load_balancers;

const NOW: u64 = 1_000;

/// A healthy cluster in which each test causes a problem.
struct World {
    services: Vec<ServiceObject>,
    addresses: Vec<AddressObject>,
    ports: Vec<u16>,
    nodes: Nodes,
    balancers: Option<Vec<AddressRange>>,
    now: u64,
}

impl World {
    fn new() -> Self {
        let (services, addresses, ports, nodes) = (Vec::new(), Vec::new(), Vec::new(), Nodes::default());
        Self { services, addresses, ports, nodes, balancers: None, now: NOW }
    }

    /// Adds a Service with its `IPAddress`.
    fn service(mut self, name: &str, ip: &str) -> Self {
        self.addresses.extend(parse(ip).map(|address| object(address, Parent::Service(key(name)))));
        self.unallocated(name, ip)
    }

    fn unallocated(mut self, name: &str, ip: &str) -> Self {
        let spec = ServiceSpec {
            cluster_ip: ip.to_owned(),
            cluster_ips: vec![ip.to_owned()],
            ..ServiceSpec::default()
        };
        let load_balancer = Vec::new();
        self.services.push(ServiceObject { key: key(name), spec, load_balancer, created: 0 });
        self
    }

    fn object(mut self, address: &str, parent: Parent) -> Self {
        self.addresses.push(object(parse(address).unwrap(), parent));
        self
    }

    /// Adds a node port to the last Service.
    fn node_port(mut self, node_port: u16) -> Self {
        let spec = &mut self.services.last_mut().unwrap().spec;
        spec.service_type = ServiceType::NodePort;
        spec.ports.push(ServicePort { port: 80, node_port, ..ServicePort::default() });
        self
    }

    fn audit_after(&self, before: &Sightings) -> Audit {
        let ranges = [AddressRange::new("10.0.0.0/24".parse().unwrap()).unwrap()];
        let observed = Observed {
            services: &self.services,
            addresses: &self.addresses,
            ranges: &ranges,
            load_balancers: self.balancers.as_deref(),
            nodes: &self.nodes,
            families: Families::single(Ipv4),
            port_range: NodePortRange::default(),
            recorded_ports: &self.ports,
            now: self.now,
        };
        audit(&observed, before)
    }

    fn audit(&self) -> Audit {
        self.audit_after(&Sightings::default())
    }

    /// Returns the only finding.
    fn finding(&self) -> (Subject, Problem, Mend) {
        let mut audit = self.audit();
        assert_eq!(audit.findings.len(), 1, "{audit:?}");
        let Finding { subject, problem, mend } = audit.findings.remove(0);
        (subject, problem, mend)
    }
}

fn key(name: &str) -> ServiceKey {
    ServiceKey::new("default", name)
}

fn parse(text: &str) -> Option<IpAddr> {
    crate::family::parse_address(text)
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn object(address: IpAddr, parent: Parent) -> AddressObject {
    let (is_managed, is_load_balancer, has_family_label) = (true, false, true);
    AddressObject { address, parent, is_managed, is_load_balancer, has_family_label, created: 0 }
}

fn of_service(name: &str) -> Subject {
    Subject::Service(key(name))
}

#[test]
fn a_healthy_cluster_has_no_findings() {
    let mut world = World::new().service("a", "10.0.0.1").node_port(30_001).service("b", "10.0.0.2");
    world = world.unallocated("headless", "None");
    world.ports = vec![30_001];
    assert_eq!(world.audit(), Audit::default());
}

#[test]
fn a_service_with_an_invalid_address_is_only_reported() {
    for (ip, problem) in [
        ("10.0.0", Problem::NotAnAddress("10.0.0".to_owned())),
        ("fd00::1", Problem::FamilyNotConfigured(address("fd00::1"))),
        ("10.0.1.1", Problem::AddressOutOfRange(address("10.0.1.1"))),
        ("10.0.0.255", Problem::AddressOutOfRange(address("10.0.0.255"))),
    ] {
        let found = World::new().unallocated("a", ip).finding();
        assert_eq!(found, (of_service("a"), problem, Mend::Nothing));
    }
}

#[test]
fn a_service_without_ipaddress_gets_one() {
    let ip = address("10.0.0.7");
    let found = World::new().unallocated("a", "10.0.0.7").finding();
    let mend = Mend::CreateAddress(ip, key("a"));
    assert_eq!(found, (of_service("a"), Problem::AddressNotAllocated(ip), mend));
    // Of two Services, the first in the given order owns the address.
    let audit = World::new().unallocated("a", "10.0.0.7").unallocated("b", "010.0.0.7").audit();
    let duplicate = Problem::AddressDuplicate { address: ip, holder: "default/a".to_owned() };
    assert_eq!(
        audit.findings[1],
        Finding { subject: of_service("b"), problem: duplicate, mend: Mend::Nothing }
    );
}

#[test]
fn an_ipaddress_without_service_or_labels_is_replaced() {
    let ip = address("10.0.0.7");
    let mend = Mend::ReplaceAddress(ip, key("a"));
    for parent in [Parent::Other, Parent::Service(key("gone"))] {
        let found = World::new().unallocated("a", "10.0.0.7").object("10.0.0.7", parent).finding();
        assert_eq!(found, (of_service("a"), Problem::AddressWronglyHeld(ip), mend.clone()));
    }
    for spoil in [
        |object: &mut AddressObject| object.is_managed = false,
        |object: &mut AddressObject| {
            object.has_family_label = false;
        },
    ] {
        let mut world = World::new().service("a", "10.0.0.7");
        spoil(&mut world.addresses[0]);
        assert_eq!(world.finding(), (of_service("a"), Problem::WrongLabels(ip), mend.clone()));
    }
}

#[test]
fn a_duplicate_address_is_only_reported() {
    let ip = address("10.0.0.7");
    let found = World::new().service("a", "10.0.0.7").unallocated("b", "10.0.0.7").finding();
    let duplicate = |holder: &str| Problem::AddressDuplicate { address: ip, holder: holder.to_owned() };
    assert_eq!(found, (of_service("b"), duplicate("default/a"), Mend::Nothing));
    let mut world = World::new().unallocated("a", "10.0.0.7").object("10.0.0.7", Parent::Other);
    world.addresses[0].is_managed = false;
    assert_eq!(world.finding(), (of_service("a"), duplicate("something that is no Service"), Mend::Nothing));
}

#[test]
fn an_ipaddress_without_service_goes_after_a_minute() {
    let ip = address("10.0.0.7");
    let mut world = World::new().object("10.0.0.7", Parent::Service(key("gone")));
    for (age, rest) in [(0, 61), (60, 1)] {
        world.addresses[0].created = NOW - age;
        let audit = world.audit();
        assert_eq!((audit.findings.len(), audit.recheck_after), (0, Some(rest)), "{age}");
    }
    // A clock that is behind does not cause a deletion.
    world.addresses[0].created = NOW + 500;
    assert_eq!(world.audit().recheck_after, Some(61));
    world.addresses[0].created = NOW - 61;
    let problem = Problem::Orphan { address: ip, service: key("gone") };
    assert_eq!(world.finding(), (Subject::Address(ip), problem, Mend::DeleteAddress(ip)));
    world.addresses[0].parent = Parent::Other;
    world.addresses[0].created = NOW;
    assert_eq!(world.finding(), (Subject::Address(ip), Problem::NoService(ip), Mend::DeleteAddress(ip)));
    world.addresses[0].is_managed = false;
    assert_eq!(world.audit(), Audit::default());
}

#[test]
fn an_ipaddress_that_its_service_does_not_list_goes_after_the_grace() {
    let ip = address("10.0.0.8");
    let delete =
        (Subject::Address(ip), Problem::Unlisted { address: ip, service: key("a") }, Mend::DeleteAddress(ip));
    let mut world = World::new().service("a", "10.0.0.7").object("10.0.0.8", Parent::Service(key("a")));
    world.services[0].created = 100;
    for (created, now, rest) in [(101, 103, Some(3)), (101, 106, None), (100, 100, None), (99, 100, None)] {
        (world.addresses[1].created, world.now) = (created, now);
        if rest.is_some() {
            assert_eq!((world.audit().findings.len(), world.audit().recheck_after), (0, rest), "{created}");
        } else {
            assert_eq!(world.finding(), delete, "{created} {now}");
        }
    }
    world.services[0].spec =
        ServiceSpec { service_type: ServiceType::ExternalName, ..ServiceSpec::default() };
    world.addresses.remove(0);
    (world.addresses[0].created, world.now) = (100, 159);
    assert_eq!((world.audit().findings.len(), world.audit().recheck_after), (0, Some(1)));
    world.now = 160;
    assert_eq!(world.finding(), delete);
}

/// The `IPAddress` is deleted first. The next audit, due at once, proposes one for the Service that lists the
/// address.
#[test]
fn an_ipaddress_of_the_wrong_service_is_reassigned() {
    let ip = address("10.0.0.8");
    let mut world = World::new().service("a", "10.0.0.7").unallocated("b", "10.0.0.8");
    world = world.object("10.0.0.8", Parent::Service(key("a")));
    assert_eq!(world.finding().2, Mend::DeleteAddress(ip));
    assert_eq!(world.audit().recheck_after, Some(0));
    world.addresses.pop();
    assert_eq!(world.finding().2, Mend::CreateAddress(ip, key("b")));
}

#[test]
fn node_ports_are_compared_with_the_record() {
    let mut world = World::new().service("a", "10.0.0.1").node_port(30_001);
    let mend = Mend::RecordPort(30_001);
    assert_eq!(world.finding(), (of_service("a"), Problem::PortNotAllocated(30_001), mend));
    world.ports = vec![30_001];
    let world = world.service("b", "10.0.0.2").node_port(30_001);
    let duplicate = Problem::PortDuplicate { port: 30_001, holder: key("a") };
    assert_eq!(world.finding(), (of_service("b"), duplicate, Mend::Nothing));
    let world = World::new().service("a", "10.0.0.1").node_port(80);
    assert_eq!(world.finding(), (of_service("a"), Problem::PortOutOfRange(80), Mend::Nothing));
}

#[test]
fn a_leaked_port_is_freed_at_the_third_sighting() {
    let mut world = World::new();
    world.ports = vec![30_005];
    let see = |world: &World, before: &Sightings, sightings, mend| {
        let audit = world.audit_after(before);
        let problem = Problem::PortLeaked { port: 30_005, sightings };
        assert_eq!(audit.findings, [Finding { subject: Subject::Port(30_005), problem, mend }]);
        audit.sightings
    };
    let first = see(&world, &Sightings::default(), 1, Mend::Nothing);
    let second = see(&world, &first, 2, Mend::Nothing);
    let third = see(&world, &second, 3, Mend::ReleasePort(30_005));
    // The count restarts: the same port in flight later is not freed at first sight.
    assert_eq!(third, Sightings::default());
    see(&world, &third, 1, Mend::Nothing);
    // The count also restarts when a Service uses the port in between.
    let used = World { ports: vec![30_005], ..World::new().service("a", "10.0.0.1").node_port(30_005) };
    let after_use = used.audit_after(&second);
    assert_eq!(after_use, Audit::default());
    see(&world, &after_use.sightings, 1, Mend::Nothing);
    // A pass whose write failed does not count: its sightings are dropped and the former ones are passed again.
    see(&world, &first, 2, Mend::Nothing);
}

#[test]
fn a_recorded_port_outside_of_the_range_goes_at_once() {
    let mut world = World::new();
    world.ports = vec![80];
    assert_eq!(world.finding().2, Mend::ReleasePort(80));
}

#[test]
fn events_and_metrics_have_upstream_names() {
    let ip = address("10.0.0.1");
    for (problem, reason, action, metric) in [
        (Problem::NotAnAddress(String::new()), "ClusterIPNotValid", "ClusterIPValidation", "invalid"),
        (Problem::AddressOutOfRange(ip), "ClusterIPOutOfRange", "ClusterIPAllocation", "outOfRange"),
        (Problem::AddressNotAllocated(ip), "ClusterIPNotAllocated", "ClusterIPAllocation", "repair"),
        (Problem::NoService(ip), "IPAddressNotAllocated", "IPAddressAllocation", "leak"),
        (Problem::PortOutOfRange(1), "PortOutOfRange", "PortAllocation", "outOfRange"),
    ] {
        assert_eq!(problem.event_reason(), Some(reason));
        assert_eq!((problem.event_action(), problem.metric_type()), (action, metric));
    }
    let leak = Problem::PortLeaked { port: 1, sightings: 1 };
    assert_eq!((leak.event_reason(), leak.metric_type()), (None, "leak"));
}

#[test]
fn a_node_in_a_range_is_reported() {
    let network = |text: &str| text.parse().unwrap();
    let mut world = World::new();
    let fine = NodeNetworks { addresses: vec![network("192.0.2.1/32")], pods: vec![network("10.1.0.0/24")] };
    world.nodes.set("fine", fine);
    assert_eq!(world.audit().findings, []);
    let inside = NodeNetworks { addresses: vec![network("10.0.0.7/32")], pods: Vec::new() };
    world.nodes.set("inside", inside);
    let (subject, problem, mend) = world.finding();
    assert_eq!((subject, mend), (Subject::Node("inside".to_owned()), Mend::Nothing));
    assert_eq!(problem.event_reason(), Some("NodeOverlapsServiceCIDR"));
    assert_eq!(
        problem.to_string(),
        "10.0.0.7/32, an address of the Node, overlaps the range 10.0.0.0/24 of cluster IPs; change one of them"
    );
}
