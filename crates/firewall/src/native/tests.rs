use portolan_wire::nftables::expr::{Counter, CtKey, Fib, FibFlags, FibResult, MetaKey, Reject, RejectType};

use super::super::{Packet, Ruleset};
use super::value::STATUS_DNAT;
use super::*;

fn read(family: wire::Family, expressions: Vec<Expr>) -> Rule {
    let read = read_all(family, expressions, &Sets::new());
    let [rule] = read.as_slice() else { panic!("{read:?}") };
    rule.clone()
}

fn read_all(family: wire::Family, expressions: Vec<Expr>, sets: &Sets) -> Vec<Rule> {
    let rule = wire::Rule { handle: Some(7), ..wire::Rule::new(family, "filter", "FORWARD", expressions) };
    rules(&rule, sets, &Interfaces::from([(1, "lo".to_owned())]))
}

fn lookup(set: &str, destination: Option<Register>) -> Expr {
    let set = set.to_owned();
    Expr::Lookup(Lookup { set, set_id: None, source: Register::R1, destination, inverted: false })
}

/// Returns a set with these elements.
fn set(name: &str, elements: Vec<Element>) -> Sets {
    Sets::from([((wire::Family::IPV4.0, "filter".to_owned(), name.to_owned()), elements)])
}

fn element(key: &[u8], verdict: Option<Verdict>, flags: u32) -> Element {
    let data = verdict.map(Data::Verdict);
    Element { data, flags, ..wire::ElementRef::key(key).to_owned() }
}

#[test]
fn sets_are_any_of_their_elements() {
    let states =
        set("__set0", vec![element(&2_u32.to_ne_bytes(), None, 0), element(&4_u32.to_ne_bytes(), None, 0)]);
    let of = |expressions: &[Expr], sets: &Sets| {
        let all = [expressions, &[lookup("__set0", None), Expr::verdict(Verdict::Accept)]].concat();
        read_all(wire::Family::IPV4, all, sets)[0].to_string()
    };
    assert_eq!(of(&[ct_load(CtKey::STATE)], &states), "{ ct established, ct related } accept");
    assert_eq!(of(&[ct_load(CtKey::STATE)], &Sets::new()), "ct state @__set0 accept");
    let tcp = [load(MetaKey::L4PROTO), cmp(CmpOperation::EQ, [6]), payload(PayloadBase::TRANSPORT, 2, 2)];
    let ports = set("__set0", vec![element(&80_u16.to_be_bytes(), None, 0)]);
    assert_eq!(of(&tcp, &ports), "tcp { dport 80 } accept");
    let range =
        set("__set0", vec![element(&80_u16.to_be_bytes(), None, 0), element(&90_u16.to_be_bytes(), None, 1)]);
    assert_eq!(of(&tcp, &range), "tcp dport @__set0 accept", "a range");
    let address = [payload(PayloadBase::NETWORK, 12, 4)];
    let pair = set("__set0", vec![element(&[10, 0, 0, 1, 0, 80, 0, 0], None, 0)]);
    assert_eq!(of(&address, &pair), "saddr @__set0 accept", "an address and a port");
}

#[test]
fn the_next_header_of_ipv6_is_the_protocol() {
    let next =
        vec![payload(PayloadBase::NETWORK, 6, 1), cmp(CmpOperation::EQ, [17]), Expr::verdict(Verdict::Drop)];
    assert_eq!(read_all(wire::Family::IPV6, next, &Sets::new())[0].to_string(), "udp drop");
}

#[test]
fn maps_of_verdicts_are_one_rule_for_each_element() {
    let map = set(
        "__map0",
        vec![
            element(&[], Some(Verdict::Drop), CATCH_ALL),
            element(&2_u32.to_ne_bytes(), Some(Verdict::Accept), 0),
            element(&8_u32.to_ne_bytes(), Some(Verdict::Jump("new".to_owned())), 0),
        ],
    );
    let expressions = vec![ct_load(CtKey::STATE), lookup("__map0", Some(Register::VERDICT))];
    let read = read_all(wire::Family::IPV4, expressions, &map);
    let text: Vec<String> = read.iter().map(ToString::to_string).collect();
    assert_eq!(text, ["ct established accept", "ct new jump new", "not { ct established, ct new } drop"]);
    assert!(read.iter().all(|rule| rule.id == RuleId::Handle(7)));
}

fn ip(expressions: Vec<Expr>) -> Rule {
    read(wire::Family::IPV4, expressions)
}

fn load(key: MetaKey) -> Expr {
    Expr::Meta(Meta::Load { key, destination: Register::R1 })
}

fn cmp(operation: CmpOperation, data: impl Into<Vec<u8>>) -> Expr {
    Expr::Cmp(Cmp { source: Register::R1, operation, data: data.into() })
}

fn payload(base: PayloadBase, offset: u32, length: u32) -> Expr {
    Expr::Payload(Payload { destination: Register::R1, base, offset, length })
}

fn ct_load(key: CtKey) -> Expr {
    Expr::Ct(Ct::Load { key, destination: Register::R1, direction: None })
}

fn mask(mask: impl Into<Vec<u8>>) -> Expr {
    let mask = mask.into();
    Expr::Bitwise(Bitwise::mask_xor(Register::R1, mask.clone(), vec![0; mask.len()]))
}

#[test]
fn names_of_interfaces_are_whole_or_prefixes() {
    let mut padded = b"eth0".to_vec();
    padded.resize(16, 0);
    let drop = Expr::verdict(Verdict::Drop);
    let whole = ip(vec![load(MetaKey::IIFNAME), cmp(CmpOperation::EQ, padded), drop.clone()]);
    assert_eq!(whole.to_string(), "iifname eth0 drop");
    let prefix = ip(vec![load(MetaKey::OIFNAME), cmp(CmpOperation::NEQ, *b"veth"), drop]);
    assert_eq!(prefix.to_string(), "not oifname veth* drop");
}

#[test]
fn addresses_have_a_mask_or_some_of_their_bytes() {
    let accept = Expr::verdict(Verdict::Accept);
    let masked = ip(vec![
        payload(PayloadBase::NETWORK, 12, 4),
        mask([255, 240, 0, 0]),
        cmp(CmpOperation::EQ, [10, 96, 0, 0]),
        accept.clone(),
    ]);
    assert_eq!(masked.to_string(), "saddr 10.96.0.0/12 accept");
    let bytes =
        ip(vec![payload(PayloadBase::NETWORK, 16, 2), cmp(CmpOperation::EQ, [10, 244]), accept.clone()]);
    assert_eq!(bytes.to_string(), "daddr 10.244.0.0/16 accept");
    let family = [load(MetaKey::NFPROTO), cmp(CmpOperation::EQ, [2])];
    let inet =
        [&family[..], &[payload(PayloadBase::NETWORK, 16, 4), cmp(CmpOperation::EQ, [10, 0, 0, 1]), accept]];
    let inet = read(wire::Family::INET, inet.concat());
    assert_eq!(inet.to_string(), "IPv4 daddr 10.0.0.1/32 accept");
    let unknown = read(
        wire::Family::INET,
        vec![payload(PayloadBase::NETWORK, 16, 4), cmp(CmpOperation::EQ, [10, 0, 0, 1])],
    );
    assert_eq!(unknown.to_string(), "network header continue", "the family is not known");
}

#[test]
fn ports_are_numbers_or_ranges() {
    let tcp = [load(MetaKey::L4PROTO), cmp(CmpOperation::EQ, [6]), payload(PayloadBase::TRANSPORT, 2, 2)];
    let one = [&tcp[..], &[cmp(CmpOperation::EQ, 80_u16.to_be_bytes())]].concat();
    assert_eq!(ip(one).to_string(), "tcp dport 80 continue");
    let range = Range {
        source: Register::R1,
        inverted: true,
        from: 30_000_u16.to_be_bytes().into(),
        to: 32_767_u16.to_be_bytes().into(),
    };
    assert_eq!(
        ip([&tcp[..], &[Expr::Range(range)]].concat()).to_string(),
        "tcp not dport 30000-32767 continue"
    );
    let ends = [cmp(CmpOperation::GTE, 1_u16.to_be_bytes()), cmp(CmpOperation::LTE, 9_u16.to_be_bytes())];
    assert_eq!(ip([&tcp[..], &ends].concat()).to_string(), "tcp dport 1-65535 dport 0-9 continue");
}

#[test]
fn states_are_any_of_several_bits() {
    let accept = Expr::verdict(Verdict::Accept);
    let not_zero = cmp(CmpOperation::NEQ, 0_u32.to_ne_bytes());
    let old = vec![ct_load(CtKey::STATE), mask(6_u32.to_ne_bytes()), not_zero.clone(), accept.clone()];
    assert_eq!(ip(old).to_string(), "ct established,related accept");
    let exact = vec![ct_load(CtKey::STATE), cmp(CmpOperation::EQ, 8_u32.to_ne_bytes()), accept.clone()];
    assert_eq!(ip(exact).to_string(), "ct new accept");
    let zero = cmp(CmpOperation::EQ, 0_u32.to_ne_bytes());
    let none = vec![ct_load(CtKey::STATE), mask(0x48_u32.to_ne_bytes()), zero, accept.clone()];
    assert_eq!(ip(none).to_string(), "not ct new,untracked accept");
    let translated = vec![ct_load(CtKey::STATUS), mask(STATUS_DNAT.to_ne_bytes()), not_zero, accept];
    let translated = ip(translated);
    assert_eq!(translated.to_string(), "ct dnat accept");
    let packet = Packet { translated: true, ..Packet::of(Family::Ipv4) };
    assert_eq!(translated.tests[0].answer(&packet), super::super::Answer::Yes);
}

#[test]
fn what_is_not_modelled_is_unknown_and_never_left_out() {
    let limit = Expr::Other { name: "limit".to_owned(), bytes: Vec::new() };
    assert_eq!(ip(vec![limit, Expr::verdict(Verdict::Drop)]).to_string(), "limit drop");
    assert_eq!(
        ip(vec![load(MetaKey::IIFNAME), lookup("s", None), Expr::verdict(Verdict::Drop)]).to_string(),
        "iifname @s drop"
    );
    assert_eq!(ip(vec![ct_load(CtKey::STATE), lookup("s", Some(Register::VERDICT))]).effect, Effect::Unknown);
    let odd = vec![
        payload(PayloadBase::NETWORK, 12, 4),
        mask([255, 0, 255, 0]),
        cmp(CmpOperation::EQ, [10, 0, 1, 0]),
    ];
    assert_eq!(ip(odd).to_string(), "saddr continue");
}

#[test]
fn interfaces_flags_and_types_of_addresses() {
    let of = |expressions: Vec<Expr>| ip(expressions).to_string();
    let index = |key, index: u32| of(vec![load(key), cmp(CmpOperation::EQ, index.to_ne_bytes())]);
    assert_eq!(index(MetaKey::IIF, 1), "iifname lo continue");
    assert_eq!(index(MetaKey::OIF, 1), "oifname lo continue");
    assert_eq!(index(MetaKey::IIF, 9), "iif continue", "an interface that is not there");
    let syn = |operation| {
        let (register, mask) = (Register::R1, vec![0x17]);
        let masked = Expr::Bitwise(Bitwise {
            source: register,
            destination: register,
            length: 1,
            operation: BitwiseOperation::MaskXor { mask, xor: vec![0] },
        });
        of(vec![payload(PayloadBase::TRANSPORT, 13, 1), masked, cmp(operation, [2])])
    };
    assert_eq!(syn(CmpOperation::EQ), "tcp flags 0x02/0x17 continue");
    assert_eq!(syn(CmpOperation::NEQ), "not tcp flags 0x02/0x17 continue");
    let fib = |flags, kind: u32| {
        let fib = Fib { destination: Register::R1, result: FibResult::ADDRTYPE, flags: FibFlags(flags) };
        of(vec![Expr::Fib(fib), cmp(CmpOperation::EQ, kind.to_ne_bytes())])
    };
    assert_eq!(fib(2, 2), "fib daddr type local continue");
    assert_eq!(fib(1, 2), "fib saddr type local continue");
    assert_eq!(fib(2, 3), "fib daddr type continue", "broadcast");
    assert_eq!(fib(2 | 8, 2), "fib continue", "of one interface");
}

#[test]
fn effects() {
    let reject = Expr::Reject(Reject { kind: RejectType::TCP_RST, code: 0 });
    assert_eq!(ip(vec![Expr::Counter(Counter::default()), reject]).effect, Effect::Reject);
    let jump = Expr::verdict(Verdict::Jump("x".to_owned()));
    assert_eq!(ip(vec![jump]).effect, Effect::Jump("x".to_owned()));
    let notrack = Expr::Other { name: "notrack".to_owned(), bytes: Vec::new() };
    assert_eq!(ip(vec![notrack]).effect, Effect::NoTrack);
    assert_eq!(ip(Vec::new()).effect, Effect::Continue);
}

/// A chain of devices sees packets that arrive at one of them, or at a bridge of which it is a port.
#[test]
fn chains_of_devices() {
    let chain = |family, hook, devices: &[&str]| {
        let mut chain = wire::Chain::regular(family, "edge", "in");
        let devices = devices.iter().map(|&name| name.to_owned()).collect();
        let (kind, policy) = (wire::ChainType::Filter, Policy::Drop);
        chain.base = Some(wire::BaseChain { kind, hook, priority: -500, policy, devices });
        chain
    };
    let of = |family, hook, devices: &[&str], input: &[&str]| {
        let accept =
            [load(MetaKey::PROTOCOL), cmp(CmpOperation::EQ, [0x86, 0xdd]), Expr::verdict(Verdict::Accept)];
        let rule = wire::Rule::new(family, "edge", "in", accept.to_vec());
        let ruleset = Ruleset::new(chains(
            vec![chain(family, hook, devices)],
            vec![rule],
            &Sets::new(),
            &Interfaces::new(),
        ));
        let names = Some(input.iter().map(|&name| name.to_owned()).collect());
        let packet = Packet { input: names, ..Packet::of(Family::Ipv4) };
        let base = ruleset.base_chains(Family::Ipv4, Hook::Ingress);
        let hits = base.iter().flat_map(|base| crate::walk(&ruleset, base, &packet)).collect::<Vec<_>>();
        hits.iter().map(|hit| (hit.rule.unwrap().to_string(), hit.is_certain())).collect::<Vec<_>>()
    };
    for (family, hook) in
        [(wire::Family::NETDEV, wire::Hook::DEVICE_INGRESS), (wire::Family::INET, wire::Hook::INGRESS)]
    {
        let dropped = |certain| vec![("policy drop".to_owned(), certain)];
        assert_eq!(of(family, hook, &["eth0"], &["eth0"]), dropped(true));
        assert_eq!(of(family, hook, &["eth0"], &["cni0"]), dropped(false), "eth0 may be a port of cni0");
        assert_eq!(of(family, hook, &["eth*"], &["eth1"]), dropped(true));
        assert_eq!(of(family, hook, &[], &["eth0"]), [], "without devices it sees nothing");
    }
    assert_eq!(of(wire::Family::NETDEV, wire::Hook::DEVICE_EGRESS, &["eth0"], &["eth0"]), [], "another hook");
}

#[test]
fn tables_of_iptables_are_recognised_by_their_chains() {
    let chain = |family, table: &str, name: &str, base: bool| {
        let mut chain = wire::Chain::regular(family, table, name);
        chain.base = base.then_some(wire::BaseChain {
            kind: wire::ChainType::Filter,
            hook: wire::Hook::FORWARD,
            priority: 0,
            policy: Policy::Drop,
            devices: Vec::new(),
        });
        chain
    };
    let all = vec![
        chain(wire::Family::IPV4, "filter", "FORWARD", true),
        chain(wire::Family::IPV4, "filter", "mine", false),
        chain(wire::Family::IPV6, "filter", "forward", true),
        chain(wire::Family::INET, "filter", "FORWARD", true),
        chain(wire::Family::BRIDGE, "filter", "FORWARD", true),
        // iptables creates a built-in chain when it first writes to it.
        chain(wire::Family::IPV4, "nat", "KUBE-SERVICES", false),
    ];
    let rules =
        vec![wire::Rule::new(wire::Family::IPV4, "filter", "mine", vec![Expr::verdict(Verdict::Drop)])];
    let read = chains(all, rules, &Sets::new(), &Interfaces::new());
    let programs: Vec<Program> = read.iter().map(|chain| chain.place.program).collect();
    let (nft, iptables) = (Program::Nft, Program::IptablesNft);
    assert_eq!(programs, [iptables, iptables, nft, nft, iptables]);
    assert_eq!(read[0].base, Some(Base { hook: Hook::Forward, priority: 0, nat: false, drops: true }));
    assert_eq!(read[1].rules.len(), 1);
}
