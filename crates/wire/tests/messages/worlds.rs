//! Generators of all objects that can be written.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use portolan_wire::conntrack::{Transport, Tuple};
use portolan_wire::nftables::expr::*;
use portolan_wire::nftables::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9/_.-]{1,40}"
}

fn family() -> impl Strategy<Value = Family> {
    any::<u8>().prop_map(Family)
}

fn userdata() -> impl Strategy<Value = UserData> {
    prop_oneof![
        Just(UserData::empty()),
        ".{0,60}".prop_map(|text| UserData::comment(&text)),
        vec(any::<u8>(), 1..200).prop_map(|bytes| UserData::from_bytes(&bytes)),
    ]
}

fn register() -> impl Strategy<Value = Register> {
    (0..16_u8).prop_map(|word| Register::word(word).unwrap())
}

fn verdict() -> impl Strategy<Value = Verdict> {
    let plain = [Verdict::Accept, Verdict::Drop, Verdict::Continue, Verdict::Break, Verdict::Return];
    prop_oneof![
        prop::sample::select(plain.to_vec()),
        name().prop_map(Verdict::Jump),
        name().prop_map(Verdict::Goto),
    ]
}

fn data() -> impl Strategy<Value = Data> {
    prop_oneof![vec(any::<u8>(), 1..64).prop_map(Data::Value), verdict().prop_map(Data::Verdict)]
}

pub(crate) fn arbitrary_table() -> impl Strategy<Value = NftTable> {
    (family(), name(), any::<u32>(), userdata()).prop_map(|(family, name, flags, userdata)| NftTable {
        flags,
        userdata,
        ..NftTable::new(family, name)
    })
}

pub(crate) fn arbitrary_chain() -> impl Strategy<Value = Chain> {
    let kind = prop_oneof![
        Just(ChainType::Filter),
        Just(ChainType::Nat),
        Just(ChainType::Route),
        Just(ChainType::Other("new".into()))
    ];
    let policy = prop_oneof![Just(Policy::Accept), Just(Policy::Drop)];
    let base = (kind, any::<u32>(), any::<i32>(), policy).prop_map(|(kind, hook, priority, policy)| {
        let (hook, devices) = (Hook(hook), Vec::new());
        BaseChain { kind, hook, priority, policy, devices }
    });
    (family(), name(), name(), option::of(base), userdata()).prop_map(
        |(family, table, name, base, userdata)| Chain {
            base,
            userdata,
            ..Chain::regular(family, table, name)
        },
    )
}

pub(crate) fn arbitrary_rule() -> impl Strategy<Value = Rule> {
    let place = (option::of(any::<u64>()), option::of(any::<u64>()));
    (family(), name(), name(), vec(expression(), 0..12), userdata(), place).prop_map(
        |(family, table, chain, expressions, userdata, (handle, position))| Rule {
            userdata,
            handle,
            position,
            ..Rule::new(family, table, chain, expressions)
        },
    )
}

pub(crate) fn arbitrary_set() -> impl Strategy<Value = Set> {
    let value = (any::<u32>(), any::<u32>()).prop_filter_map("that is the verdict's", |(kind, length)| {
        (DataType(kind) != DataType::VERDICT).then_some(SetData::Value { kind: DataType(kind), length })
    });
    let data = option::of(prop_oneof![Just(SetData::Verdict), value]);
    let key = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>());
    let times = (option::of(any::<u64>()), option::of(any::<u32>()), option::of(any::<u32>()));
    let lists = (vec(any::<u32>(), 0..5), vec(expression(), 0..3));
    (family(), name(), name(), key, data, times, lists, userdata()).prop_map(
        |(
            family,
            table,
            name,
            (id, flags, key_type, key_length),
            data,
            times,
            (fields, expressions),
            userdata,
        )| {
            Set {
                id,
                // The kernel's map flag follows from the data.
                flags: SetFlags(flags & !8),
                data,
                timeout: times.0,
                gc_interval: times.1,
                size: times.2,
                fields,
                expressions,
                userdata,
                ..Set::new(family, table, name, DataType(key_type), key_length)
            }
        },
    )
}

pub(crate) fn arbitrary_element() -> impl Strategy<Value = Element> {
    let times = (option::of(any::<u64>()), option::of(any::<u64>()));
    let key = (vec(any::<u8>(), 1..64), option::of(vec(any::<u8>(), 1..64)));
    (key, option::of(data()), 0..2_u32, times, vec(any::<u8>(), 0..100)).prop_map(
        |((key, key_end), data, flags, (timeout, expiration), userdata)| Element {
            key,
            key_end,
            data,
            flags,
            timeout,
            expiration,
            userdata,
            counter: None,
        },
    )
}

pub(crate) fn arbitrary_tuple() -> impl Strategy<Value = Tuple> {
    let ports = (any::<u16>(), any::<u16>())
        .prop_map(|(source, destination)| Transport::Ports { source, destination });
    let icmp = (any::<u16>(), any::<u8>(), any::<u8>()).prop_map(|(id, kind, code)| Transport::Icmp {
        id,
        kind,
        code,
    });
    let transport = prop_oneof![ports, icmp, Just(Transport::Other)];
    let v4 = (any::<Ipv4Addr>(), any::<Ipv4Addr>()).prop_map(|(one, two)| (IpAddr::V4(one), IpAddr::V4(two)));
    let v6 = (any::<Ipv6Addr>(), any::<Ipv6Addr>()).prop_map(|(one, two)| (IpAddr::V6(one), IpAddr::V6(two)));
    (prop_oneof![v4, v6], any::<u8>(), transport).prop_map(|((source, destination), protocol, transport)| {
        Tuple { source, destination, protocol, transport }
    })
}

fn expression() -> impl Strategy<Value = Expr> {
    prop_oneof![loads(), comparisons(), sets(), translations(), others()]
}

fn loads() -> impl Strategy<Value = Expr> {
    let payload = (register(), any::<[u32; 3]>()).prop_map(|(destination, [base, offset, length])| {
        Expr::Payload(Payload { destination, base: PayloadBase(base), offset, length })
    });
    let meta =
        (any::<bool>(), register(), any::<u32>().prop_map(MetaKey)).prop_map(|(set, register, key)| {
            let load = Meta::Load { key, destination: register };
            Expr::Meta(if set { Meta::Set { key, source: register } } else { load })
        });
    let ct = (any::<bool>(), register(), any::<u32>().prop_map(CtKey), option::of(any::<u8>())).prop_map(
        |(set, register, key, direction)| {
            let load = Ct::Load { key, destination: register, direction };
            Expr::Ct(if set { Ct::Set { key, source: register, direction } } else { load })
        },
    );
    let fib = (register(), any::<[u32; 2]>()).prop_map(|(destination, [result, flags])| {
        Expr::Fib(Fib { destination, result: FibResult(result), flags: FibFlags(flags) })
    });
    let numgen = (register(), any::<[u32; 3]>()).prop_map(|(destination, [modulus, kind, offset])| {
        Expr::Numgen(Numgen { destination, modulus, kind: NumgenType(kind), offset })
    });
    let immediate = (prop_oneof![register(), Just(Register::VERDICT)], data())
        .prop_map(|(destination, data)| Expr::Immediate(Immediate { destination, data }));
    prop_oneof![payload, meta, ct, fib, numgen, immediate]
}

fn comparisons() -> impl Strategy<Value = Expr> {
    let value = || vec(any::<u8>(), 1..17);
    let cmp = (register(), any::<u32>(), value()).prop_map(|(source, operation, data)| {
        Expr::Cmp(Cmp { source, operation: CmpOperation(operation), data })
    });
    let range = (register(), any::<bool>(), value(), value())
        .prop_map(|(source, inverted, from, to)| Expr::Range(Range { source, inverted, from, to }));
    let operation = prop_oneof![
        (value(), value()).prop_map(|(mask, xor)| BitwiseOperation::MaskXor { mask, xor }),
        any::<u32>().prop_map(BitwiseOperation::ShiftLeft),
        any::<u32>().prop_map(BitwiseOperation::ShiftRight),
    ];
    let bitwise = (register(), register(), any::<u32>(), operation).prop_map(
        |(source, destination, length, operation)| {
            Expr::Bitwise(Bitwise { source, destination, length, operation })
        },
    );
    prop_oneof![cmp, range, bitwise]
}

fn sets() -> impl Strategy<Value = Expr> {
    let id = || option::of(any::<u32>());
    let destination = option::of(prop_oneof![register(), Just(Register::VERDICT)]);
    let lookup = (name(), id(), register(), destination, any::<bool>()).prop_map(
        |(set, set_id, source, destination, inverted)| {
            Expr::Lookup(Lookup { set, set_id, source, destination, inverted })
        },
    );
    let dynset = (name(), id(), any::<u32>(), register(), option::of(register()), any::<u64>()).prop_map(
        |(set, set_id, operation, key, data, timeout)| {
            let operation = DynsetOperation(operation);
            Expr::Dynset(Dynset { set, set_id, operation, key, data, timeout })
        },
    );
    prop_oneof![lookup, dynset]
}

fn translations() -> impl Strategy<Value = Expr> {
    let registers = || (option::of(register()), option::of(register()));
    let flags = || any::<u32>().prop_map(NatFlags);
    let nat = (any::<u32>(), family(), registers(), registers(), flags()).prop_map(
        |(kind, family, (address_min, address_max), (port_min, port_max), flags)| {
            Expr::Nat(Nat {
                kind: NatType(kind),
                family,
                address_min,
                address_max,
                port_min,
                port_max,
                flags,
            })
        },
    );
    let masq = (registers(), flags())
        .prop_map(|((port_min, port_max), flags)| Expr::Masq(Masq { flags, port_min, port_max }));
    let redir = (registers(), flags())
        .prop_map(|((port_min, port_max), flags)| Expr::Redir(Redir { port_min, port_max, flags }));
    let tproxy = (family(), registers())
        .prop_map(|(family, (address, port))| Expr::Tproxy(Tproxy { family, address, port }));
    let socket = (any::<u32>(), register())
        .prop_map(|(key, destination)| Expr::Socket(Socket { key: SocketKey(key), destination }));
    prop_oneof![nat, masq, redir, tproxy, socket]
}

fn others() -> impl Strategy<Value = Expr> {
    let code = |kind, code| if kind == RejectType::TCP_RST { 0 } else { code };
    let reject = (any::<u32>().prop_map(RejectType), any::<u8>())
        .prop_map(move |(kind, number)| Expr::Reject(Reject { kind, code: code(kind, number) }));
    let counter = any::<[u64; 2]>().prop_map(|[bytes, packets]| Expr::Counter(Counter { bytes, packets }));
    let number = || option::of(any::<u32>());
    let short = || option::of(any::<u16>());
    let log = (option::of(name()), short(), number(), short(), number(), number()).prop_map(
        |(prefix, group, snapshot_length, queue_threshold, level, flags)| {
            Expr::Log(Log { prefix, group, snapshot_length, queue_threshold, level, flags })
        },
    );
    let other = (name().prop_map(|name| format!("new-{name}")), vec(any::<u8>(), 0..60))
        .prop_map(|(name, bytes)| Expr::Other { name, bytes });
    prop_oneof![reject, counter, log, other]
}
