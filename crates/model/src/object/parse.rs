//! Parses addresses, CIDRs, ports, protocols and times in the formats of the API.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::lenient::{Faults, Loose, Text, fault};
use crate::{Family, Protocol};

/// Parses an address as leniently as the Kubernetes API and returns its canonical value. IPv4 octets may have leading
/// zeros and are decimal. IPv4-mapped IPv6 becomes IPv4. Zones and brackets are refused.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        parse_ipv6(text).map(|v6| v6.to_canonical())
    } else {
        parse_ipv4(text).map(IpAddr::V4)
    }
}

/// Parses a CIDR as leniently as [`parse_address`]. Host bits may be set and are cleared.
///
/// An IPv4-mapped network with a prefix of at least 96 bits becomes the IPv4 network that it maps. A shorter prefix
/// has no meaning and is refused.
pub fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    let digits = !length.is_empty() && length.len() <= 3 && length.bytes().all(|b| b.is_ascii_digit());
    let length: u8 = if digits { length.parse().ok()? } else { return None };
    let net = match parse_address(address)? {
        IpAddr::V4(v4) if address.contains(':') => IpNet::new(v4.into(), length.checked_sub(96)?),
        address => IpNet::new(address, length),
    };
    net.ok().map(|net| net.trunc())
}

fn parse_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0_u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        *octet = parse_octet(parts.next()?)?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

fn parse_octet(text: &str) -> Option<u8> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let significant = text.trim_start_matches('0');
    if significant.is_empty() { Some(0) } else { significant.parse().ok() }
}

/// Parses an IPv6 address. Its last 32 bits may be dotted IPv4 with leading zeros, which the standard parser refuses.
fn parse_ipv6(text: &str) -> Option<Ipv6Addr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let (head, tail) = text.rsplit_once(':')?;
    let v4 = parse_ipv4(tail)?;
    format!("{head}:{v4}").parse().ok()
}

/// Reads an address field. Returns `None` if it is absent or invalid; the latter is reported as a fault.
pub(super) fn address(
    text: Loose<Text<'_>>,
    faults: &mut Faults,
    field: impl Fn() -> String,
) -> Option<IpAddr> {
    let text = text.take(faults, &field, "an IP address")?;
    let address = parse_address(&text);
    if address.is_none() {
        fault(faults, field(), format!("{:?} is not an IP address; write one such as 10.0.0.1", clip(&text)));
    }
    address
}

/// Reads a list of CIDRs. Blank entries are skipped, invalid ones are reported as faults. Returns the CIDRs and
/// whether there were invalid entries. Blank entries count as invalid if there is nothing else.
pub(super) fn cidrs(
    list: Loose<Vec<Loose<Text<'_>>>>,
    faults: &mut Faults,
    field: &str,
) -> (Vec<IpNet>, bool) {
    let mut nets = Vec::new();
    let (mut bad, mut blank) = (matches!(list, Loose::Mismatch(_)), false);
    for (index, entry) in list.or_empty(faults, field, "a list of CIDRs").into_iter().enumerate() {
        let path = || format!("{field}[{index}]");
        bad |= matches!(entry, Loose::Mismatch(_));
        let Some(text) = entry.take(faults, path, "a CIDR") else { continue };
        let text = text.trim();
        if let Some(net) = parse_cidr(text) {
            nets.push(net);
        } else if text.is_empty() {
            blank = true;
        } else {
            bad = true;
            fault(faults, path(), format!("{:?} is not a CIDR; write one such as 10.0.0.0/8", clip(text)));
        }
    }
    bad |= blank && nets.is_empty();
    (nets, bad)
}

/// Checks that a number is a port from 1 to 65535.
pub(super) fn port_number(value: i64, faults: &mut Faults, field: impl Fn() -> String) -> Option<u16> {
    let port = u16::try_from(value).ok().filter(|port| *port != 0);
    if port.is_none() {
        fault(faults, field(), format!("{value} is not a port; write 1 to 65535"));
    }
    port
}

/// Reads a protocol. An absent one means TCP, the API server's default.
pub(super) fn protocol(
    text: Loose<Text<'_>>,
    faults: &mut Faults,
    field: impl Fn() -> String,
) -> Option<Protocol> {
    if text.is_missing() {
        return Some(Protocol::Tcp);
    }
    let text = text.take(faults, &field, "TCP, UDP or SCTP")?;
    match &*text {
        "TCP" | "" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        other => {
            fault(faults, field(), format!("{:?} is not a protocol; write TCP, UDP or SCTP", clip(other)));
            None
        }
    }
}

/// Returns the family with this name in the API.
pub(super) fn family(text: &str) -> Option<Family> {
    match text {
        "IPv4" => Some(Family::Ipv4),
        "IPv6" => Some(Family::Ipv6),
        _ => None,
    }
}

/// Returns the first 64 characters of a text for a message, so that a long value cannot flood the log.
pub(super) fn clip(text: &str) -> &str {
    let end = text.char_indices().nth(64).map_or(text.len(), |(index, _)| index);
    text.get(..end).unwrap_or(text)
}

/// Parses an RFC 3339 time as nanoseconds since the Unix epoch. Returns `None` if it is malformed or out of range
/// (before 1677 or after 2262).
pub fn parse_time(text: &str) -> Option<i64> {
    let (date, rest) = text.split_once(['T', 't'])?;
    let mut date = date.split('-');
    let (year, month, day) = (digits(date.next()?, 4)?, digits(date.next()?, 2)?, digits(date.next()?, 2)?);
    let zone_at = rest.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = rest.split_at_checked(zone_at)?;
    let (clock, fraction) = clock.split_once('.').map_or((clock, None), |(c, f)| (c, Some(f)));
    let mut clock = clock.split(':');
    let (hour, minute, second) =
        (digits(clock.next()?, 2)?, digits(clock.next()?, 2)?, digits(clock.next()?, 2)?);
    if date.next().is_some() || clock.next().is_some() || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = days_from_epoch(year, month, day)? * 86_400 + hour * 3_600 + minute * 60 + second;
    let nanos = fraction.map_or(Some(0), parse_fraction)?;
    (seconds - parse_offset(zone)?).checked_mul(1_000_000_000)?.checked_add(nanos)
}

fn digits(text: &str, length: usize) -> Option<i64> {
    (text.len() == length && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

/// Returns the nanoseconds of a fraction. Digits beyond the ninth are dropped.
fn parse_fraction(text: &str) -> Option<i64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(text.bytes().chain(std::iter::repeat(b'0')).take(9).fold(0, |sum, b| sum * 10 + i64::from(b - b'0')))
}

/// Returns the offset of a time zone in seconds east of UTC.
fn parse_offset(zone: &str) -> Option<i64> {
    let sign = match zone.chars().next()? {
        'Z' | 'z' => return (zone.len() == 1).then_some(0),
        '+' => 1,
        _ => -1,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let (hours, minutes) = (digits(hours, 2)?, digits(minutes, 2)?);
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 3_600 + minutes * 60))
}

/// Returns the days since 1970-01-01 in the proleptic Gregorian calendar.
fn days_from_epoch(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let index = usize::try_from(month.checked_sub(1)?).ok()?;
    if !(1..=*lengths.get(index)?).contains(&day) {
        return None;
    }
    let before: i64 = lengths.iter().take(index).sum();
    let past = year - 1;
    let leaps = past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400);
    // 719,162 days lie between 0001-01-01 and 1970-01-01.
    Some(past * 365 + leaps + before + day - 1 - 719_162)
}

#[cfg(test)]
mod tests;
