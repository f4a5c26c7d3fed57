//! Reads the values with which rules compare: names, ports, numbers and addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use portolan_model::Family;

/// Reads the name of an interface, with its padding. Without the final NUL it is the start of a name.
pub(super) fn name(data: &[u8]) -> Option<String> {
    let end = data.iter().position(|byte| *byte == 0);
    let text = std::str::from_utf8(data.get(..end.unwrap_or(data.len()))?).ok()?;
    Some(if end.is_some() { text.to_owned() } else { format!("{text}*") })
}

pub(super) fn port(data: &[u8]) -> Option<u16> {
    data.try_into().ok().map(u16::from_be_bytes)
}

/// Reads a number in the machine's byte order.
pub(super) fn number(data: &[u8]) -> Option<u32> {
    data.try_into().ok().map(u32::from_ne_bytes)
}

/// Returns the length of a mask of leading ones.
pub(super) fn prefix(mask: &[u8]) -> Option<u8> {
    let ones: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
    let bit = |at: usize| mask.get(at / 8).is_some_and(|byte| byte & (0x80 >> (at % 8)) != 0);
    let ones = usize::try_from(ones).ok()?;
    if (0..ones).all(bit) { u8::try_from(ones).ok() } else { None }
}

pub(super) fn network(family: Family, data: &[u8], prefix: u8) -> Option<IpNet> {
    let mut bytes = [0_u8; 16];
    bytes.get_mut(..data.len())?.copy_from_slice(data);
    let [a, b, c, d, ..] = bytes;
    let address = match family {
        Family::Ipv4 => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        Family::Ipv6 => IpAddr::V6(Ipv6Addr::from(bytes)),
    };
    Some(IpNet::new(address, prefix).ok()?.trunc())
}
