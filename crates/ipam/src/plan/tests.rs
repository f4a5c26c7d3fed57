use std::collections::HashMap;

use super::*;
use crate::{
    AddressRange, IpFamilyPolicy, NodePortRange, ServicePort, ServiceType,
    family::Family::{self, Ipv4, Ipv6},
};

mod model;
mod ports;

/// A dual-stack cluster with 14 addresses of each family, and its Services.
pub(super) struct Cluster {
    pub(super) allocations: Allocations,
    pub(super) families: Families,
    pub(super) holders: Table,
    seed: fastrand::Rng,
}

/// The holder of each address.
#[derive(Default)]
pub(super) struct Table(HashMap<IpAddr, Holder>);

impl Table {
    fn insert(&mut self, address: IpAddr, holder: Holder) {
        self.0.insert(address, holder);
    }
}

impl Holders for Table {
    fn of_address(&self, address: IpAddr) -> Holder {
        self.0.get(&address).cloned().unwrap_or(Holder::Unknown)
    }

    fn of_port(&self, _: u16) -> Holder {
        Holder::Unknown
    }
}

impl Cluster {
    pub(super) fn new(ranges: &[&str]) -> Self {
        let mut addresses = AddressPools::new();
        for text in ranges {
            addresses.add(AddressRange::new(text.parse().unwrap()).unwrap(), true, []);
        }
        let port_range = NodePortRange::new(30_000, 30_019).unwrap();
        let allocations = Allocations { addresses, ports: NodePorts::new(port_range) };
        let seed = fastrand::Rng::with_seed(11);
        Self { allocations, families: Families::dual(Ipv4), holders: Table::default(), seed }
    }

    pub(super) fn dual() -> Self {
        Self::new(&["10.0.0.0/28", "fd00::/124"])
    }

    pub(super) fn create(&mut self, spec: ServiceSpec) -> Result<Plan, Vec<FieldError>> {
        let Self { allocations, families, holders, seed } = self;
        let planner = Planner { families: *families, allocations, holders, is_lenient: false };
        planner.create(Some(&owner()), spec, &mut || seed.u64(..))
    }

    pub(super) fn update(&mut self, new: ServiceSpec, old: &ServiceSpec) -> Result<Plan, Vec<FieldError>> {
        let Self { allocations, families, holders, seed } = self;
        let planner = Planner { families: *families, allocations, holders, is_lenient: false };
        planner.update(&owner(), new, old, &mut || seed.u64(..))
    }

    pub(super) fn delete(&self, old: &ServiceSpec) -> Claims {
        let planner = Planner {
            families: self.families,
            allocations: &self.allocations,
            holders: &self.holders,
            is_lenient: false,
        };
        planner.delete(&owner(), old)
    }

    pub(super) fn carry_out(&mut self, plan: &Plan) {
        self.allocations.take(&plan.take).unwrap();
        self.allocations.release(&plan.release);
    }

    pub(super) fn stored(&mut self, spec: ServiceSpec) -> ServiceSpec {
        let plan = self.create(spec).unwrap();
        self.carry_out(&plan);
        plan.spec
    }
}

pub(super) fn owner() -> ServiceKey {
    ServiceKey::new("default", "web")
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn cluster_ip(policy: IpFamilyPolicy) -> ServiceSpec {
    ServiceSpec { ip_family_policy: Some(policy), has_selector: true, ..ServiceSpec::default() }
}

fn asking(texts: &[&str], policy: IpFamilyPolicy) -> ServiceSpec {
    let cluster_ips: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    ServiceSpec { cluster_ip: cluster_ips[0].clone(), cluster_ips, ..cluster_ip(policy) }
}

use IpFamilyPolicy::{PreferDualStack, RequireDualStack, SingleStack};

#[test]
fn a_new_service_gets_an_address_of_each_family() {
    let mut cluster = Cluster::dual();
    let plan = cluster.create(cluster_ip(RequireDualStack)).unwrap();
    let families: Vec<Family> = plan.take.addresses.iter().copied().map(Family::of).collect();
    assert_eq!(families, [Ipv4, Ipv6]);
    assert_eq!(plan.spec.addresses(), plan.take.addresses);
    assert_eq!(plan.spec.cluster_ip, plan.spec.cluster_ips[0]);
    assert_eq!((plan.keep, plan.release), (Claims::default(), Claims::default()));
    let one_asked = cluster.create(asking(&["fd00::1"], PreferDualStack)).unwrap();
    assert_eq!(one_asked.take.addresses[0], address("fd00::1"));
    assert_eq!(one_asked.spec.ip_families, [Ipv6, Ipv4]);
    let headless = cluster.create(asking(&["None"], RequireDualStack)).unwrap();
    assert!(headless.take.is_empty());
    assert_eq!(headless.spec.cluster_ips, ["None"]);
    let old_client = ServiceSpec { cluster_ips: Vec::new(), ..asking(&["10.0.0.3"], SingleStack) };
    assert_eq!(cluster.create(old_client).unwrap().spec.cluster_ips, ["10.0.0.3"]);
}

#[test]
fn refused_addresses_are_reported_on_cluster_ips() {
    let mut cluster = Cluster::dual();
    cluster.stored(asking(&["10.0.0.3"], SingleStack));
    let refused = |cluster: &mut Cluster, text: &str| {
        let errors = cluster.create(asking(&[text], SingleStack)).unwrap_err();
        assert_eq!((errors.len(), errors[0].field.as_str()), (1, "spec.clusterIPs"));
        assert_eq!(errors[0].value, text);
        assert!(errors[0].is_invalid());
        errors[0].reason.clone()
    };
    let taken = AddressError::Allocated { address: address("10.0.0.3") };
    assert_eq!(refused(&mut cluster, "10.0.0.3"), Refusal::Address(taken.clone()));
    let edge = refused(&mut cluster, "10.0.0.0");
    assert!(matches!(edge, Refusal::Address(AddressError::NotInRange { .. })));
    let far = refused(&mut cluster, "10.9.0.0");
    assert!(matches!(far, Refusal::Address(AddressError::NoSuchRange { .. })));
    let other = ServiceKey::new("default", "other");
    cluster.holders.insert(address("10.0.0.3"), Holder::Service(other.clone()));
    assert_eq!(refused(&mut cluster, "10.0.0.3"), Refusal::HeldBy(other));
    // An address that is already held in this Service's name belongs to it, such as after a restore of the store.
    cluster.holders.insert(address("10.0.0.3"), Holder::Service(owner()));
    let plan = cluster.create(asking(&["10.0.0.3"], SingleStack)).unwrap();
    assert_eq!((plan.take.is_empty(), plan.keep.addresses), (true, vec![address("10.0.0.3")]));
    // It belongs to the other one of the two that have the name.
    let planner = Planner {
        families: cluster.families,
        allocations: &cluster.allocations,
        holders: &cluster.holders,
        is_lenient: false,
    };
    let errors = planner.create(None, asking(&["10.0.0.3"], SingleStack), &mut || 0).unwrap_err();
    assert_eq!(errors[0].reason, Refusal::HeldBy(owner()));
    cluster.holders.insert(address("10.0.0.3"), Holder::Other);
    assert_eq!(refused(&mut cluster, "10.0.0.3"), Refusal::Address(taken));
}

#[test]
fn an_own_record_does_not_widen_the_ranges() {
    let mut cluster = Cluster::dual();
    for text in ["10.0.0.0", "10.9.0.1", "127.0.0.1", "fd00::1:0"] {
        cluster.holders.insert(address(text), Holder::Service(owner()));
        let errors = cluster.create(asking(&[text], SingleStack)).unwrap_err();
        let is_outside =
            |error| matches!(error, AddressError::NoSuchRange { .. } | AddressError::NotInRange { .. });
        assert!(
            matches!(&errors[0].reason, Refusal::Address(error) if is_outside(error.clone())),
            "{errors:?}"
        );
    }
    // A range that is being removed gives no address to a Service that does not have it yet.
    let range = AddressRange::new("10.9.0.0/24".parse().unwrap()).unwrap();
    let taken = [address("10.9.0.1")];
    cluster.allocations.addresses.add(range, false, taken);
    cluster.create(asking(&["10.9.0.1"], SingleStack)).unwrap_err();
    cluster.allocations.addresses.add(range, true, taken);
    let plan = cluster.create(asking(&["10.9.0.1"], SingleStack)).unwrap();
    assert_eq!(plan.keep.addresses, taken);
    // A Service keeps its address after the range is gone.
    cluster.allocations.addresses.remove(range);
    assert_eq!(cluster.update(plan.spec.clone(), &plan.spec).unwrap().keep.addresses, taken);
    // An ExternalName Service has no address, so it gets this one as a new Service does.
    let external = ServiceSpec { service_type: ServiceType::ExternalName, ..ServiceSpec::default() };
    cluster.holders.insert(taken[0], Holder::Service(owner()));
    let errors = cluster.update(plan.spec, &external).unwrap_err();
    assert!(matches!(errors[0].reason, Refusal::Address(AddressError::NoSuchRange { .. })), "{errors:?}");
}

#[test]
fn a_service_gets_all_that_it_asks_or_nothing() {
    let mut cluster = Cluster::new(&["10.0.0.0/28", "fd00::/127"]);
    cluster.stored(asking(&["fd00::1"], SingleStack));
    let before = cluster.allocations.clone();
    let errors = cluster.create(cluster_ip(RequireDualStack)).unwrap_err();
    assert!(matches!(errors[0].reason, Refusal::Address(AddressError::Full { family: Ipv6, .. })));
    assert!(!errors[0].is_invalid());
    assert_eq!(cluster.allocations, before);
    // A stale plan leaves the allocations as they were.
    let addresses = vec![address("10.0.0.9"), address("fd00::1")];
    let result = cluster.allocations.take(&Claims { addresses, ports: vec![30_001], ..Claims::default() });
    assert_eq!(result, Err(Conflict::Address(address("fd00::1"))));
    assert_eq!(cluster.allocations, before);
}

#[test]
fn of_two_plans_for_the_last_address_one_succeeds() {
    let mut cluster = Cluster::new(&["10.0.0.0/30"]);
    cluster.families = Families::single(Ipv4);
    cluster.stored(cluster_ip(SingleStack));
    let plans = [(); 2].map(|()| cluster.create(cluster_ip(SingleStack)).unwrap());
    assert_eq!(plans[0].take, plans[1].take);
    assert_eq!(cluster.allocations.take(&plans[0].take), Ok(()));
    let lost = cluster.allocations.take(&plans[1].take);
    assert_eq!(lost, Err(Conflict::Address(plans[1].take.addresses[0])));
    let errors = cluster.create(cluster_ip(SingleStack)).unwrap_err();
    assert!(matches!(errors[0].reason, Refusal::Address(AddressError::Full { .. })));
}

#[test]
fn updates_take_and_release_addresses() {
    let mut cluster = Cluster::dual();
    let single = cluster.stored(cluster_ip(SingleStack));
    let v4 = single.addresses()[0];
    // An unchanged Service, written back as a whole or without the allocated values.
    for new in [single.clone(), cluster_ip(SingleStack)] {
        let plan = cluster.update(new, &single).unwrap();
        assert_eq!((&plan.spec, plan.take, plan.release), (&single, Claims::default(), Claims::default()));
        assert_eq!(plan.keep.addresses, [v4]);
    }
    // From one family to two, and back.
    let new = ServiceSpec { ip_family_policy: Some(PreferDualStack), ..single.clone() };
    let plan = cluster.update(new, &single).unwrap();
    let v6 = plan.take.addresses[0];
    assert_eq!((plan.take.addresses.as_slice(), plan.keep.addresses.as_slice()), (&[v6][..], &[v4][..]));
    cluster.carry_out(&plan);
    let dual = plan.spec;
    let new = ServiceSpec { ip_family_policy: Some(SingleStack), ..dual.clone() };
    let plan = cluster.update(new, &dual).unwrap();
    assert_eq!((plan.release.addresses.as_slice(), &plan.spec), (&[v6][..], &single));
    // A change to one family keeps the first address. A change to ExternalName releases both.
    let new = ServiceSpec { service_type: ServiceType::ExternalName, ..dual.clone() };
    let plan = cluster.update(new, &dual).unwrap();
    assert_eq!(plan.release.addresses, [v4, v6]);
    assert_eq!((plan.spec.cluster_ip.as_str(), plan.spec.cluster_ips.len()), ("", 0));
    assert_eq!((plan.spec.ip_families.len(), plan.spec.ip_family_policy), (0, None));
    cluster.carry_out(&plan);
    let external = plan.spec;
    let plan = cluster.update(cluster_ip(RequireDualStack), &external).unwrap();
    assert_eq!((plan.take.addresses.len(), plan.keep.addresses.len()), (2, 0));
    // A headless Service takes and releases nothing.
    let headless = cluster.stored(asking(&["None"], SingleStack));
    let plan = cluster.update(headless.clone(), &headless).unwrap();
    assert!(plan.take.is_empty() && plan.keep.is_empty() && plan.release.is_empty());
}

#[test]
fn an_unchanged_preference_stays_in_a_changed_cluster() {
    let mut cluster = Cluster::dual();
    cluster.families = Families::single(Ipv4);
    let stored = cluster.stored(cluster_ip(PreferDualStack));
    assert_eq!(stored.cluster_ips.len(), 1);
    cluster.families = Families::dual(Ipv4);
    assert!(cluster.update(stored.clone(), &stored).unwrap().take.is_empty());
}

#[test]
fn only_own_addresses_are_released() {
    let mut cluster = Cluster::dual();
    let spec = cluster.stored(asking(&["10.0.0.3", "fd00::3"], RequireDualStack));
    assert_eq!(cluster.delete(&spec), spec.claims());
    cluster.holders.insert(address("10.0.0.3"), Holder::Service(ServiceKey::new("default", "other")));
    cluster.holders.insert(address("fd00::3"), Holder::Service(owner()));
    assert_eq!(cluster.delete(&spec).addresses, [address("fd00::3")]);
    cluster.holders.insert(address("fd00::3"), Holder::Other);
    let external = ServiceSpec { service_type: ServiceType::ExternalName, ..spec.clone() };
    assert!(cluster.update(external, &spec).unwrap().release.is_empty());
    let headless = cluster.stored(asking(&["None"], SingleStack));
    assert!(cluster.delete(&headless).is_empty());
}

#[test]
fn an_old_client_changes_only_the_first_field() {
    let mut cluster = Cluster::dual();
    let stored = cluster.stored(cluster_ip(SingleStack));
    let new = ServiceSpec { cluster_ip: "10.0.0.99".to_owned(), ..stored.clone() };
    let errors = cluster.update(new, &stored).unwrap_err();
    assert_eq!((errors[0].field.as_str(), &errors[0].reason), ("spec.clusterIPs[0]", &Refusal::Immutable));
}
