//! Reads the matches and targets of iptables in rules of nftables (`nft_compat`).
//!
//! The layouts are those of the kernel's headers `linux/netfilter/xt_conntrack.h`, `xt_tcpudp.h` and `xt_CT.h`, in the
//! machine's byte order.

use portolan_wire::Attributes;

use super::{ConntrackStates, Effect, Test};

/// `NFTA_MATCH_NAME` and `NFTA_TARGET_NAME`.
const NAME: u16 = 1;
/// `NFTA_MATCH_INFO` and `NFTA_TARGET_INFO`.
const INFO: u16 = 3;

/// `XT_CONNTRACK_STATE`: the match tests the state.
const CONNTRACK_STATE: u16 = 1;
/// `XT_CONNTRACK_STATE_ALIAS`: the rule was written with `-m state`.
const CONNTRACK_ALIAS: u16 = 1 << 13;
/// Offset of `match_flags` in `struct xt_conntrack_mtinfo1` and later: after eight addresses and masks of 16 bytes, two
/// times and five numbers of 16 bits.
const CONNTRACK_FLAGS: usize = 146;
/// `XT_CT_NOTRACK`.
const CT_NOTRACK: u16 = 1;
/// `XT_TCP_INV_FLAGS`.
const INVERTED_FLAGS: u8 = 4;
/// Length of `struct xt_addrtype_info_v1`.
const ADDRESS_TYPES: usize = 8;
/// Bit of the type `RTN_LOCAL`.
const TYPE_LOCAL: u16 = 1 << 2;
/// `XT_ADDRTYPE_INVERT_SOURCE`.
const INVERTED_SOURCE_TYPE: u16 = 1;
/// `XT_ADDRTYPE_INVERT_DEST`.
const INVERTED_TYPE: u16 = 2;
/// `XT_TCP_INV_DSTPT` and `XT_UDP_INV_DSTPT`.
const INVERTED_DESTINATION: u8 = 2;

/// Returns the conditions of a match of iptables, given its attributes.
pub fn tests(bytes: &[u8]) -> Vec<Test> {
    let Some((name, info)) = read(bytes) else { return vec![Test::Unknown("match".to_owned())] };
    let tests = match name.as_str() {
        "comment" => return Vec::new(),
        "conntrack" | "state" => conntrack(&name, info).map(|test| vec![test]),
        "tcp" => tcp(info),
        "udp" => udp(info).map(|test| vec![test]),
        "addrtype" => address_types(info),
        _ => None,
    };
    tests.unwrap_or_else(|| vec![Test::Unknown(name)])
}

/// Returns the effect of a target of iptables, given its attributes; `None` if the packet goes on to the next rule.
pub fn effect(bytes: &[u8]) -> Option<Effect> {
    let (name, info) = read(bytes)?;
    match name.as_str() {
        "DNAT" | "REDIRECT" | "TPROXY" | "NETMAP" => Some(Effect::Redirect),
        "REJECT" => Some(Effect::Reject),
        "NOTRACK" => Some(Effect::NoTrack),
        "CT" if word(info, 0)? & CT_NOTRACK != 0 => Some(Effect::NoTrack),
        "SNAT" | "MASQUERADE" => Some(Effect::Accept),
        "NFQUEUE" | "QUEUE" | "SYNPROXY" | "TARPIT" | "DELUDE" => Some(Effect::Unknown),
        _ => None,
    }
}

fn read(bytes: &[u8]) -> Option<(String, &[u8])> {
    let map = Attributes::new("nft_compat", bytes, 0).by_kind::<4>().ok()?;
    let name = map.get(NAME)?.string();
    Some((name, map.get(INFO).map_or(&[], |info| info.payload)))
}

/// Reads a test of the state. Other tests, of addresses or times, are unknown.
fn conntrack(name: &str, info: &[u8]) -> Option<Test> {
    if name == "state" {
        // `struct xt_state_info`: the mask only.
        return Some(Test::State(ConntrackStates(word(info, 0)?)));
    }
    let (flags, inverted) = (word(info, CONNTRACK_FLAGS)?, word(info, CONNTRACK_FLAGS + 2)?);
    let state = ConntrackStates(word(info, CONNTRACK_FLAGS + 4)?);
    (flags & !CONNTRACK_ALIAS == CONNTRACK_STATE)
        .then(|| Test::State(state).inverted_if(inverted & CONNTRACK_STATE != 0))
}

/// Reads `struct xt_tcp`: source ports, destination ports, option, mask and value of flags, inversions.
fn tcp(info: &[u8]) -> Option<Vec<Test>> {
    let (option, mask, value, inversions) = (*info.get(8)?, *info.get(9)?, *info.get(10)?, *info.get(11)?);
    if option != 0 {
        return None;
    }
    let flags = Test::TcpFlags { mask, value }.inverted_if(inversions & INVERTED_FLAGS != 0);
    let ports = ports(info, inversions & !INVERTED_FLAGS)?;
    Some(if mask == 0 { vec![ports] } else { vec![ports, flags] })
}

/// Reads `struct xt_addrtype_info_v1`: types of the source and of the destination, as bits, and flags.
fn address_types(info: &[u8]) -> Option<Vec<Test>> {
    let (source, destination, flags, _) = (word(info, 0)?, word(info, 2)?, word(info, 4)?, word(info, 6)?);
    let is_known = |types: u16| types == 0 || types == TYPE_LOCAL;
    // The first version of the match has two numbers of 32 bits here.
    let is_modelled = info.len() == ADDRESS_TYPES && flags & !(INVERTED_SOURCE_TYPE | INVERTED_TYPE) == 0;
    if !is_modelled || !is_known(source) || !is_known(destination) {
        return None;
    }
    let of_source = Test::SourceIsLocal.inverted_if(flags & INVERTED_SOURCE_TYPE != 0);
    let of_destination = Test::DestinationIsLocal.inverted_if(flags & INVERTED_TYPE != 0);
    let tests = [(source, of_source), (destination, of_destination)].into_iter();
    Some(tests.filter(|(types, _)| *types != 0).map(|(_, test)| test).collect())
}

/// Reads `struct xt_udp`: source ports, destination ports, inversions.
fn udp(info: &[u8]) -> Option<Test> {
    ports(info, *info.get(8)?)
}

fn ports(info: &[u8], inversions: u8) -> Option<Test> {
    let any_source = (word(info, 0)?, word(info, 2)?) == (0, u16::MAX);
    let test = Test::Port(word(info, 4)?..=word(info, 6)?);
    (any_source && inversions & !INVERTED_DESTINATION == 0)
        .then(|| test.inverted_if(inversions & INVERTED_DESTINATION != 0))
}

/// Reads a number of 16 bits in the machine's byte order.
fn word(info: &[u8], at: usize) -> Option<u16> {
    let bytes = info.get(at..at.checked_add(2)?)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns an attribute with its padding.
    fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len() + 4).expect("short");
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn extension(name: &str, info: &[u8]) -> Vec<u8> {
        [attribute(NAME, format!("{name}\0").as_bytes()), attribute(2, &[0; 4]), attribute(INFO, info)]
            .concat()
    }

    fn words(words: &[u16]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn a_comment_is_no_condition_and_unknown_matches_are() {
        assert_eq!(tests(&extension("comment", b"x")), []);
        assert_eq!(tests(&extension("physdev", &[0; 44])), [Test::Unknown("physdev".to_owned())]);
        assert_eq!(tests(&[1, 2, 3]), [Test::Unknown("match".to_owned())]);
    }

    #[test]
    fn states_of_connections() {
        let info = |flags: u16, inverted: u16, mask: u16| {
            let mut info = vec![0; CONNTRACK_FLAGS];
            info.extend(words(&[flags, inverted, mask, 0, 0, 0, 0, 0]));
            tests(&extension("conntrack", &info))
        };
        let old = ConntrackStates::ESTABLISHED.with(ConntrackStates::RELATED);
        assert_eq!(info(1, 0, 6), [Test::State(old)]);
        assert_eq!(info(1, 1, 6), [Test::State(old).inverted_if(true)]);
        assert_eq!(info(1, 0, 1 << 7), [Test::State(ConntrackStates::DNAT)]);
        assert_eq!(info(2, 0, 6), [Test::Unknown("conntrack".to_owned())], "a test of the protocol");
        assert_eq!(tests(&extension("conntrack", &[0; 20])), [Test::Unknown("conntrack".to_owned())]);
    }

    #[test]
    fn destination_ports() {
        let tcp = |inversions: u8| {
            let mut info = words(&[0, u16::MAX, 80, 90]);
            info.extend([0, 0, 0, inversions]);
            tests(&extension("tcp", &info))
        };
        assert_eq!(tcp(0), [Test::Port(80..=90)]);
        assert_eq!(tcp(2), [Test::Port(80..=90).inverted_if(true)]);
        let mut info = words(&[53, 53, 0, u16::MAX]);
        info.extend([0, 0]);
        assert_eq!(tests(&extension("udp", &info)), [Test::Unknown("udp".to_owned())], "a source port");
    }

    #[test]
    fn flags_of_tcp() {
        let tcp = |inversions: u8| {
            let mut info = words(&[0, u16::MAX, 0, u16::MAX]);
            info.extend([0, 0x17, 2, inversions]);
            tests(&extension("tcp", &info))
        };
        let (any, syn) = (Test::Port(0..=u16::MAX), Test::TcpFlags { mask: 0x17, value: 2 });
        assert_eq!(tcp(0), [any.clone(), syn.clone()]);
        assert_eq!(tcp(4), [any, syn.inverted_if(true)]);
    }

    #[test]
    fn types_of_addresses() {
        let of = |source, destination, flags| {
            tests(&extension("addrtype", &words(&[source, destination, flags, 0])))
        };
        let unknown = [Test::Unknown("addrtype".to_owned())];
        assert_eq!(of(0, 4, 0), [Test::DestinationIsLocal]);
        assert_eq!(of(4, 4, 1), [Test::SourceIsLocal.inverted_if(true), Test::DestinationIsLocal]);
        assert_eq!(of(0, 4, 2), [Test::DestinationIsLocal.inverted_if(true)]);
        assert_eq!(of(0, 4, 4), unknown, "of the arriving interface");
        assert_eq!(of(0, 8, 0), unknown, "broadcast");
    }

    #[test]
    fn targets() {
        assert_eq!(effect(&extension("DNAT", &[0; 44])), Some(Effect::Redirect));
        assert_eq!(effect(&extension("REJECT", &[0; 4])), Some(Effect::Reject));
        assert_eq!(effect(&extension("CT", &words(&[1, 0]))), Some(Effect::NoTrack));
        assert_eq!(effect(&extension("CT", &words(&[0, 5]))), None, "a zone");
        assert_eq!(effect(&extension("LOG", &[0; 32])), None);
        assert_eq!(effect(&[7]), None);
    }

    proptest! {
        #[test]
        fn any_information_of_any_length_is_read(
            name in "tcp|udp|conntrack|state|addrtype|CT|DNAT|[A-Za-z]{0,9}",
            info in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let bytes = extension(&name, &info);
            prop_assert!(tests(&bytes).len() <= 2);
            let _ = effect(&bytes);
        }
    }
}
