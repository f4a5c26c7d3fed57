use super::*;

#[test]
fn addresses_are_read_sloppily_and_made_canonical() {
    let cases = [
        ("10.0.0.1", Some("10.0.0.1")),
        ("010.000.0.001", Some("10.0.0.1")),
        ("0000010.0.0.1", Some("10.0.0.1")),
        ("::ffff:1.2.3.4", Some("1.2.3.4")),
        ("::ffff:01.02.03.04", Some("1.2.3.4")),
        ("::ffff:102:304", Some("1.2.3.4")),
        ("2001:DB8:0::1", Some("2001:db8::1")),
        ("::", Some("::")),
        ("fe80::1%eth0", None),
        ("[::1]", None),
        ("256.0.0.1", None),
        ("1.2.3", None),
        ("1.2.3.4.5", None),
        ("1.2.3.+4", None),
        (" 1.2.3.4", None),
        ("1.2.3.4 ", None),
        ("1..2.3", None),
        ("", None),
        ("1:2", None),
        ("é.1.2.3", None),
    ];
    for (text, wanted) in cases {
        assert_eq!(parse_address(text).map(|a| a.to_string()).as_deref(), wanted, "{text:?}");
    }
}

#[test]
fn cidrs_are_masked() {
    let cases = [
        ("10.20.30.40/16", Some("10.20.0.0/16")),
        ("010.0.0.0/08", Some("10.0.0.0/8")),
        ("2001:db8::1/32", Some("2001:db8::/32")),
        ("::ffff:10.1.2.3/104", Some("10.0.0.0/8")),
        ("::ffff:10.1.2.3/95", None),
        ("0.0.0.0/0", Some("0.0.0.0/0")),
        ("10.0.0.0/33", None),
        ("::/129", None),
        ("10.0.0.0", None),
        ("10.0.0.0/", None),
        ("10.0.0.0/-1", None),
        ("10.0.0.0/+8", None),
        ("10.0.0.0/8/8", None),
    ];
    for (text, wanted) in cases {
        assert_eq!(parse_cidr(text).map(|net| net.to_string()).as_deref(), wanted, "{text:?}");
    }
}

#[test]
fn times() {
    let cases = [
        ("1970-01-01T00:00:00Z", Some(0)),
        ("1970-01-01T00:00:00.000000001Z", Some(1)),
        ("1969-12-31T23:59:59.5Z", Some(-500_000_000)),
        ("2000-02-29T12:00:00Z", Some(951_825_600_000_000_000)),
        ("2026-01-02T03:04:05Z", Some(1_767_323_045_000_000_000)),
        ("2026-01-02T03:04:05.123456789123Z", Some(1_767_323_045_123_456_789)),
        ("2026-01-02T03:04:05+01:30", Some(1_767_317_645_000_000_000)),
        ("2026-01-02T03:04:05-01:30", Some(1_767_328_445_000_000_000)),
        ("1900-02-29T00:00:00Z", None),
        ("2026-13-01T00:00:00Z", None),
        ("2026-00-01T00:00:00Z", None),
        ("2026-01-00T00:00:00Z", None),
        ("2026-01-02T24:00:00Z", None),
        ("2026-01-02T03:04:05", None),
        ("2026-01-02 03:04:05Z", None),
        ("2026-01-02T03:04:05.Z", None),
        ("2026-01-02T03:04:05+1:30", None),
        ("2026-01-02T03:04:05Zz", None),
        ("9999-01-01T00:00:00Z", None),
        ("", None),
    ];
    for (text, wanted) in cases {
        assert_eq!(parse_time(text), wanted, "{text:?}");
    }
}

#[test]
fn clipping_keeps_characters_whole() {
    let long = "é".repeat(100);
    assert_eq!(clip(&long), "é".repeat(64));
    assert_eq!(clip("short"), "short");
}
