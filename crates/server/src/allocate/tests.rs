use super::*;

fn allocator(ranges: &str) -> NextFree {
    NextFree::new(&ranges.parse().unwrap(), "30000-30002".parse().unwrap())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn counting_starts_above_the_static_band_and_wraps_to_it() {
    let mut allocator = allocator("10.0.0.0/27");
    let given: Vec<IpAddr> = (0..30).map(|_| allocator.next_address(false, "a/b").unwrap()).collect();
    assert_eq!(given[0], ip("10.0.0.17"));
    assert_eq!(given[13], ip("10.0.0.30"));
    assert_eq!(given[14], ip("10.0.0.1"));
    let unique: std::collections::HashSet<_> = given.iter().collect();
    assert_eq!(unique.len(), 30);
    let full = allocator.next_address(false, "a/b").unwrap_err();
    assert_eq!(full, AllocationError::RangeFull { range: "10.0.0.0/27".parse().unwrap() });
    allocator.release_address(ip("10.0.0.5"), "a/b");
    assert_eq!(allocator.next_address(false, "a/b"), Ok(ip("10.0.0.5")));
}

#[test]
fn explicit_addresses() {
    let mut allocator = allocator("10.0.0.0/24,fd00::/112");
    assert_eq!(allocator.claim_address(ip("10.0.0.9"), "a/b"), Ok(()));
    assert_eq!(allocator.claim_address(ip("10.0.0.9"), "a/b"), Ok(()));
    let taken = allocator.claim_address(ip("10.0.0.9"), "a/c").unwrap_err();
    assert_eq!(taken.to_string(), "provided IP is already allocated to Service a/b");
    for outside in ["10.0.0.0", "10.0.0.255", "10.0.1.1", "fd00::", "fd00::1:0", "::a00:9"] {
        let error = allocator.claim_address(ip(outside), "a/c").unwrap_err();
        assert!(matches!(error, AllocationError::AddressOutOfRange { .. }), "{outside}");
    }
    assert_eq!(allocator.claim_address(ip("fd00::ffff"), "a/c"), Ok(()));
    allocator.release_address(ip("10.0.0.9"), "a/c");
    assert!(allocator.claim_address(ip("10.0.0.9"), "a/c").is_err(), "only the holder releases");
    allocator.release_address(ip("10.0.0.9"), "a/b");
    assert_eq!(allocator.claim_address(ip("10.0.0.9"), "a/c"), Ok(()));
}

#[test]
fn families_without_a_range() {
    let error = allocator("10.0.0.0/24").next_address(true, "a/b").unwrap_err();
    assert_eq!(error, AllocationError::NoSuchFamily { family: "IPv6" });
}

#[test]
fn node_ports_are_unique_per_protocol() {
    let mut allocator = allocator("10.0.0.0/24");
    assert_eq!(allocator.claim_port(Protocol::Tcp, 30_000, "a/b"), Ok(()));
    assert_eq!(allocator.claim_port(Protocol::Udp, 30_000, "a/c"), Ok(()));
    assert!(matches!(
        allocator.claim_port(Protocol::Tcp, 30_000, "a/c"),
        Err(AllocationError::PortTaken { .. })
    ));
    assert!(matches!(
        allocator.claim_port(Protocol::Tcp, 80, "a/c"),
        Err(AllocationError::PortOutOfRange { .. })
    ));
    assert_eq!(allocator.next_port(Protocol::Sctp, "a/d"), Ok(30_001));
    assert_eq!(allocator.next_port(Protocol::Tcp, "a/d"), Ok(30_002));
    assert!(matches!(allocator.next_port(Protocol::Tcp, "a/d"), Err(AllocationError::PortsFull { .. })));
    allocator.release_port(Protocol::Sctp, 30_001, "a/d");
    assert_eq!(allocator.next_port(Protocol::Tcp, "a/d"), Ok(30_001));
}
