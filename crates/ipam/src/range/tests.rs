use super::*;

fn range(text: &str) -> AddressRange {
    AddressRange::new(text.parse().unwrap()).unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Prefix, usable addresses, static band, dynamic band.
type Row = (u8, u64, u64, u64);

const IPV4: [Row; 18] = [
    (32, 0, 0, 0),
    (31, 0, 0, 0),
    (30, 2, 0, 2),
    (29, 6, 0, 6),
    (28, 14, 0, 14),
    (27, 30, 16, 14),
    (26, 62, 16, 46),
    (25, 126, 16, 110),
    (24, 254, 16, 238),
    (23, 510, 32, 478),
    (22, 1022, 64, 958),
    (21, 2046, 128, 1918),
    (20, 4094, 256, 3838),
    (18, 16382, 256, 16126),
    (16, 65534, 256, 65278),
    (12, 1_048_574, 256, 1_048_318),
    (8, 16_777_214, 256, 16_776_958),
    (2, (1 << 30) - 2, 256, 1_073_741_566),
];

const IPV6: [Row; 19] = [
    (128, 0, 0, 0),
    (127, 1, 0, 1),
    (126, 3, 0, 3),
    (125, 7, 0, 7),
    (124, 15, 0, 15),
    (123, 31, 16, 15),
    (122, 63, 16, 47),
    (121, 127, 16, 111),
    (120, 255, 16, 239),
    (119, 511, 32, 479),
    (118, 1023, 64, 959),
    (117, 2047, 128, 1919),
    (116, 4095, 256, 3839),
    (114, 16383, 256, 16127),
    (112, 65535, 256, 65279),
    (108, 1_048_575, 256, 1_048_319),
    (96, (1 << 32) - 1, 256, 4_294_967_039),
    (65, (1 << 63) - 1, 256, (1 << 63) - 257),
    (64, u64::MAX, 256, u64::MAX - 256),
];

fn check_row(text: &str, (prefix, usable, band, dynamic): Row) {
    let range = range(&format!("{text}/{prefix}"));
    assert_eq!((range.usable(), range.static_band()), (usable, band), "{range}");
    assert_eq!(range.usable() - range.static_band(), dynamic, "{range}");
}

#[test]
fn sizes_and_static_bands_of_ranges() {
    for row in IPV4 {
        check_row("0.0.0.0", row);
    }
    for row in IPV6 {
        check_row("fd00::", row);
    }
    check_row("0.0.0.0", (1, (1 << 31) - 2, 0, (1 << 31) - 2));
    check_row("0.0.0.0", (0, (1 << 32) - 2, 0, (1 << 32) - 2));
}

/// Computes the bands in another way, from the power of two of the whole size.
#[test]
fn the_band_of_every_prefix_length() {
    let expected = |host_bits: u8, ipv4: bool| match host_bits {
        0..=4 => 0,
        31.. if ipv4 => 0,
        5..=8 => 16,
        9 => 32,
        10 => 64,
        11 => 128,
        _ => 256,
    };
    for host_bits in 0..=32 {
        let range = range(&format!("0.0.0.0/{}", 32 - host_bits));
        assert_eq!(range.static_band(), expected(host_bits, true), "{range}");
    }
    for host_bits in 0..=64 {
        let range = range(&format!("fd00::/{}", 128 - host_bits));
        assert_eq!(range.static_band(), expected(host_bits, false), "{range}");
    }
}

#[test]
fn first_and_last_addresses_of_the_bands() {
    for (text, static_first, static_last, dynamic_first, last) in [
        ("10.0.0.0/24", "10.0.0.1", "10.0.0.16", "10.0.0.17", "10.0.0.254"),
        ("192.168.1.0/27", "192.168.1.1", "192.168.1.16", "192.168.1.17", "192.168.1.30"),
        ("10.96.0.0/22", "10.96.0.1", "10.96.0.64", "10.96.0.65", "10.96.3.254"),
        ("10.96.0.0/20", "10.96.0.1", "10.96.1.0", "10.96.1.1", "10.96.15.254"),
        ("10.96.0.0/12", "10.96.0.1", "10.96.1.0", "10.96.1.1", "10.111.255.254"),
        ("10.43.0.0/16", "10.43.0.1", "10.43.1.0", "10.43.1.1", "10.43.255.254"),
        ("fd00::/120", "fd00::1", "fd00::10", "fd00::11", "fd00::ff"),
        ("fd00::/112", "fd00::1", "fd00::100", "fd00::101", "fd00::ffff"),
        ("fd00::/64", "fd00::1", "fd00::100", "fd00::101", "fd00::ffff:ffff:ffff:ffff"),
    ] {
        let range = range(text);
        let band = range.static_band();
        let expected = [static_first, static_last, dynamic_first, last].map(|text| Some(address(text)));
        let got = [range.first(), range.address_at(band - 1), range.address_at(band), range.last()];
        assert_eq!(got, expected, "{text}");
    }
}

#[test]
fn offsets_of_addresses() {
    let range = range("10.96.0.0/12");
    for (text, offset) in [
        ("10.96.0.1", Some(0)),
        ("10.96.0.10", Some(9)),
        ("10.96.1.0", Some(255)),
        ("10.96.1.1", Some(256)),
        ("10.111.255.254", Some(1_048_573)),
        ("10.96.0.0", None),
        ("10.111.255.255", None),
        ("10.112.0.1", None),
        ("10.95.255.255", None),
        ("fd00::1", None),
        ("::ffff:10.96.0.10", Some(9)),
    ] {
        assert_eq!(range.offset_of(address(text)), offset, "{text}");
    }
    for offset in [0, 9, 255, 256, 1_048_573] {
        assert_eq!(range.offset_of(range.address_at(offset).unwrap()), Some(offset));
    }
    assert_eq!(range.address_at(1_048_574), None);
}

#[test]
fn the_ends_of_the_address_space_do_not_wrap() {
    let top = range("255.255.255.0/24");
    assert_eq!(top.last(), Some(address("255.255.255.254")));
    let top = range("ffff:ffff:ffff:ffff::/64");
    assert_eq!(top.last(), Some(address("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")));
    assert_eq!(top.offset_of(top.last().unwrap()), Some(u64::MAX - 1));
    assert_eq!(range("10.0.0.1/32").first(), None);
    assert_eq!(range("fd00::/127").first(), Some(address("fd00::1")));
}

#[test]
fn host_bits_and_more_than_64_bits_are_refused() {
    let error = |text: &str| AddressRange::new(text.parse().unwrap()).unwrap_err();
    assert!(matches!(error("10.0.0.5/24"), RangeError::HostBits(_)));
    assert!(error("10.0.0.5/24").to_string().ends_with("write it as 10.0.0.0/24"));
    assert!(matches!(error("fd00::/63"), RangeError::TooLarge(_)));
}
