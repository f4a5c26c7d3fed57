//! The expressions of rules, each with the nft syntax that it stands for.
//!
//! Registers are counted in words of 4 bytes. Every rule loads what it needs; no register keeps its value for the
//! next rule.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use portolan_model::{Family, LocalDetector, Settings};
use portolan_wire::nftables::expr::{
    Bitwise, Cmp, CmpOperation, Ct, CtKey, Dynset, DynsetOperation, Fib, FibFlags, FibResult, Immediate,
    Lookup, Masq, Meta, MetaKey, Nat, NatFlags, NatType, Numgen, NumgenType, Payload, PayloadBase, Reject,
    RejectType, Socket, SocketKey, Tproxy,
};
use portolan_wire::nftables::{Data, Expr, Register, Verdict};

use super::element::{Set, address_length};

/// `NF_CT_STATE` bit of a connection that has had packets in both directions (`nf_conntrack_common.h`).
const STATE_ESTABLISHED: u32 = 0x2;
/// `NF_CT_STATE` bit of a new connection (`nf_conntrack_common.h`).
const STATE_NEW: u32 = 0x8;
/// `IPS_DST_NAT` (`nf_conntrack_common.h`).
const STATUS_DNAT: u32 = 0x20;
/// `RTN_LOCAL` (`rtnetlink.h`).
const TYPE_LOCAL: u32 = 2;
/// ICMP port unreachable (RFC 792).
const ICMP_PORT_UNREACHABLE: u8 = 3;
/// `ICMPv6` port unreachable (RFC 4443).
const ICMPV6_PORT_UNREACHABLE: u8 = 4;

/// Returns the number of words in an address of the family.
#[expect(clippy::cast_possible_truncation, reason = "4 or 16 bytes")]
pub(super) const fn address_words(family: Family) -> u8 {
    (address_length(family) / 4) as u8
}

/// Returns the register that starts at a word.
pub(super) fn word(index: u8) -> Register {
    Register::word(index).unwrap_or(Register::R1)
}

/// One of the packet's two addresses.
#[derive(Debug, Clone, Copy)]
pub(super) enum Side {
    Source,
    Destination,
}

/// `ip saddr` or `ip daddr`, its first `length` bytes.
fn address_bytes(family: Family, side: Side, to: u8, length: u32) -> Expr {
    let offset = match (family, side) {
        (Family::Ipv4, Side::Source) => 12,
        (Family::Ipv4, Side::Destination) => 16,
        (Family::Ipv6, Side::Source) => 8,
        (Family::Ipv6, Side::Destination) => 24,
    };
    Expr::Payload(Payload { destination: word(to), base: PayloadBase::NETWORK, offset, length })
}

/// `ip saddr` or `ip daddr`.
pub(super) fn address(family: Family, side: Side, to: u8) -> Expr {
    address_bytes(family, side, to, address_length(family))
}

/// `meta l4proto . th dport` in two words.
pub(super) fn protocol_and_port(to: u8) -> [Expr; 2] {
    [
        meta(MetaKey::L4PROTO, to),
        Expr::Payload(Payload {
            destination: word(to + 1),
            base: PayloadBase::TRANSPORT,
            offset: 2,
            length: 2,
        }),
    ]
}

/// `ip daddr . meta l4proto . th dport` from word 0 on. Returns the number of words, too.
pub(super) fn service_key(family: Family) -> (Vec<Expr>, u8) {
    let words = address_words(family);
    let mut expressions = vec![address(family, Side::Destination, 0)];
    expressions.extend(protocol_and_port(words));
    (expressions, words + 2)
}

pub(super) fn meta(key: MetaKey, to: u8) -> Expr {
    Expr::Meta(Meta::Load { key, destination: word(to) })
}

pub(super) fn set_meta(key: MetaKey, from: u8) -> Expr {
    Expr::Meta(Meta::Set { key, source: word(from) })
}

/// `meta priority & mask`
pub(super) fn priority(mask: u32, to: u8) -> [Expr; 2] {
    [meta(MetaKey::PRIORITY, to), and_xor(to, mask, 0)]
}

/// `meta priority set none`
pub(super) fn reset_priority(scratch: u8) -> [Expr; 2] {
    [number(0, scratch), set_meta(MetaKey::PRIORITY, scratch)]
}

/// `meta priority PRIORITY`
pub(super) fn has_priority(priority: u32) -> [Expr; 2] {
    [meta(MetaKey::PRIORITY, 0), compare(0, CmpOperation::EQ, priority.to_ne_bytes())]
}

pub(super) fn number(value: u32, to: u8) -> Expr {
    Expr::Immediate(Immediate { destination: word(to), data: Data::Value(value.to_ne_bytes().to_vec()) })
}

pub(super) fn and_xor(register: u8, mask: u32, xor: u32) -> Expr {
    Expr::Bitwise(Bitwise::mask_xor(word(register), mask.to_ne_bytes(), xor.to_ne_bytes()))
}

/// `numgen random mod N offset M`
pub(super) fn random(modulus: u16, offset: u32, to: u8) -> Expr {
    Expr::Numgen(Numgen {
        destination: word(to),
        modulus: u32::from(modulus),
        kind: NumgenType::RANDOM,
        offset,
    })
}

/// `map @set`, with the data written to a register.
pub(super) fn map(set: Set, key: u8, to: u8) -> Expr {
    lookup(set, key, Some(word(to)), false)
}

/// `vmap @set`
pub(super) fn verdict_map(set: Set, key: u8) -> Expr {
    lookup(set, key, Some(Register::VERDICT), false)
}

/// `@set`
pub(super) fn member(set: Set, key: u8) -> Expr {
    lookup(set, key, None, false)
}

/// `!= @set`
pub(super) fn not_member(set: Set, key: u8) -> Expr {
    lookup(set, key, None, true)
}

fn lookup(set: Set, key: u8, destination: Option<Register>, inverted: bool) -> Expr {
    Expr::Lookup(Lookup { set: set.name().into(), set_id: None, source: word(key), destination, inverted })
}

/// `update @affinity { key timeout T : data }`
pub(super) fn update(set: Set, key: u8, data: u8, timeout_seconds: u32) -> Expr {
    dynset(set, DynsetOperation::UPDATE, key, data, u64::from(timeout_seconds) * 1000)
}

/// `delete @affinity { key : data }`. For a map the kernel requires data, but ignores it.
pub(super) fn delete(set: Set, key: u8, data: u8) -> Expr {
    dynset(set, DynsetOperation::DELETE, key, data, 0)
}

fn dynset(set: Set, operation: DynsetOperation, key: u8, data: u8, timeout: u64) -> Expr {
    Expr::Dynset(Dynset {
        set: set.name().into(),
        set_id: None,
        operation,
        key: word(key),
        data: Some(word(data)),
        timeout,
    })
}

/// `dnat to` the address and port in registers.
pub(super) fn dnat(family: Family, from: u8) -> Expr {
    Expr::Nat(Nat {
        kind: NatType::DNAT,
        family: wire_family(family),
        address_min: Some(word(from)),
        address_max: None,
        port_min: Some(word(from + address_words(family))),
        port_max: None,
        flags: NatFlags::default(),
    })
}

/// `masquerade fully-random`
pub(super) fn masquerade() -> Expr {
    Expr::Masq(Masq { flags: NatFlags::PROTO_RANDOM_FULLY, port_min: None, port_max: None })
}

/// `reject`: ICMP port unreachable.
pub(super) fn reject(family: Family) -> Expr {
    let code = match family {
        Family::Ipv4 => ICMP_PORT_UNREACHABLE,
        Family::Ipv6 => ICMPV6_PORT_UNREACHABLE,
    };
    Expr::Reject(Reject { kind: RejectType::ICMP_UNREACH, code })
}

/// `reject with tcp reset`. Drops a packet that is not TCP without a reply.
pub(super) const fn reset_connection() -> Expr {
    Expr::Reject(Reject { kind: RejectType::TCP_RST, code: 0 })
}

pub(super) fn jump(chain: &str) -> Expr {
    Expr::verdict(Verdict::Jump(chain.into()))
}

pub(super) fn goto(chain: impl Into<String>) -> Expr {
    Expr::verdict(Verdict::Goto(chain.into()))
}

pub(super) fn accept() -> Expr {
    Expr::verdict(Verdict::Accept)
}

pub(super) fn drop() -> Expr {
    Expr::verdict(Verdict::Drop)
}

/// `ct state established`
pub(super) fn state_established() -> Vec<Expr> {
    ct_flag(CtKey::STATE, STATE_ESTABLISHED)
}

/// `ct state and established == 0`
pub(super) fn state_not_established() -> [Expr; 3] {
    let load = Expr::Ct(Ct::Load { key: CtKey::STATE, destination: word(0), direction: None });
    [load, and_xor(0, STATE_ESTABLISHED, 0), compare(0, CmpOperation::EQ, 0_u32.to_ne_bytes())]
}

/// `ct state new`
pub(super) fn state_new() -> Vec<Expr> {
    ct_flag(CtKey::STATE, STATE_NEW)
}

/// `ct status dnat`: the destination was translated, by any program's rules.
pub(super) fn status_dnat() -> Vec<Expr> {
    ct_flag(CtKey::STATUS, STATUS_DNAT)
}

fn ct_flag(key: CtKey, flag: u32) -> Vec<Expr> {
    vec![Expr::Ct(Ct::Load { key, destination: word(0), direction: None }), and_xor(0, flag, 0), not_zero(0)]
}

/// `!= 0`
pub(super) fn not_zero(register: u8) -> Expr {
    compare(register, CmpOperation::NEQ, 0_u32.to_ne_bytes())
}

fn compare(register: u8, operation: CmpOperation, data: impl Into<Vec<u8>>) -> Expr {
    Expr::Cmp(Cmp { source: word(register), operation, data: data.into() })
}

/// `fib daddr type local` or `fib saddr type local`
pub(super) fn address_is_local(side: Side) -> [Expr; 2] {
    let flags = match side {
        Side::Source => FibFlags::SADDR,
        Side::Destination => FibFlags::DADDR,
    };
    [
        Expr::Fib(Fib { destination: word(0), result: FibResult::ADDRTYPE, flags }),
        compare(0, CmpOperation::EQ, TYPE_LOCAL.to_ne_bytes()),
    ]
}

/// `meta iif 0`: the packet was not received from an interface.
pub(super) fn no_input_interface() -> [Expr; 2] {
    [meta(MetaKey::IIF, 0), compare(0, CmpOperation::EQ, 0_u32.to_ne_bytes())]
}

/// `iif lo`: the packet comes back to this node through loopback, whose index is 1 in each network namespace.
pub(super) fn from_loopback() -> [Expr; 2] {
    [meta(MetaKey::IIF, 0), compare(0, CmpOperation::EQ, 1_u32.to_ne_bytes())]
}

/// `ip daddr != 127.0.0.0/8`, `ip6 daddr != ::1`
pub(super) fn not_to_loopback(family: Family) -> [Expr; 2] {
    match family {
        Family::Ipv4 => {
            [address_bytes(family, Side::Destination, 0, 1), compare(0, CmpOperation::NEQ, [127])]
        }
        Family::Ipv6 => [
            address(family, Side::Destination, 0),
            compare(0, CmpOperation::NEQ, std::net::Ipv6Addr::LOCALHOST.octets()),
        ],
    }
}

/// `ip saddr CIDR` or `ip saddr != CIDR`, or the same with `ip daddr`. If the prefix is a number of whole bytes, only
/// those are loaded. nft does the same, so a listing shows the CIDR.
#[expect(clippy::cast_possible_truncation, reason = "a prefix has at most 128 bits")]
pub(super) fn in_cidr(family: Family, side: Side, cidr: IpNet, is: bool) -> Vec<Expr> {
    let prefix = usize::from(cidr.prefix_len());
    let network = match cidr.network() {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let operation = if is { CmpOperation::EQ } else { CmpOperation::NEQ };
    if prefix > 0 && prefix.is_multiple_of(8) {
        let bytes = network.get(..prefix / 8).unwrap_or(&network).to_vec();
        return vec![address_bytes(family, side, 0, (prefix / 8) as u32), compare(0, operation, bytes)];
    }
    let mask = match cidr.netmask() {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let zeros = vec![0; mask.len()];
    vec![
        address(family, side, 0),
        Expr::Bitwise(Bitwise::mask_xor(word(0), mask, zeros)),
        compare(0, operation, network),
    ]
}

/// `<is a local pod>` or `<is not a local pod>`. `None` without a local detector.
pub(super) fn local_pod(settings: &Settings, is: bool) -> Option<Vec<Expr>> {
    let operation = if is { CmpOperation::EQ } else { CmpOperation::NEQ };
    let interface = |name: Vec<u8>| vec![meta(MetaKey::IIFNAME, 0), compare(0, operation, name)];
    match &settings.local_detector {
        LocalDetector::None => None,
        LocalDetector::Cidr(cidr) => Some(in_cidr(settings.family, Side::Source, *cidr, is)),
        LocalDetector::Interface(name) => Some(interface(whole_name(name))),
        LocalDetector::InterfacePrefix(prefix) => {
            let length = prefix.len().min(INTERFACE_NAME_MAX);
            Some(interface(prefix.as_bytes().get(..length).unwrap_or_default().to_vec()))
        }
    }
}

/// `IFNAMSIZ` less the final NUL (`if.h`).
const INTERFACE_NAME_MAX: usize = 15;

/// Returns a name with its final NUL, so that it does not match as a prefix.
fn whole_name(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().get(..name.len().min(INTERFACE_NAME_MAX)).unwrap_or_default().to_vec();
    bytes.resize(INTERFACE_NAME_MAX + 1, 0);
    bytes
}

/// `mark set mark or MARK`: requests masquerading in postrouting.
pub(super) fn mark_for_masquerade(settings: &Settings) -> [Expr; 3] {
    set_mark(mark(settings))
}

/// `mark set mark or MARK`
pub(super) fn set_mark(mark: u32) -> [Expr; 3] {
    [meta(MetaKey::MARK, 0), and_xor(0, !mark, mark), set_meta(MetaKey::MARK, 0)]
}

/// `ct mark set ct mark or MARK`
pub(super) fn set_connection_mark(mark: u32) -> [Expr; 3] {
    [
        Expr::Ct(Ct::Load { key: CtKey::MARK, destination: word(0), direction: None }),
        and_xor(0, !mark, mark),
        Expr::Ct(Ct::Set { key: CtKey::MARK, source: word(0), direction: None }),
    ]
}

/// `ct mark and MARK != 0`
pub(super) fn connection_is_marked(mark: u32) -> Vec<Expr> {
    ct_flag(CtKey::MARK, mark)
}

/// `ct direction original`
pub(super) fn direction_is_original() -> [Expr; 2] {
    direction_is(0)
}

/// `ct direction reply`
pub(super) fn direction_is_reply() -> [Expr; 2] {
    direction_is(1)
}

/// `enum ip_conntrack_dir` (`nf_conntrack_tuple_common.h`)
fn direction_is(direction: u8) -> [Expr; 2] {
    [
        Expr::Ct(Ct::Load { key: CtKey::DIRECTION, destination: word(0), direction: None }),
        compare(0, CmpOperation::EQ, [direction]),
    ]
}

/// `meta priority set PRIORITY`
pub(super) fn set_priority(priority: u32) -> [Expr; 2] {
    [number(priority, 0), set_meta(MetaKey::PRIORITY, 0)]
}

/// `mark and MARK != 0`
pub(super) fn is_marked(mark: u32) -> [Expr; 3] {
    [meta(MetaKey::MARK, 0), and_xor(0, mark, 0), not_zero(0)]
}

/// `mark and MARK != 0 mark set mark xor MARK`
pub(super) fn take_mark(settings: &Settings) -> [Expr; 6] {
    let [load, isolate, compare] = is_marked(mark(settings));
    [
        load,
        isolate,
        compare,
        meta(MetaKey::MARK, 0),
        and_xor(0, u32::MAX, mark(settings)),
        set_meta(MetaKey::MARK, 0),
    ]
}

/// `tproxy to ADDRESS:PORT`
pub(super) fn tproxy(family: Family, to: SocketAddr) -> [Expr; 3] {
    let address = match to.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let value =
        |data: Vec<u8>, to: u8| Expr::Immediate(Immediate { destination: word(to), data: Data::Value(data) });
    let port = address_words(family);
    [
        value(address, 0),
        value(to.port().to_be_bytes().to_vec(), port),
        Expr::Tproxy(Tproxy { family: wire_family(family), address: Some(word(0)), port: Some(word(port)) }),
    ]
}

/// `meta l4proto PROTOCOL`
pub(super) fn protocol_is(protocol: portolan_model::Protocol) -> [Expr; 2] {
    [meta(MetaKey::L4PROTO, 0), compare(0, CmpOperation::EQ, [protocol.number()])]
}

/// `socket transparent 1`
pub(super) fn socket_is_transparent() -> [Expr; 2] {
    socket_transparent(1)
}

/// `socket transparent 0`. Does not match if there is no socket.
pub(super) fn socket_is_not_transparent() -> [Expr; 2] {
    socket_transparent(0)
}

fn socket_transparent(value: u8) -> [Expr; 2] {
    [
        Expr::Socket(Socket { key: SocketKey::TRANSPARENT, destination: word(0) }),
        compare(0, CmpOperation::EQ, [value]),
    ]
}

fn mark(settings: &Settings) -> u32 {
    settings.masquerade_mark()
}

pub(super) const fn wire_family(family: Family) -> portolan_wire::nftables::Family {
    match family {
        Family::Ipv4 => portolan_wire::nftables::Family::IPV4,
        Family::Ipv6 => portolan_wire::nftables::Family::IPV6,
    }
}
