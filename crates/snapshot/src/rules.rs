//! Firewall rules of other programs, in a form of its own for the file: [`portolan_firewall`] may change.

use ipnet::IpNet;
use portolan_firewall as firewall;
use portolan_firewall::{ConntrackStates, Hook, Owner, Program, RuleId, Ruleset, TableFamily, TableId};
use portolan_model::Family;
use serde::{Deserialize, Serialize};

/// Largest number of rules that a snapshot has.
pub const MOST_RULES: usize = 20_000;

/// A chain of another program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Chain {
    /// Whose commands change the table.
    pub program: By,
    /// Family of the table, in nft's words.
    pub family: Of,
    /// Name of the table.
    pub table: String,
    /// Name of the chain.
    pub chain: String,
    /// Where the kernel calls it. `None` if packets reach it only by jumps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
    /// The rules, in order.
    pub rules: Vec<Rule>,
}

/// The program whose commands change a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// `nft`.
    Nft,
    /// iptables as a front end of nftables.
    IptablesNft,
    /// The older iptables.
    IptablesLegacy,
}

/// The family of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Of {
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// Both.
    Inet,
    /// All packets of devices.
    Netdev,
}

/// What the kernel knows of a chain that it calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Base {
    /// The hook that calls it.
    pub hook: At,
    /// Order among the chains of a hook, lowest first.
    pub priority: i32,
    /// True for chains of type nat.
    pub nat: bool,
    /// True if packets that no rule decides are dropped.
    pub drops: bool,
}

/// A hook, by nft's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum At {
    /// Packets that arrive at devices.
    Ingress,
    /// Arriving packets, before routing.
    Prerouting,
    /// Packets for the node.
    Input,
    /// Packets that are forwarded.
    Forward,
    /// Packets that the node sends.
    Output,
    /// Leaving packets, after routing.
    Postrouting,
    /// Packets that leave through devices.
    Egress,
}

/// A rule. Either `handle` or `line` names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// nft's handle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<u64>,
    /// The rule in the words of `iptables-save`, without `-A`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    /// The conditions. All of them must be true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tests: Vec<Test>,
    /// What happens to packets that match.
    pub effect: Effect,
}

/// A condition of a rule: see [`firewall::Test`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Test {
    /// `IPv4` or `IPv6`.
    Family(String),
    /// The arriving interface.
    Input(String),
    /// The leaving interface.
    Output(String),
    /// A network.
    Source(String),
    /// A network.
    Destination(String),
    /// The protocol number.
    Protocol(u8),
    /// The first and the last destination port.
    Ports(u16, u16),
    /// States of the connection, as bits.
    State(u16),
    /// The flags of TCP that count, and their value.
    TcpFlags(u8, u8),
    /// The source is an address of the node.
    SourceIsLocal,
    /// The destination is an address of the node.
    DestinationIsLocal,
    /// Any of several conditions.
    Any(Vec<Self>),
    /// The opposite of a condition.
    Not(Box<Self>),
    /// In words.
    Unknown(String),
}

/// What happens to packets that match a rule: see [`firewall::Effect`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the same as in the crate of firewall rules")]
pub enum Effect {
    Continue,
    Accept,
    Drop,
    Reject,
    Jump(String),
    Goto(String),
    Return,
    Redirect,
    NoTrack,
    Unknown,
}

/// Returns the chains of programs that know nothing of Services. Those of proxies and of network plug-ins are not judged. Of
/// network plug-ins the chains that the kernel calls are kept without rules, so that it is known that packets pass them.
///
/// # Errors
/// There are more than [`MOST_RULES`] rules.
pub fn recorded(ruleset: &Ruleset) -> Result<Vec<Chain>, String> {
    let recorded = |chain: &firewall::Chain| {
        let owner = Owner::of(&chain.place, &chain.name);
        let is_passed = owner.has_policies() && chain.base.is_some();
        let without_rules = || Chain::from(&firewall::Chain { rules: Vec::new(), ..chain.clone() });
        if owner.knows_services() { is_passed.then(without_rules) } else { Some(Chain::from(chain)) }
    };
    let chains: Vec<Chain> = ruleset.chains().iter().filter_map(recorded).collect();
    let rules: usize = chains.iter().map(|chain| chain.rules.len()).sum();
    if rules > MOST_RULES {
        return Err(format!("there are {rules} rules; a snapshot has at most {MOST_RULES}"));
    }
    Ok(chains)
}

/// Returns the ruleset of recorded chains.
///
/// # Errors
/// A value of a condition is none of its kind.
pub fn ruleset(chains: &[Chain]) -> Result<Ruleset, String> {
    let chains: Result<_, _> = chains.iter().map(Chain::chain).collect();
    chains.map(Ruleset::new)
}

impl From<&firewall::Chain> for Chain {
    fn from(of: &firewall::Chain) -> Self {
        let base = |base: firewall::Base| Base {
            hook: match base.hook {
                Hook::Ingress => At::Ingress,
                Hook::Prerouting => At::Prerouting,
                Hook::Input => At::Input,
                Hook::Forward => At::Forward,
                Hook::Output => At::Output,
                Hook::Postrouting => At::Postrouting,
                Hook::Egress => At::Egress,
            },
            priority: base.priority,
            nat: base.nat,
            drops: base.drops,
        };
        Self {
            program: match of.place.program {
                Program::Nft => By::Nft,
                Program::IptablesNft => By::IptablesNft,
                Program::IptablesLegacy => By::IptablesLegacy,
            },
            family: match of.place.family {
                TableFamily::Ip => Of::Ip,
                TableFamily::Ip6 => Of::Ip6,
                TableFamily::Inet => Of::Inet,
                TableFamily::Netdev => Of::Netdev,
            },
            table: of.place.table.clone(),
            chain: of.name.clone(),
            base: of.base.map(base),
            rules: of.rules.iter().map(Rule::from).collect(),
        }
    }
}

impl Chain {
    fn chain(&self) -> Result<firewall::Chain, String> {
        let base = |base: Base| firewall::Base {
            hook: match base.hook {
                At::Ingress => Hook::Ingress,
                At::Prerouting => Hook::Prerouting,
                At::Input => Hook::Input,
                At::Forward => Hook::Forward,
                At::Output => Hook::Output,
                At::Postrouting => Hook::Postrouting,
                At::Egress => Hook::Egress,
            },
            priority: base.priority,
            nat: base.nat,
            drops: base.drops,
        };
        let place = TableId {
            program: match self.program {
                By::Nft => Program::Nft,
                By::IptablesNft => Program::IptablesNft,
                By::IptablesLegacy => Program::IptablesLegacy,
            },
            family: match self.family {
                Of::Ip => TableFamily::Ip,
                Of::Ip6 => TableFamily::Ip6,
                Of::Inet => TableFamily::Inet,
                Of::Netdev => TableFamily::Netdev,
            },
            table: self.table.clone(),
        };
        let rules: Result<_, String> = self.rules.iter().map(Rule::rule).collect();
        Ok(firewall::Chain { place, name: self.chain.clone(), base: self.base.map(base), rules: rules? })
    }
}

impl From<&firewall::Rule> for Rule {
    fn from(of: &firewall::Rule) -> Self {
        let (handle, line) = match &of.id {
            RuleId::Handle(handle) => (Some(*handle), None),
            RuleId::Line(line) => (None, Some(line.clone())),
        };
        let effect = match &of.effect {
            firewall::Effect::Continue => Effect::Continue,
            firewall::Effect::Accept => Effect::Accept,
            firewall::Effect::Drop => Effect::Drop,
            firewall::Effect::Reject => Effect::Reject,
            firewall::Effect::Jump(to) => Effect::Jump(to.clone()),
            firewall::Effect::Goto(to) => Effect::Goto(to.clone()),
            firewall::Effect::Return => Effect::Return,
            firewall::Effect::Redirect => Effect::Redirect,
            firewall::Effect::NoTrack => Effect::NoTrack,
            firewall::Effect::Unknown => Effect::Unknown,
        };
        Self { handle, line, tests: of.tests.iter().map(Test::from).collect(), effect }
    }
}

impl Rule {
    fn rule(&self) -> Result<firewall::Rule, String> {
        let id = match (&self.line, self.handle) {
            (Some(line), _) => RuleId::Line(line.clone()),
            (None, Some(handle)) => RuleId::Handle(handle),
            (None, None) => return Err("a rule has neither a handle nor a line".to_owned()),
        };
        let effect = match &self.effect {
            Effect::Continue => firewall::Effect::Continue,
            Effect::Accept => firewall::Effect::Accept,
            Effect::Drop => firewall::Effect::Drop,
            Effect::Reject => firewall::Effect::Reject,
            Effect::Jump(to) => firewall::Effect::Jump(to.clone()),
            Effect::Goto(to) => firewall::Effect::Goto(to.clone()),
            Effect::Return => firewall::Effect::Return,
            Effect::Redirect => firewall::Effect::Redirect,
            Effect::NoTrack => firewall::Effect::NoTrack,
            Effect::Unknown => firewall::Effect::Unknown,
        };
        let tests: Result<_, String> = self.tests.iter().map(Test::test).collect();
        Ok(firewall::Rule { tests: tests?, effect, id })
    }
}

impl From<&firewall::Test> for Test {
    fn from(of: &firewall::Test) -> Self {
        match of {
            firewall::Test::Family(family) => Self::Family(family.name().to_owned()),
            firewall::Test::Input(name) => Self::Input(name.clone()),
            firewall::Test::Output(name) => Self::Output(name.clone()),
            firewall::Test::Source(network) => Self::Source(network.to_string()),
            firewall::Test::Destination(network) => Self::Destination(network.to_string()),
            firewall::Test::Protocol(number) => Self::Protocol(*number),
            firewall::Test::Port(range) => Self::Ports(*range.start(), *range.end()),
            firewall::Test::State(states) => Self::State(states.0),
            firewall::Test::TcpFlags { mask, value } => Self::TcpFlags(*mask, *value),
            firewall::Test::SourceIsLocal => Self::SourceIsLocal,
            firewall::Test::DestinationIsLocal => Self::DestinationIsLocal,
            firewall::Test::Any(tests) => Self::Any(tests.iter().map(Self::from).collect()),
            firewall::Test::Not(test) => Self::Not(Box::new(Self::from(&**test))),
            firewall::Test::Unknown(text) => Self::Unknown(text.clone()),
        }
    }
}

impl Test {
    fn test(&self) -> Result<firewall::Test, String> {
        let network = |text: &str| -> Result<IpNet, String> {
            text.parse().map_err(|_| format!("`{text}` is no network"))
        };
        Ok(match self {
            Self::Family(name) => firewall::Test::Family(
                Family::named(name).ok_or_else(|| format!("`{name}` is no family; it is IPv4 or IPv6"))?,
            ),
            Self::Input(name) => firewall::Test::Input(name.clone()),
            Self::Output(name) => firewall::Test::Output(name.clone()),
            Self::Source(text) => firewall::Test::Source(network(text)?),
            Self::Destination(text) => firewall::Test::Destination(network(text)?),
            Self::Protocol(number) => firewall::Test::Protocol(*number),
            Self::Ports(first, last) => firewall::Test::Port(*first..=*last),
            Self::State(bits) => firewall::Test::State(ConntrackStates(*bits)),
            Self::TcpFlags(mask, value) => firewall::Test::TcpFlags { mask: *mask, value: *value },
            Self::SourceIsLocal => firewall::Test::SourceIsLocal,
            Self::DestinationIsLocal => firewall::Test::DestinationIsLocal,
            Self::Any(tests) => {
                let tests: Result<_, String> = tests.iter().map(Self::test).collect();
                firewall::Test::Any(tests?)
            }
            Self::Not(test) => firewall::Test::Not(Box::new(test.test()?)),
            Self::Unknown(text) => firewall::Test::Unknown(text.clone()),
        })
    }
}

#[cfg(test)]
mod tests {
    use portolan_firewall::saved;

    use super::*;

    const SAVED: &str = "\
*raw
:PREROUTING ACCEPT [0:0]
-A PREROUTING -d 10.96.0.80/32 -i eth1 -j CT --notrack
COMMIT
*filter
:FORWARD DROP [0:0]
:KUBE-FORWARD - [0:0]
:ufw-user - [0:0]
-A FORWARD -j KUBE-FORWARD
-A FORWARD -s 10.244.1.0/24 -p tcp -m tcp --dport 8080:8090 -m conntrack --ctstate NEW,ESTABLISHED -j ACCEPT
-A FORWARD ! -d 10.244.1.11/32 -p tcp -m multiport --dports 1,2:3 -j ufw-user
-A FORWARD -p tcp -m tcp --tcp-flags SYN NONE -m addrtype --src-type LOCAL ! --dst-type LOCAL -j DROP
-A FORWARD -m time --timestart 10:00 -j REJECT
-A FORWARD -g ufw-user
-A ufw-user -o eth+ -j RETURN
-A KUBE-FORWARD -j ACCEPT
COMMIT
";

    fn chains() -> Vec<firewall::Chain> {
        let mut chains = saved::chains(Family::Ipv4, SAVED);
        let place = TableId { program: Program::Nft, family: TableFamily::Inet, table: "fw".to_owned() };
        let base = firewall::Base { hook: Hook::Input, priority: -5, nat: true, drops: false };
        let tests = vec![firewall::Test::Family(Family::Ipv6), firewall::Test::Protocol(17)];
        let rule = firewall::Rule { tests, effect: firewall::Effect::Unknown, id: RuleId::Handle(7) };
        chains.push(firewall::Chain { place, name: "in".to_owned(), base: Some(base), rules: vec![rule] });
        chains
    }

    #[test]
    fn chains_of_other_programs_come_back() {
        let all = Ruleset::new(chains());
        let recorded = recorded(&all).unwrap();
        let text = serde_json::to_string(&recorded).unwrap();
        let read: Vec<Chain> = serde_json::from_str(&text).unwrap();
        let foreign: Vec<firewall::Chain> =
            chains().into_iter().filter(|chain| chain.name != "KUBE-FORWARD").collect();
        assert_eq!(ruleset(&read).unwrap().chains(), foreign);
        assert!(text.contains("iptables-legacy") && text.contains("\"ports\":[8080,8090]"), "{text}");
    }

    #[test]
    fn too_many_rules_are_not_recorded() {
        let mut chains = chains();
        let rule = chains[0].rules[0].clone();
        chains[0].rules = vec![rule; MOST_RULES];
        assert_eq!(
            recorded(&Ruleset::new(chains)).unwrap_err(),
            "there are 20008 rules; a snapshot has at most 20000"
        );
    }

    #[test]
    fn values_that_are_none_of_their_kind_are_named() {
        let mut chain = Chain::from(&chains()[0]);
        for (test, error) in [
            (Test::Source("10.0.0.0/33".into()), "`10.0.0.0/33` is no network"),
            (Test::Not(Box::new(Test::Family("IPv5".into()))), "`IPv5` is no family; it is IPv4 or IPv6"),
        ] {
            chain.rules[0].tests = vec![test];
            assert_eq!(ruleset(std::slice::from_ref(&chain)).unwrap_err(), error);
        }
        chain.rules[0] = Rule { handle: None, line: None, tests: Vec::new(), effect: Effect::Drop };
        assert_eq!(ruleset(&[chain]).unwrap_err(), "a rule has neither a handle nor a line");
    }
}
