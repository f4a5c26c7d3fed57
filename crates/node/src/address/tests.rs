use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("a test address")
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().expect("a test CIDR")).collect()
}

#[test]
fn addresses_are_read_as_kubernetes_reads_them() {
    let good = [
        ("10.0.0.1", "10.0.0.1"),
        ("010.000.0.0001", "10.0.0.1"),
        ("FD00:0::1", "fd00::1"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("::ffff:01.02.03.04", "1.2.3.4"),
        ("64:ff9b::010.0.0.1", "64:ff9b::a00:1"),
    ];
    for (text, want) in good {
        assert_eq!(parse_ip(text).map(|ip| ip.to_string()).as_deref(), Ok(want), "{text}");
    }
    for text in ["", "1.2.3", "1.2.3.4.5", "1.2.3.256", "[::1]", "fe80::1%eth0", "1.2.3.4:5", " 1.2.3.4", "a"]
    {
        assert_eq!(parse_ip(text), Err(AddressError::Ip(text.to_owned())), "{text}");
    }
}

#[test]
fn cidrs_are_masked() {
    let good = [
        ("10.20.30.40/16", "10.20.0.0/16"),
        ("010.1.2.3/08", "10.0.0.0/8"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("fd00::1/64", "fd00::/64"),
        ("::ffff:1.2.3.4/120", "1.2.3.0/24"),
        ("::ffff:1.2.3.4/64", "::/64"),
    ];
    for (text, want) in good {
        assert_eq!(parse_cidr(text).map(|net| net.to_string()).as_deref(), Ok(want), "{text}");
    }
    for text in
        ["", "10.0.0.0", "10.0.0.0/33", "fd00::/129", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/+8", "10.0.0/8"]
    {
        assert_eq!(parse_cidr(text), Err(AddressError::Cidr(text.to_owned())), "{text}");
    }
}

#[test]
fn socket_addresses_take_a_default_port() {
    let good = [
        ("0.0.0.0", "0.0.0.0:10256"),
        ("::", "[::]:10256"),
        ("[::1]:80", "[::1]:80"),
        ("010.0.0.1:00080", "10.0.0.1:80"),
    ];
    for (text, want) in good {
        let got = parse_socket_address(text, 10256).map(|address| address.to_string());
        assert_eq!(got.as_deref(), Ok(want), "{text}");
    }
    for text in ["", ":80", "1.2.3.4:0", "1.2.3.4:65536", "1.2.3.4:", "[::1]", "localhost:80", "[1.2.3.4:80"]
    {
        assert_eq!(
            parse_socket_address(text, 1),
            Err(AddressError::SocketAddress(text.to_owned())),
            "{text}"
        );
    }
}

#[test]
fn node_addresses_follow_the_table() {
    let table: [(&[&str], &str, Family, &str, &str); 6] = [
        (&[], "0.0.0.0", Family::Ipv4, "127.0.0.1", "::1"),
        (&[], "fd00::2", Family::Ipv6, "127.0.0.1", "fd00::2"),
        (&["192.168.1.1"], "::", Family::Ipv4, "192.168.1.1", "::1"),
        (&["fd00::1"], "0.0.0.0", Family::Ipv6, "127.0.0.1", "fd00::1"),
        (&["2001:db8::2", "90.90.90.90"], "80.80.80.80", Family::Ipv4, "80.80.80.80", "2001:db8::2"),
        (&["90.90.90.90", "2001:db8::2"], "::1", Family::Ipv6, "90.90.90.90", "::1"),
    ];
    for (node, bind, primary, v4, v6) in table {
        let node: Vec<IpAddr> = node.iter().map(|text| ip(text)).collect();
        let chosen = NodeAddresses::choose(&node, ip(bind));
        assert_eq!(
            (chosen.primary, chosen.of(Family::Ipv4), chosen.of(Family::Ipv6)),
            (primary, ip(v4), ip(v6)),
            "{node:?} bound to {bind}"
        );
    }
}

#[test]
fn node_port_addresses_resolve_for_each_family() {
    use NodePortAddresses as Setting;
    let known = NodeAddresses::choose(&[ip("192.0.2.7"), ip("2001:db8::7")], ip("0.0.0.0"));
    let v4_only = NodeAddresses::choose(&[ip("192.0.2.7")], ip("0.0.0.0"));
    let unknown = NodeAddresses::choose(&[], ip("0.0.0.0"));
    let all = NodePortMatch::MatchAll;
    let some = |texts: &[&str]| NodePortMatch::Cidrs(nets(texts));
    let cidrs = |texts: &[&str]| Setting::Cidrs(nets(texts));
    let table = [
        (Setting::Default, known, all.clone(), all.clone()),
        (Setting::Primary, known, some(&["192.0.2.7/32"]), some(&["2001:db8::7/128"])),
        // A family without a known address matches every address.
        (Setting::Primary, v4_only, some(&["192.0.2.7/32"]), all.clone()),
        (Setting::Primary, unknown, all.clone(), all.clone()),
        (cidrs(&["10.0.0.0/8"]), known, some(&["10.0.0.0/8"]), all.clone()),
        (cidrs(&["10.0.0.0/8", "fd00::/8"]), known, some(&["10.0.0.0/8"]), some(&["fd00::/8"])),
        (cidrs(&["10.0.0.0/8", "0.0.0.0/0", "fd00::/8"]), known, all.clone(), some(&["fd00::/8"])),
        (cidrs(&[]), known, all.clone(), all),
    ];
    for (setting, node, v4, v6) in table {
        assert_eq!(NodePortMatch::resolve(&setting, &node, Family::Ipv4), v4, "{setting:?}");
        assert_eq!(NodePortMatch::resolve(&setting, &node, Family::Ipv6), v6, "{setting:?}");
    }
}

#[test]
fn matching_addresses_are_of_the_family_and_inside() {
    let here = ["127.0.0.1", "10.1.2.3", "10.1.2.3", "192.0.2.1", "fd00::1", "::1"].map(ip);
    let inside = NodePortMatch::Cidrs(nets(&["10.0.0.0/8", "127.0.0.0/8"]));
    assert_eq!(inside.matching(Family::Ipv4, here), BTreeSet::from([ip("10.1.2.3"), ip("127.0.0.1")]));
    assert_eq!(inside.matching(Family::Ipv6, here), BTreeSet::new());
    let all = NodePortMatch::MatchAll.matching(Family::Ipv6, here);
    assert_eq!(all, BTreeSet::from([ip("::1"), ip("fd00::1")]));
}

#[test]
fn ipv4_loopback_is_covered_by_overlapping_networks() {
    let covers = |text| NodePortMatch::Cidrs(nets(&[text])).covers_ipv4_loopback(Family::Ipv4);
    assert!(covers("127.0.2.0/28"));
    assert!(covers("64.0.0.0/2"));
    assert!(!covers("10.0.0.0/8"));
    assert!(NodePortMatch::MatchAll.covers_ipv4_loopback(Family::Ipv4));
    assert!(!NodePortMatch::MatchAll.covers_ipv4_loopback(Family::Ipv6));
}

proptest! {
    #[test]
    fn standard_addresses_read_as_themselves(bits: u128, narrow: u32) {
        let v4 = Ipv4Addr::from(narrow);
        let v6 = Ipv6Addr::from(bits);
        prop_assert_eq!(parse_ip(&v4.to_string()), Ok(IpAddr::V4(v4)));
        prop_assert_eq!(parse_ip(&v6.to_string()), Ok(IpAddr::V6(v6).to_canonical()));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[0-9a-f:./\\[\\]]{0,24}|.*") {
        let _ = (parse_ip(&text), parse_cidr(&text), parse_socket_address(&text, 1));
    }
}
