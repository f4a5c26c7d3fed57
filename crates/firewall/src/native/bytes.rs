//! Reads the values with which rules compare: names, ports, numbers and addresses; and references to named objects.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use portolan_model::Family;
use portolan_wire::Attributes;

/// `NFTA_OBJREF_IMM_TYPE`.
const OBJECT_TYPE: u16 = 1;
/// `NFTA_OBJREF_IMM_NAME`.
const OBJECT_NAME: u16 = 2;
/// Types of objects whose rules go on for some packets only (`NFT_OBJECT_*`), with nft's names.
const CONDITIONS: [(u32, &str); 3] = [(2, "quota"), (4, "limit"), (5, "connlimit")];
/// `NFT_OBJECT_SYNPROXY`: it answers in the place of the destination.
const SYNPROXY: u32 = 10;

/// What the object does to which a rule refers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Object {
    /// It counts or changes the packet.
    DecidesNothing,
    /// The rule goes on for some packets only. In words.
    Condition(String),
    /// It decides.
    Decides,
}

/// Reads the attributes of a reference to a named object.
pub(super) fn object(bytes: &[u8]) -> Object {
    let read = || {
        let map = Attributes::new("nf_tables objref", bytes, 0).by_kind::<3>().ok()?;
        Some((map.u32_be(OBJECT_TYPE).ok()??, map.string(OBJECT_NAME).unwrap_or_default()))
    };
    // A map names an object for each packet.
    let Some((kind, name)) = read() else { return Object::Condition("objref".to_owned()) };
    match CONDITIONS.iter().find(|(known, _)| *known == kind) {
        Some((_, what)) => Object::Condition(format!("{what} name {name}")),
        None if kind == SYNPROXY => Object::Decides,
        None => Object::DecidesNothing,
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_to_which_rules_refer() {
        let attribute = |kind: u16, payload: &[u8]| {
            let length = u16::try_from(payload.len() + 4).unwrap();
            let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
            bytes.extend_from_slice(payload);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let of = |kind: u32| object(&[attribute(1, &kind.to_be_bytes()), attribute(2, b"x\0")].concat());
        assert_eq!(of(1), Object::DecidesNothing, "a counter");
        assert_eq!(of(4), Object::Condition("limit name x".to_owned()));
        assert_eq!(of(2), Object::Condition("quota name x".to_owned()));
        assert_eq!(of(5), Object::Condition("connlimit name x".to_owned()));
        assert_eq!(of(10), Object::Decides);
        let of_map = [attribute(3, &1_u32.to_be_bytes()), attribute(4, b"limits\0")].concat();
        assert_eq!(object(&of_map), Object::Condition("objref".to_owned()));
        assert_eq!(object(&[7]), Object::Condition("objref".to_owned()));
    }
}
