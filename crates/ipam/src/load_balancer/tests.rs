use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::check::NodeNetworks;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| ip(text)).collect()
}

fn pools(ranges: &[&str]) -> AddressPools {
    let mut pools = AddressPools::new();
    for range in ranges {
        pools.add(AddressRange::new(range.parse().unwrap()).unwrap(), true, []);
    }
    pools
}

/// Returns the index of one Node with these addresses.
fn nodes(addresses: &[&str]) -> Nodes {
    let addresses = ips(addresses).into_iter().map(IpNet::from).collect();
    let mut nodes = Nodes::default();
    nodes.set("n", NodeNetworks { addresses, pods: Vec::new() });
    nodes
}

#[derive(Debug, Default)]
struct Records(HashMap<IpAddr, Holder>);

impl Holders for Records {
    fn of_address(&self, address: IpAddr) -> Holder {
        self.0.get(&address).cloned().unwrap_or(Holder::Unknown)
    }

    fn of_port(&self, _: u16) -> Holder {
        Holder::Unknown
    }
}

fn demand(families: &[Family]) -> Demand {
    Demand { families: families.to_vec(), is_strict: true, ..Demand::default() }
}

fn decide(pools: &AddressPools, demand: &Demand) -> Result<Allocation, Vec<(IpAddr, RequestRefusal)>> {
    plan(Supply { pools, nodes: &Nodes::default() }, &Records::default(), demand, &mut || 0)
}

const DUAL: [Family; 2] = [Family::Ipv4, Family::Ipv6];

#[test]
fn each_family_that_has_a_range_gets_an_address() {
    let pools = pools(&["192.0.2.0/29"]);
    let allocation = decide(&pools, &demand(&DUAL)).unwrap();
    assert_eq!((allocation.take, allocation.keep), (ips(&["192.0.2.1"]), vec![]));
}

#[test]
fn an_address_is_kept_until_the_service_drops_its_family_or_requests_another_one() {
    let pools = pools(&["192.0.2.0/29", "fd00::/125"]);
    // One of them is in no range any more.
    let held = ips(&["203.0.113.9", "fd00::1"]);
    let has = Demand { held: held.clone(), ..demand(&DUAL) };
    assert_eq!(decide(&pools, &has).unwrap(), Allocation { keep: held, ..Allocation::default() });
    let single = Demand { families: vec![Family::Ipv4], ..has.clone() };
    assert_eq!(decide(&pools, &single).unwrap().release, ips(&["fd00::1"]));
    let moving = Demand { requested: ips(&["192.0.2.5"]), ..has.clone() };
    let moved = decide(&pools, &moving).unwrap();
    assert_eq!((moved.take, moved.release), (ips(&["192.0.2.5"]), ips(&["203.0.113.9"])));
    let waiting = Demand { is_strict: false, ..moving };
    assert_eq!(decide(&pools, &waiting).unwrap().release, Vec::<IpAddr>::new(), "nothing is taken away");
    let same = Demand { requested: ips(&["203.0.113.9"]), ..has };
    assert_eq!(decide(&pools, &same).unwrap().keep, ips(&["203.0.113.9", "fd00::1"]));
}

#[test]
fn each_refused_request_has_its_reason() {
    let mut pools = pools(&["192.0.2.0/29", "fd00::/125"]);
    let owner = ServiceKey::new("default", "a");
    let records =
        Records([(ip("192.0.2.2"), Holder::Service(owner.clone())), (ip("192.0.2.3"), Holder::Other)].into());
    for address in records.0.keys() {
        pools.take(*address);
    }
    pools.take(ip("192.0.2.4"));
    let nodes = nodes(&["192.0.2.5"]);
    let ranges = || RequestRefusal::NotInRange("192.0.2.0/29,fd00::/125".to_owned());
    for (requested, refusal) in [
        (&["192.0.2.2"][..], RequestRefusal::HeldBy(owner.clone())),
        (&["192.0.2.3"], RequestRefusal::Allocated),
        (&["192.0.2.4"], RequestRefusal::Allocated),
        (&["192.0.2.5"], RequestRefusal::OfNode),
        (&["192.0.2.0"], ranges()),
        (&["192.0.2.7"], ranges()),
        (&["198.51.100.1"], ranges()),
        (&["fd00::1"], RequestRefusal::OtherFamily(Family::Ipv6)),
        (&["192.0.2.6", "192.0.2.1"], RequestRefusal::FamilyTwice(Family::Ipv4)),
    ] {
        let demand = Demand { requested: ips(requested), ..demand(&[Family::Ipv4]) };
        let supply = Supply { pools: &pools, nodes: &nodes };
        let refused = plan(supply, &records, &demand, &mut || 0).unwrap_err();
        assert_eq!(refused, [(*demand.requested.last().unwrap(), refusal)], "{requested:?}");
        let waits = Demand { is_strict: false, families: vec![Family::Ipv4], ..demand };
        let allocation = plan(supply, &records, &waits, &mut || 0).unwrap();
        let takes_another = !allocation.take.iter().all(|address| waits.requested.contains(address));
        // Only a request for a family that the Service does not have leaves its families without a request.
        assert_eq!(takes_another, *requested == ["fd00::1"], "{requested:?}");
    }
}

#[test]
fn addresses_of_nodes_are_not_allocated() {
    let pools = pools(&["192.0.2.0/30"]);
    let first = nodes(&["192.0.2.1"]);
    let supply = Supply { pools: &pools, nodes: &first };
    let allocation = plan(supply, &Records::default(), &demand(&[Family::Ipv4]), &mut || 0).unwrap();
    assert_eq!(allocation.take, ips(&["192.0.2.2"]));
    let both = nodes(&["192.0.2.1", "192.0.2.2"]);
    let supply = Supply { pools: &pools, nodes: &both };
    assert_eq!(supply.free_families(), []);
    let allocation = plan(supply, &Records::default(), &demand(&[Family::Ipv4]), &mut || 0).unwrap();
    assert_eq!(allocation, Allocation::default());
}

#[test]
fn an_address_that_the_status_lists_is_preferred() {
    let pools = pools(&["192.0.2.0/28"]);
    let lists = Demand { listed: ips(&["192.0.2.9"]), ..demand(&[Family::Ipv4]) };
    assert_eq!(decide(&pools, &lists).unwrap().take, ips(&["192.0.2.9"]));
}

#[test]
fn a_range_of_one_or_two_addresses_is_used_whole() {
    for (range, wanted) in [
        ("192.0.2.1/32", &["192.0.2.1"][..]),
        ("192.0.2.2/31", &["192.0.2.2", "192.0.2.3"]),
        ("192.0.2.4/30", &["192.0.2.5", "192.0.2.6"]),
        ("2001:db8::1/128", &["2001:db8::1"]),
        ("2001:db8::2/127", &["2001:db8::2", "2001:db8::3"]),
        ("2001:db8::4/126", &["2001:db8::5", "2001:db8::6", "2001:db8::7"]),
    ] {
        let range = check_ranges(&[range.parse().unwrap()], Neighbours::default()).unwrap().remove(0);
        let addresses: Vec<IpAddr> = (0..9).filter_map(|offset| range.address_at(offset)).collect();
        assert_eq!(addresses, ips(wanted), "{range}");
        assert_eq!(range.usable(), wanted.len() as u64, "{range}");
        for (offset, address) in (0..).zip(addresses) {
            assert_eq!(range.offset_of(address), Some(offset), "{range} {address}");
        }
    }
}

#[test]
fn ranges_are_checked_with_their_neighbours() {
    let check = |texts: &[&str]| {
        let nets: Vec<IpNet> = texts.iter().map(|text| text.parse().unwrap()).collect();
        let cluster_ips = ["10.96.0.0/12".parse().unwrap()];
        check_ranges(&nets, Neighbours { cluster_ips: &cluster_ips, ..Neighbours::default() })
    };
    assert_eq!(check(&["192.0.2.0/28", "198.51.100.0/24", "fd00::/112"]).unwrap().len(), 3);
    assert!(matches!(check(&["192.0.2.0/24", "192.0.2.16/28"]), Err(RangeRefusal::Overlap(..))));
    assert!(matches!(check(&["192.0.2.1/28"]), Err(RangeRefusal::Range(_))));
    assert_eq!(check(&["192.0.2.1/32", "2001:db8::1/128"]).unwrap().len(), 2);
    let overlaps = check(&["10.100.0.0/24"]).unwrap_err().to_string();
    assert!(overlaps.contains("overlaps 10.96.0.0/12, which is a range of cluster IPs"), "{overlaps}");
}

/// A step of the random walk: a Service and what it wants.
type Wish = (usize, Vec<Family>, Option<u8>, bool);

fn wishes() -> impl Strategy<Value = Vec<Wish>> {
    let families = prop_oneof![
        Just(vec![]),
        Just(vec![Family::Ipv4]),
        Just(vec![Family::Ipv6]),
        Just(DUAL.to_vec()),
        Just(vec![Family::Ipv6, Family::Ipv4])
    ];
    prop::collection::vec((0..12_usize, families, prop::option::of(0..9_u8), any::<bool>()), 1..80)
}

proptest! {
    /// Whatever Services want in whatever order: no address is held twice, each held one stays with its Service until
    /// the plan releases it, and a Service that could get an address has one.
    #[test]
    fn no_address_is_held_twice(wishes in wishes(), seed in any::<u64>()) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pools = pools(&["192.0.2.0/29", "fd00::/125"]);
        let mut records = Records::default();
        let mut held: HashMap<usize, Vec<IpAddr>> = HashMap::new();
        for (service, families, requested, is_strict) in wishes {
            let requested = requested.map(|last| IpAddr::from([192, 0, 2, last]));
            let demand = Demand {
                families,
                held: held.get(&service).cloned().unwrap_or_default(),
                requested: requested.into_iter().collect(),
                is_strict,
                listed: Vec::new(),
            };
            let supply = Supply { pools: &pools, nodes: &Nodes::default() };
            let Ok(allocation) = plan(supply, &records, &demand, &mut || random.u64(..)) else {
                prop_assert!(is_strict && requested.is_some());
                continue;
            };
            for address in &allocation.release {
                prop_assert!(pools.release(*address));
                records.0.remove(address);
            }
            for address in &allocation.take {
                prop_assert!(pools.take(*address), "{address} is held already");
                records.0.insert(*address, Holder::Service(ServiceKey::new("default", service.to_string())));
            }
            let has = [allocation.keep, allocation.take].concat();
            for family in &demand.families {
                let count = has.iter().filter(|address| Family::of(**address) == *family).count();
                let is_full = pools.find(*family, &mut || 0).is_err();
                prop_assert!(count == 1 || count == 0 && (is_full || requested.is_some()));
            }
            held.insert(service, has);
        }
        let all: Vec<IpAddr> = held.into_values().flatten().collect();
        prop_assert_eq!(all.len(), records.0.len());
    }
}
