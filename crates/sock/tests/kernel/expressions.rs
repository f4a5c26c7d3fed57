//! Writes every object and every expression and reads it back.

use portolan_wire::nftables::expr::*;
use portolan_wire::nftables::*;

use super::{TABLE, base_chain, commit, event, in_namespace, list};

const MARK: DataType = DataType::MARK;

#[test]
fn ipv4_objects_read_back_as_written() {
    in_namespace(|socket| read_back(socket, Family::IPV4));
}

#[test]
fn ipv6_objects_read_back_as_written() {
    in_namespace(|socket| read_back(socket, Family::IPV6));
}

fn read_back(socket: &mut portolan_sock::Socket, family: Family) {
    let table = NftTable { userdata: UserData::comment("rules of a test"), ..NftTable::new(family, TABLE) };
    let (chains, sets, rules) = (chains(family), sets(family), rules(family));
    commit(socket, |transaction| {
        transaction.new_table(&table, IfExists::Fail);
        for chain in &chains {
            transaction.new_chain(chain, IfExists::Fail);
        }
        for set in &sets {
            transaction.new_set(set, IfExists::Fail);
        }
        for rule in &rules {
            transaction.append_rule(rule);
        }
    });

    let tables = list(
        socket,
        request::tables(family),
        event(|event| match event {
            NftablesEvent::NewTable(table) => Some(table.normalized()),
            _ => None,
        }),
    );
    assert_eq!(tables, [table.normalized()]);
    let found = list(
        socket,
        request::chains(family),
        event(|event| match event {
            NftablesEvent::NewChain(chain) => Some(chain.normalized()),
            _ => None,
        }),
    );
    assert_eq!(found, chains.into_iter().map(Chain::normalized).collect::<Vec<_>>());
    let found = list(
        socket,
        request::sets(family, TABLE),
        event(|event| match event {
            NftablesEvent::NewSet(set) => Some(set.normalized()),
            _ => None,
        }),
    );
    assert_eq!(found, sets.into_iter().map(Set::normalized).collect::<Vec<_>>());
    let found = list(
        socket,
        request::rules(family, TABLE, None),
        event(|event| match event {
            NftablesEvent::NewRule(rule) => Some(rule.normalized()),
            _ => None,
        }),
    );
    assert_eq!(found.len(), rules.len());
    // Rules are listed chain by chain.
    let mut rules = rules;
    let place =
        |rule: &Rule| ["dstnat", "srcnat", "input", "helper"].iter().position(|chain| *chain == rule.chain);
    rules.sort_by_key(place);
    for (found, written) in found.into_iter().zip(rules) {
        assert_eq!(found, written.normalized());
    }
}

fn chains(family: Family) -> Vec<Chain> {
    let helper = Chain { userdata: UserData::comment("a helper"), ..Chain::regular(family, TABLE, "helper") };
    vec![
        base_chain(family, "dstnat", ChainType::Nat, Hook::PREROUTING, -100),
        base_chain(family, "srcnat", ChainType::Nat, Hook::POSTROUTING, 100),
        base_chain(family, "input", ChainType::Filter, Hook::INPUT, 0),
        base_chain(family, "reroute", ChainType::Route, Hook::OUTPUT, -150),
        helper,
    ]
}

fn address(family: Family) -> (DataType, u32) {
    if family == Family::IPV4 { (DataType::IPV4_ADDR, 4) } else { (DataType::IPV6_ADDR, 16) }
}

fn sets(family: Family) -> Vec<Set> {
    let (kind, length) = address(family);
    let key = concatenated(&[kind, DataType::INET_PROTO, DataType::INET_SERVICE]);
    let set = |name: &str, id, key_type, key_length| Set {
        id,
        ..Set::new(family, TABLE, name, key_type, key_length)
    };
    let counter = vec![Expr::Counter(Counter::default())];
    let value = SetData::Value { kind: concatenated(&[kind, DataType::INET_SERVICE]), length: length + 4 };
    vec![
        Set {
            userdata: UserData::set(ByteOrder::Network, None, "addresses"),
            ..set("plain", 1, kind, length)
        },
        Set {
            data: Some(value),
            expressions: counter,
            userdata: UserData::set(ByteOrder::Network, Some(ByteOrder::Network), "endpoints"),
            ..set("endpoints", 2, key, length + 8)
        },
        Set { data: Some(SetData::Verdict), ..set("verdicts", 3, MARK, 4) },
        Set { flags: SetFlags::INTERVAL, size: Some(512), ..set("ranges", 4, kind, length) },
        Set {
            flags: SetFlags::INTERVAL.with(SetFlags::CONCAT),
            fields: vec![length, 2],
            ..set("concatenated-ranges", 5, concatenated(&[kind, DataType::INET_SERVICE]), length + 4)
        },
        Set {
            flags: SetFlags::TIMEOUT.with(SetFlags::EVAL),
            data: Some(SetData::Value { kind: MARK, length: 4 }),
            timeout: Some(10_800_000),
            gc_interval: Some(60_000),
            size: Some(65_536),
            ..set("affinity", 6, kind, length)
        },
    ]
}

fn load(destination: Register, offset: u32, length: u32) -> Expr {
    Expr::Payload(Payload { destination, base: PayloadBase::NETWORK, offset, length })
}

fn rules(family: Family) -> Vec<Rule> {
    let rule = |chain: &str, expressions| Rule::new(family, TABLE, chain, expressions);
    let commented = Rule { userdata: UserData::comment("with a comment"), ..rule("helper", loads(family)) };
    vec![
        commented,
        rule("helper", marks()),
        rule("helper", comparisons()),
        rule("helper", lookups(family)),
        rule("helper", affinity(family)),
        rule("dstnat", vec![Expr::verdict(Verdict::Goto("helper".into()))]),
        rule("dstnat", destination_nat(family)),
        rule("dstnat", vec![Expr::Redir(Redir::default())]),
        rule("srcnat", vec![Expr::Masq(Masq { flags: NatFlags::PROTO_RANDOM_FULLY, ..Masq::default() })]),
        rule("srcnat", masquerade_ports()),
        rule("srcnat", source_nat(family)),
        rule("input", refusals(family)),
        rule("input", logs()),
    ]
}

fn word(index: u8) -> Register {
    Register::word(index).unwrap()
}

fn loads(family: Family) -> Vec<Expr> {
    let (_, length) = address(family);
    let offset = if family == Family::IPV4 { 16 } else { 24 };
    let after = Register::R1.after(u8::try_from(length).unwrap()).unwrap();
    vec![
        load(Register::R1, offset, length),
        Expr::Meta(Meta::Load { key: MetaKey::L4PROTO, destination: after }),
        Expr::Payload(Payload {
            destination: after.after(1).unwrap(),
            base: PayloadBase::TRANSPORT,
            offset: 2,
            length: 2,
        }),
        Expr::Meta(Meta::Load { key: MetaKey::IIFNAME, destination: Register::R3 }),
        Expr::Fib(Fib { destination: word(8), result: FibResult::ADDRTYPE, flags: FibFlags::SADDR }),
        Expr::Fib(Fib { destination: word(15), result: FibResult::ADDRTYPE, flags: FibFlags::DADDR }),
        Expr::Numgen(Numgen { destination: word(9), modulus: 7, kind: NumgenType::RANDOM, offset: 3 }),
        Expr::Numgen(Numgen { destination: word(4), modulus: 2, kind: NumgenType::INCREMENTAL, offset: 0 }),
        Expr::Ct(Ct::Load { key: CtKey::STATE, destination: word(5), direction: None }),
        Expr::Ct(Ct::Load { key: CtKey::PROTO_DST, destination: word(6), direction: Some(0) }),
        Expr::Counter(Counter::default()),
    ]
}

fn marks() -> Vec<Expr> {
    let mark = 0x4000_u32.to_ne_bytes();
    let shift = |operation| Bitwise { source: Register::R1, destination: word(5), length: 4, operation };
    vec![
        Expr::Meta(Meta::Load { key: MetaKey::MARK, destination: Register::R1 }),
        Expr::Bitwise(Bitwise::mask_xor(Register::R1, (!0x4000_u32).to_ne_bytes(), mark)),
        Expr::Meta(Meta::Set { key: MetaKey::MARK, source: Register::R1 }),
        Expr::Ct(Ct::Set { key: CtKey::MARK, source: Register::R1, direction: None }),
        Expr::Bitwise(shift(BitwiseOperation::ShiftLeft(3))),
        Expr::Bitwise(shift(BitwiseOperation::ShiftRight(17))),
        Expr::Immediate(Immediate { destination: word(7), data: Data::Value(vec![1, 2, 3, 4]) }),
        Expr::verdict(Verdict::Return),
    ]
}

fn comparisons() -> Vec<Expr> {
    let cmp =
        |operation, data: &[u8]| Expr::Cmp(Cmp { source: Register::R1, operation, data: data.to_vec() });
    let range = |inverted| Range { source: Register::R1, inverted, from: vec![0, 80], to: vec![0, 90] };
    vec![
        load(Register::R1, 0, 16),
        cmp(CmpOperation::EQ, &[1]),
        cmp(CmpOperation::NEQ, &[1, 2]),
        cmp(CmpOperation::LT, &[1, 2, 3]),
        cmp(CmpOperation::LTE, &[1, 2, 3, 4]),
        cmp(CmpOperation::GT, &[1, 2, 3, 4, 5, 6, 7, 8]),
        cmp(CmpOperation::GTE, &[9; 16]),
        Expr::Range(range(false)),
        Expr::Range(range(true)),
        Expr::Bitwise(Bitwise::mask_xor(Register::R1, [0xff; 16], [0; 16])),
    ]
}

fn lookups(family: Family) -> Vec<Expr> {
    let (_, length) = address(family);
    let lookup = |set: &str, set_id, destination, inverted| {
        Expr::Lookup(Lookup { set: set.into(), set_id, source: Register::R1, destination, inverted })
    };
    vec![
        load(Register::R1, 0, length),
        lookup("plain", None, None, false),
        lookup("ranges", Some(4), None, true),
        load(Register::R2, 0, 8),
        load(Register::R1, 0, 16),
        lookup("endpoints", None, Some(Register::R3), false),
        lookup("verdicts", None, Some(Register::VERDICT), false),
    ]
}

fn affinity(family: Family) -> Vec<Expr> {
    let (_, length) = address(family);
    let dynset = |operation, timeout| {
        let (set, data) = ("affinity".into(), Some(Register::R2));
        Expr::Dynset(Dynset { set, set_id: None, operation, key: Register::R1, data, timeout })
    };
    vec![
        load(Register::R1, 0, length),
        Expr::Meta(Meta::Load { key: MetaKey::MARK, destination: Register::R2 }),
        dynset(DynsetOperation::UPDATE, 0),
        dynset(DynsetOperation::ADD, 3_600_000),
    ]
}

fn destination_nat(family: Family) -> Vec<Expr> {
    let (_, length) = address(family);
    let nat = |port_min, address_max, flags| Nat {
        kind: NatType::DNAT,
        family,
        address_min: Some(Register::R1),
        address_max,
        port_min,
        port_max: None,
        flags,
    };
    vec![
        load(Register::R1, 0, length),
        Expr::Immediate(Immediate { destination: Register::R2, data: Data::Value(vec![0x1f, 0x90]) }),
        Expr::Nat(nat(Some(Register::R2), None, NatFlags::default())),
        Expr::Nat(nat(None, Some(Register::R1), NatFlags::PERSISTENT)),
    ]
}

fn masquerade_ports() -> Vec<Expr> {
    vec![
        Expr::Immediate(Immediate { destination: Register::R1, data: Data::Value(vec![0x1f, 0x90]) }),
        Expr::Masq(Masq { port_min: Some(Register::R1), ..Masq::default() }),
    ]
}

fn source_nat(family: Family) -> Vec<Expr> {
    let (_, length) = address(family);
    let flags = NatFlags::PROTO_RANDOM;
    let address_min = Some(Register::R1);
    vec![
        load(Register::R1, 0, length),
        Expr::Nat(Nat {
            kind: NatType::SNAT,
            family,
            address_min,
            address_max: None,
            port_min: None,
            port_max: None,
            flags,
        }),
    ]
}

fn refusals(family: Family) -> Vec<Expr> {
    let code = if family == Family::IPV4 { 3 } else { 4 };
    vec![
        Expr::Meta(Meta::Load { key: MetaKey::L4PROTO, destination: Register::R1 }),
        Expr::Cmp(Cmp { source: Register::R1, operation: CmpOperation::EQ, data: vec![6] }),
        Expr::Reject(Reject { kind: RejectType::TCP_RST, code: 0 }),
        Expr::Reject(Reject { kind: RejectType::ICMP_UNREACH, code }),
    ]
}

fn logs() -> Vec<Expr> {
    vec![
        Expr::Log(Log::default()),
        Expr::Log(Log { prefix: Some("test: ".into()), level: Some(6), flags: Some(0), ..Log::default() }),
        Expr::Log(Log {
            group: Some(3),
            snapshot_length: Some(64),
            queue_threshold: Some(2),
            ..Log::default()
        }),
        Expr::verdict(Verdict::Drop),
    ]
}
