use super::*;

fn range(text: &str) -> AddressRange {
    AddressRange::new(text.parse().unwrap()).unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn pools(texts: &[&str]) -> AddressPools {
    let mut pools = AddressPools::new();
    for text in texts {
        pools.add(range(text), true, []);
    }
    pools
}

/// Allocates any free address, as for a Service without an explicit request.
fn take_any(pools: &mut AddressPools, seed: &mut fastrand::Rng) -> Result<IpAddr, AddressError> {
    let address = pools.find(Family::Ipv4, &mut || seed.u64(..))?;
    assert!(pools.take(address), "{address}");
    Ok(address)
}

#[test]
fn the_upper_band_goes_first_and_then_the_lower() {
    for seed in 0..20 {
        let mut seed = fastrand::Rng::with_seed(seed);
        let mut pools = pools(&["192.168.1.0/27"]);
        for count in 1..=30 {
            let given = take_any(&mut pools, &mut seed).unwrap();
            let is_upper = (address("192.168.1.17")..=address("192.168.1.30")).contains(&given);
            let is_lower = (address("192.168.1.1")..=address("192.168.1.16")).contains(&given);
            assert!(if count <= 14 { is_upper } else { is_lower }, "{count}: {given}");
        }
        let full = take_any(&mut pools, &mut seed).unwrap_err();
        assert_eq!(full.to_string(), "range is full: no IPv4 address is left in 192.168.1.0/27");
        assert!(pools.release(address("192.168.1.10")));
        assert_eq!(take_any(&mut pools, &mut seed), Ok(address("192.168.1.10")));
    }
}

#[test]
fn explicit_requests_may_have_any_usable_address_once() {
    let mut pools = pools(&["10.0.0.0/24"]);
    for text in ["10.0.0.0", "10.0.0.255"] {
        let error = pools.check(address(text)).unwrap_err();
        assert!(matches!(error, AddressError::NotInRange { .. }), "{error}");
        assert!(error.to_string().ends_with("10.0.0.1-10.0.0.254"), "{error}");
        assert!(!pools.take(address(text)));
    }
    for text in ["10.0.0.1", "10.0.0.254"] {
        assert_eq!(pools.check(address(text)), Ok(()));
        assert!(pools.take(address(text)));
        assert_eq!(pools.check(address(text)), Err(AddressError::Allocated { address: address(text) }));
        assert!(!pools.take(address(text)));
    }
    let error = pools.check(address("10.0.1.1")).unwrap_err();
    assert_eq!(error.to_string(), "10.0.1.1 is in no range of cluster IPs; the ranges are 10.0.0.0/24");
    assert!(matches!(pools.check(address("fd00::1")), Err(AddressError::NoSuchRange { .. })));
}

#[test]
fn the_edges_of_a_nested_range_come_from_the_wider_one() {
    let mut pools = pools(&["192.168.1.0/24"]);
    let edges = ["192.168.1.0", "192.168.1.255"].map(address);
    assert!(edges.iter().all(|edge| matches!(pools.check(*edge), Err(AddressError::NotInRange { .. }))));
    pools.add(range("192.168.0.0/16"), true, []);
    assert!(edges.into_iter().all(|edge| pools.take(edge)));
    let shared = address("192.168.1.9");
    assert!(pools.take(shared));
    let allocated: Vec<u64> = pools.usage().map(|usage| usage.allocated).collect();
    assert_eq!(allocated, [1, 3]);
    pools.remove(range("192.168.0.0/16"));
    assert!(pools.is_taken(shared) && !pools.is_taken(edges[0]));
}

#[test]
fn a_second_range_widens_the_first() {
    let mut seed = fastrand::Rng::with_seed(3);
    let mut pools = pools(&["10.0.0.0/28"]);
    let mut given: Vec<IpAddr> = Vec::new();
    while let Ok(address) = take_any(&mut pools, &mut seed) {
        given.push(address);
    }
    assert_eq!(given.len(), 14);
    pools.add(range("10.0.0.0/24"), true, given.iter().copied());
    while let Ok(address) = take_any(&mut pools, &mut seed) {
        assert!(!given.contains(&address), "{address} twice");
        given.push(address);
    }
    assert_eq!(given.len(), 14 + 240);
    // After shrinking, the addresses of the small range are still taken.
    for address in given.split_off(14) {
        assert!(pools.release(address));
    }
    pools.remove(range("10.0.0.0/24"));
    assert_eq!(pools.usage().map(|usage| (usage.allocated, usage.available)).collect::<Vec<_>>(), [(14, 0)]);
}

#[test]
fn a_range_that_is_not_ready_only_releases_addresses() {
    let mut pools = pools(&["10.0.0.0/24"]);
    let given = address("10.0.0.9");
    assert!(pools.take(given));
    pools.add(range("10.0.0.0/24"), false, []);
    let not_ready = AddressError::NotReady { family: Family::Ipv4 };
    assert_eq!(pools.find(Family::Ipv4, &mut || 0), Err(not_ready));
    assert!(matches!(pools.check(address("10.0.0.8")), Err(AddressError::NoSuchRange { .. })));
    assert!(pools.release(given) && !pools.is_taken(given));
}

#[test]
fn an_address_taken_in_one_range_is_taken() {
    let mut pools = pools(&["10.0.0.0/24"]);
    assert!(pools.take(address("10.0.0.9")));
    // The new range is added without the taken addresses. The older range still has them.
    pools.add(range("10.0.0.0/16"), true, []);
    assert!(!pools.take(address("10.0.0.9")));
    assert!(matches!(pools.check(address("10.0.0.9")), Err(AddressError::Allocated { .. })));
}

#[test]
fn the_largest_range_works_at_both_ends() {
    let mut pools = pools(&["fd00::/64"]);
    let mut take = |random: u64| {
        let address = pools.find(Family::Ipv6, &mut || random).unwrap();
        assert!(pools.take(address));
        address
    };
    assert_eq!(take(0), address("fd00::101"));
    assert_eq!(take(u64::MAX), address("fd00::ffff:ffff:ffff:ffff"));
    // The search wraps around the end and skips taken addresses.
    assert_eq!(take(u64::MAX), address("fd00::102"));
    assert_eq!(take(u64::MAX), address("fd00::103"));
}
