//! Reads chains and rules of nftables, as netlink lists them.
//!
//! A rule loads values into registers and compares them. The reader remembers what each register holds, and makes one
//! [`Test`] of each comparison. A map from values to verdicts becomes one rule for each of its elements. What it does not know becomes [`Test::Unknown`], or [`Effect::Unknown`].

mod bytes;
mod value;

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use portolan_model::Family;
use portolan_wire::nftables::expr::{
    Bitwise, BitwiseOperation, Cmp, CmpOperation, Ct, Immediate, Lookup, Meta, NatType, Payload, PayloadBase,
    Range,
};
use portolan_wire::nftables::{self as wire, CATCH_ALL, Data, Element, Expr, Policy, Register, Verdict};

use bytes::{Object, name, network, number, object, port};
use value::{LOCAL, Value, bits, ct, fib, masked, meta, state, status};

use super::{Base, Chain, Effect, Hook, Program, Rule, RuleId, TableFamily, TableId, Test, compat};

/// The tables of iptables.
const TABLES_OF_IPTABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
/// The chains of iptables that the kernel calls.
const CHAINS_OF_IPTABLES: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// The elements of small anonymous sets and maps, by family, table and name.
pub type Sets = HashMap<(u8, String, String), Vec<Element>>;

/// The names of interfaces, by their indexes.
pub type Interfaces = HashMap<u32, String>;

/// Makes chains of a list of chains and of rules in their order. A set that is not in `sets` has unknown elements. Tables of families without Services (ARP, bridges)
/// are left out.
pub fn chains(
    chains: Vec<wire::Chain>,
    rules: Vec<wire::Rule>,
    sets: &Sets,
    interfaces: &Interfaces,
) -> Vec<Chain> {
    let mut own_names: HashSet<(u8, String)> = HashSet::new();
    for chain in chains.iter().filter(|chain| chain.base.is_some()) {
        if !CHAINS_OF_IPTABLES.contains(&chain.name.as_str()) {
            own_names.insert((chain.family.0, chain.table.clone()));
        }
    }
    let place = |family: wire::Family, table: &str| {
        let is_of_both = [wire::Family::INET, wire::Family::NETDEV].contains(&family);
        let is_named = TABLES_OF_IPTABLES.contains(&table) && !is_of_both;
        let is_iptables = is_named && !own_names.contains(&(family.0, table.to_owned()));
        let program = if is_iptables { Program::IptablesNft } else { Program::Nft };
        Some(TableId { program, family: table_family(family)?, table: table.to_owned() })
    };
    let mut of_chain: HashMap<(TableId, String), Vec<Rule>> = HashMap::new();
    for rule in rules {
        let Some(place) = place(rule.family, &rule.table) else { continue };
        of_chain.entry((place, rule.chain.clone())).or_default().extend(self::rules(&rule, sets, interfaces));
    }
    let read = chains.into_iter().filter_map(|chain| {
        let place = place(chain.family, &chain.table)?;
        let rules = of_chain.remove(&(place.clone(), chain.name.clone())).unwrap_or_default();
        let base = chain.base.as_ref().and_then(|base| self::base(place.family, base));
        let read = Chain { place, base, name: chain.name, rules };
        Some(match &chain.base {
            Some(of_kernel) => of_devices(read, &of_kernel.devices),
            None => read,
        })
    });
    read.collect()
}

fn table_family(family: wire::Family) -> Option<TableFamily> {
    match family {
        wire::Family::INET => Some(TableFamily::Inet),
        wire::Family::IPV4 => Some(TableFamily::Ip),
        wire::Family::IPV6 => Some(TableFamily::Ip6),
        wire::Family::NETDEV => Some(TableFamily::Netdev),
        _ => None,
    }
}

fn base(family: TableFamily, base: &wire::BaseChain) -> Option<Base> {
    let hook = match base.hook {
        wire::Hook::DEVICE_INGRESS if family == TableFamily::Netdev => Hook::Ingress,
        wire::Hook::DEVICE_EGRESS if family == TableFamily::Netdev => Hook::Egress,
        wire::Hook::INGRESS => Hook::Ingress,
        wire::Hook::PREROUTING => Hook::Prerouting,
        wire::Hook::INPUT => Hook::Input,
        wire::Hook::FORWARD => Hook::Forward,
        wire::Hook::OUTPUT => Hook::Output,
        wire::Hook::POSTROUTING => Hook::Postrouting,
        _ => return None,
    };
    let nat = base.kind == wire::ChainType::Nat;
    Some(Base { hook, priority: base.priority, nat, drops: base.policy == Policy::Drop })
}

/// Makes the devices of a chain, if it is at a hook of devices, a condition of each of its rules, and of its policy.
fn of_devices(mut chain: Chain, devices: &[String]) -> Chain {
    let Some(base) = &mut chain.base else { return chain };
    let device: fn(String) -> Test = match base.hook {
        Hook::Ingress => Test::Input,
        Hook::Egress => Test::Output,
        _ => return chain,
    };
    // The device may be a part of the interface of the packet, such as a port of a bridge.
    let either = |name: &String| [device(name.clone()), Test::Unknown(format!("through {name}"))];
    let condition = Test::Any(devices.iter().flat_map(either).collect());
    if std::mem::take(&mut base.drops) {
        let id = RuleId::Line("policy drop".to_owned());
        chain.rules.push(Rule { tests: Vec::new(), effect: Effect::Drop, id });
    }
    for rule in &mut chain.rules {
        rule.tests.insert(0, condition.clone());
    }
    chain
}

/// Reads a rule: several, if it has a map of verdicts.
pub fn rules(rule: &wire::Rule, sets: &Sets, interfaces: &Interfaces) -> Vec<Rule> {
    let family = match rule.family {
        wire::Family::IPV4 => Some(Family::Ipv4),
        wire::Family::IPV6 => Some(Family::Ipv6),
        _ => None,
    };
    let mut reader = Reader { family, ..Reader::new(rule, sets, interfaces) };
    for expression in &rule.expressions {
        reader.expression(expression);
    }
    let Reader { tests, effect, branches, .. } = reader;
    let id = || RuleId::Handle(rule.handle.unwrap_or(0));
    if branches.is_empty() {
        return vec![Rule { tests, effect: effect.unwrap_or(Effect::Continue), id: id() }];
    }
    let branch = |(test, effect)| Rule { tests: [&tests[..], &[test]].concat(), effect, id: id() };
    branches.into_iter().map(branch).collect()
}

#[derive(Debug)]
struct Reader<'a> {
    rule: &'a wire::Rule,
    sets: &'a Sets,
    interfaces: &'a Interfaces,
    /// The family of the packet, if the table or an earlier condition tells.
    family: Option<Family>,
    registers: HashMap<Register, Value>,
    tests: Vec<Test>,
    effect: Option<Effect>,
    /// The elements of a map of verdicts.
    branches: Vec<(Test, Effect)>,
}

impl<'a> Reader<'a> {
    fn new(rule: &'a wire::Rule, sets: &'a Sets, interfaces: &'a Interfaces) -> Self {
        let (registers, tests, branches) = (HashMap::new(), Vec::new(), Vec::new());
        Self { rule, sets, interfaces, family: None, registers, tests, effect: None, branches }
    }

    fn expression(&mut self, expression: &Expr) {
        match expression {
            Expr::Meta(Meta::Load { key, destination }) => self.load(*destination, meta(*key)),
            Expr::Ct(Ct::Load { key, destination, .. }) => self.load(*destination, ct(*key)),
            Expr::Payload(payload) => self.load(payload.destination, self.payload(payload)),
            Expr::Fib(fib) => self.load(fib.destination, self::fib(fib)),
            Expr::Numgen(numgen) => self.load(numgen.destination, Value::Other("numgen")),
            Expr::Socket(socket) => {
                self.load(socket.destination, Value::Other("socket"));
                self.unknown("socket");
            }
            Expr::Bitwise(bitwise) => self.bitwise(bitwise),
            Expr::Cmp(cmp) => self.compare(cmp),
            Expr::Range(range) => self.range(range),
            Expr::Lookup(lookup) => self.lookup(lookup),
            Expr::Dynset(dynset) => self.unknown(&format!("@{}", dynset.set)),
            Expr::Immediate(immediate) => self.immediate(immediate),
            Expr::Nat(nat) if nat.kind == NatType::DNAT => self.decide(Effect::Redirect),
            Expr::Redir(_) | Expr::Tproxy(_) => self.decide(Effect::Redirect),
            Expr::Nat(_) | Expr::Masq(_) => self.decide(Effect::Accept),
            Expr::Reject(_) => self.decide(Effect::Reject),
            Expr::Meta(Meta::Set { .. }) | Expr::Ct(Ct::Set { .. }) | Expr::Counter(_) | Expr::Log(_) => {}
            Expr::Other { name, bytes } => self.other(name, bytes),
        }
    }

    fn other(&mut self, name: &str, bytes: &[u8]) {
        match name {
            "match" => self.tests.extend(compat::tests(bytes)),
            "target" => {
                if let Some(effect) = compat::effect(bytes) {
                    self.decide(effect);
                }
            }
            "notrack" => self.decide(Effect::NoTrack),
            "queue" | "fwd" | "synproxy" => self.decide(Effect::Unknown),
            "objref" => match object(bytes) {
                Object::DecidesNothing => {}
                Object::Condition(name) => self.unknown(&name),
                Object::Decides => self.decide(Effect::Unknown),
            },
            // A change of the packet decides nothing.
            "last" | "dup" | "payload" | "flow_offload" => {}
            // Others load a value, which is compared later, or end the rule by themselves.
            name => self.unknown(name),
        }
    }

    fn load(&mut self, register: Register, value: Value) {
        self.registers.insert(register, value);
    }

    fn value(&self, register: Register) -> Value {
        self.registers.get(&register).cloned().unwrap_or(Value::Other("a value"))
    }

    fn test(&mut self, test: Test) {
        self.tests.push(test);
    }

    fn unknown(&mut self, text: &str) {
        self.test(Test::Unknown(text.to_owned()));
    }

    /// Sets the effect. The first one counts: nothing of a rule is evaluated after it.
    fn decide(&mut self, effect: Effect) {
        self.effect.get_or_insert(effect);
    }

    fn payload(&self, payload: &Payload) -> Value {
        let Payload { base, offset, length, .. } = *payload;
        let bits = u8::try_from(length.saturating_mul(8)).unwrap_or(u8::MAX);
        if base == PayloadBase::TRANSPORT {
            return match (offset, length) {
                (2, 2) => Value::Port,
                (13, 1) => Value::TcpFlags(u8::MAX),
                _ => Value::Other("transport header"),
            };
        }
        if base != PayloadBase::NETWORK {
            return Value::Other("packet");
        }
        match (self.family, offset, length) {
            (Some(Family::Ipv4), 12, 1..=4) | (Some(Family::Ipv6), 8, 1..=16) => {
                Value::Source { prefix: bits }
            }
            (Some(Family::Ipv4), 16, 1..=4) | (Some(Family::Ipv6), 24, 1..=16) => {
                Value::Destination { prefix: bits }
            }
            // `ip6 nexthdr` is the protocol where there are no extension headers, as in packets of Services.
            (Some(Family::Ipv4), 9, 1) | (Some(Family::Ipv6), 6, 1) => Value::Protocol,
            _ => Value::Other("network header"),
        }
    }

    fn bitwise(&mut self, bitwise: &Bitwise) {
        let masked = match (self.value(bitwise.source), &bitwise.operation) {
            (value, BitwiseOperation::MaskXor { mask, xor }) if xor.iter().all(|byte| *byte == 0) => {
                masked(value, mask)
            }
            _ => Value::Other("a computed value"),
        };
        self.load(bitwise.destination, masked);
    }

    fn compare(&mut self, cmp: &Cmp) {
        let value = self.value(cmp.source);
        let inverted = match cmp.operation {
            CmpOperation::EQ => false,
            CmpOperation::NEQ => true,
            operation => return self.order(&value, operation, &cmp.data),
        };
        let equal = self.equal(&value, &cmp.data);
        let Some((test, swapped)) = equal else {
            return self.unknown(value.name());
        };
        let inverted = inverted != swapped;
        if let (Test::Family(family), false) = (&test, inverted) {
            self.family = Some(*family);
        }
        self.test(test.inverted_if(inverted));
    }

    /// Returns the condition that a value equals `data`, and true if it is the opposite of the condition.
    fn equal(&self, value: &Value, data: &[u8]) -> Option<(Test, bool)> {
        let test = match value {
            Value::Input => Test::Input(name(data)?),
            Value::Output => Test::Output(name(data)?),
            Value::InputIndex => Test::Input(self.interfaces.get(&number(data)?)?.clone()),
            Value::OutputIndex => Test::Output(self.interfaces.get(&number(data)?)?.clone()),
            Value::TcpFlags(mask) => Test::TcpFlags { mask: *mask, value: *data.first()? },
            Value::SourceType if number(data)? == LOCAL => Test::SourceIsLocal,
            Value::DestinationType if number(data)? == LOCAL => Test::DestinationIsLocal,
            Value::Family => Test::Family(match data {
                [2] => Family::Ipv4,
                [10] => Family::Ipv6,
                _ => return None,
            }),
            Value::EtherType => Test::Family(match data {
                [0x08, 0x00] => Family::Ipv4,
                [0x86, 0xdd] => Family::Ipv6,
                _ => return None,
            }),
            Value::Protocol => Test::Protocol(*data.first()?),
            Value::Source { prefix } => Test::Source(network(self.family?, data, *prefix)?),
            Value::Destination { prefix } => Test::Destination(network(self.family?, data, *prefix)?),
            Value::Port => {
                let port = port(data)?;
                Test::Port(port..=port)
            }
            Value::State(mask) => return bits(*mask, data, state),
            Value::Status(mask) => return bits(*mask, data, status),
            Value::SourceType | Value::DestinationType | Value::Other(_) => return None,
        };
        Some((test, false))
    }

    fn order(&mut self, value: &Value, operation: CmpOperation, data: &[u8]) {
        let range: Option<RangeInclusive<u16>> = match (value, operation, port(data)) {
            (Value::Port, CmpOperation::GTE, Some(port)) => Some(port..=u16::MAX),
            (Value::Port, CmpOperation::LTE, Some(port)) => Some(0..=port),
            _ => None,
        };
        match range {
            Some(range) => self.test(Test::Port(range)),
            None => self.unknown(value.name()),
        }
    }

    fn range(&mut self, range: &Range) {
        let value = self.value(range.source);
        match (&value, port(&range.from), port(&range.to)) {
            (Value::Port, Some(first), Some(last)) => {
                self.test(Test::Port(first..=last).inverted_if(range.inverted));
            }
            _ => self.unknown(value.name()),
        }
    }

    fn lookup(&mut self, lookup: &Lookup) {
        let value = self.value(lookup.source);
        match lookup.destination {
            Some(Register::VERDICT) => match self.verdicts(&value, &lookup.set) {
                Some(branches) => self.branches = branches,
                None => self.decide(Effect::Unknown),
            },
            Some(register) => {
                self.load(register, Value::Other("map"));
                self.unknown(&format!("@{}", lookup.set));
            }
            None => match self.members(&value, &lookup.set) {
                Some(tests) => self.test(Test::Any(tests).inverted_if(lookup.inverted)),
                None => self.unknown(&format!("{} @{}", value.name(), lookup.set)),
            },
        }
    }

    fn elements(&self, set: &str) -> Option<&'a Vec<Element>> {
        let sets: &'a Sets = self.sets;
        sets.get(&(self.rule.family.0, self.rule.table.clone(), set.to_owned()))
    }

    /// Returns the conditions that a value is one of a set; `None` if they are not known.
    fn members(&self, value: &Value, set: &str) -> Option<Vec<Test>> {
        self.elements(set)?.iter().map(|element| self.member(value, element)).collect()
    }

    /// Returns the condition that a value is an element. Elements of ranges and of several values are not modelled.
    fn member(&self, value: &Value, element: &Element) -> Option<Test> {
        let is_plain = element.flags == 0 && element.key_end.is_none();
        let is_whole = is_plain && Some(element.key.len()) == self.length(value);
        let (test, inverted) = self.equal(value, &element.key).filter(|_| is_whole)?;
        Some(test.inverted_if(inverted))
    }

    /// Returns the length of a value in bytes.
    fn length(&self, value: &Value) -> Option<usize> {
        Some(match value {
            Value::Input | Value::Output => 16,
            Value::Family | Value::Protocol | Value::TcpFlags(_) => 1,
            Value::EtherType | Value::Port => 2,
            Value::State(_)
            | Value::Status(_)
            | Value::InputIndex
            | Value::OutputIndex
            | Value::SourceType
            | Value::DestinationType => 4,
            Value::Source { .. } | Value::Destination { .. } => match self.family? {
                Family::Ipv4 => 4,
                Family::Ipv6 => 16,
            },
            Value::Other(_) => return None,
        })
    }

    /// Returns the branches of a map of verdicts; `None` if they are not known. The element for all other values is last.
    fn verdicts(&self, value: &Value, map: &str) -> Option<Vec<(Test, Effect)>> {
        let (mut branches, mut others) = (Vec::new(), None);
        for element in self.elements(map)? {
            let Some(Data::Verdict(verdict)) = &element.data else { return None };
            if element.flags == CATCH_ALL {
                others = Some(effect(verdict));
            } else {
                branches.push((self.member(value, element)?, effect(verdict)));
            }
        }
        if let Some(effect) = others {
            let known = branches.iter().map(|(test, _)| test.clone()).collect();
            branches.push((Test::Any(known).inverted_if(true), effect));
        }
        Some(branches)
    }

    fn immediate(&mut self, immediate: &Immediate) {
        let Data::Verdict(verdict) = &immediate.data else {
            self.load(immediate.destination, Value::Other("constant"));
            return;
        };
        self.decide(effect(verdict));
    }
}

fn effect(verdict: &Verdict) -> Effect {
    match verdict {
        Verdict::Accept => Effect::Accept,
        Verdict::Drop => Effect::Drop,
        Verdict::Return => Effect::Return,
        Verdict::Jump(chain) => Effect::Jump(chain.clone()),
        Verdict::Goto(chain) => Effect::Goto(chain.clone()),
        Verdict::Continue | Verdict::Break => Effect::Continue,
    }
}

#[cfg(test)]
mod tests;
