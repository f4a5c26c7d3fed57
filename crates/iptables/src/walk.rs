//! Follows a packet through the rules, for tests: the meaning of the rules' text for the first packet of a
//! connection.

use std::net::IpAddr;

use ipnet::IpNet;
use portolan_model::Protocol;
use portolan_model::oracle::{Origin, Packet};

use super::interpreter::Tables;
use super::rule::words;

/// One possible fate of a packet: its share of all such packets, whether it is marked for masquerading, and its end.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Way {
    pub(super) part: f64,
    pub(super) marked: bool,
    pub(super) end: End,
}

/// The end of a way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// Translated to this `address:port`.
    Translated(String),
    /// Refused with a TCP reset.
    Reset,
    /// Refused with an ICMP error.
    Rejected,
    Dropped,
    /// Neither translated nor stopped.
    Passed,
}

/// The tables and the addresses of the node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Walk<'a> {
    pub(super) tables: &'a Tables,
    pub(super) local_addresses: &'a [IpAddr],
}

/// A packet on its way, at a rule or after a chain.
#[derive(Debug, Clone, Copy)]
struct State {
    part: f64,
    marked: bool,
}

impl Walk<'_> {
    /// Returns all ways of a packet.
    pub(super) fn ways(self, packet: &Packet<'_>) -> Vec<Way> {
        let from_node = packet.origin == Origin::Node;
        let start = State { part: 1.0, marked: false };
        let mut ways = Vec::new();
        let hook = if from_node { "OUTPUT" } else { "PREROUTING" };
        for state in self.chain("nat", hook, packet, start, &mut ways) {
            self.filter(packet, from_node, state, &mut ways);
        }
        ways
    }

    /// Follows a packet that was not translated through the filter table.
    fn filter(self, packet: &Packet<'_>, from_node: bool, state: State, ways: &mut Vec<Way>) {
        let to_node = self.is_local(packet.destination);
        let hooks: &[&str] = match (from_node, to_node) {
            (true, true) => &["OUTPUT", "INPUT"],
            (true, false) => &["OUTPUT"],
            (false, true) => &["INPUT"],
            (false, false) => &["FORWARD"],
        };
        let mut states = vec![state];
        for hook in hooks {
            states = states
                .into_iter()
                .flat_map(|state| self.chain("filter", hook, packet, state, ways))
                .collect();
        }
        ways.extend(states.into_iter().map(|state| state.end(End::Passed)));
    }

    /// Follows a packet through a chain. Returns the states in which it reaches the end of the chain.
    fn chain(
        self,
        table: &str,
        name: &str,
        packet: &Packet<'_>,
        from: State,
        ways: &mut Vec<Way>,
    ) -> Vec<State> {
        let mut states = vec![from];
        for rule in self.tables.chain(table, name).expect("no rule leads nowhere") {
            let (share, target) = self.judge(rule, packet);
            let mut next = Vec::new();
            for state in states {
                let hit = State { part: state.part * share, ..state };
                if share < 1.0 {
                    next.push(State { part: state.part * (1.0 - share), ..state });
                }
                if share > 0.0 {
                    next.extend(self.go(table, &target, packet, hit, ways));
                }
            }
            states = next;
        }
        states
    }

    fn go(
        self,
        table: &str,
        target: &[&str],
        packet: &Packet<'_>,
        state: State,
        ways: &mut Vec<Way>,
    ) -> Vec<State> {
        let mut end = |end| {
            ways.push(state.end(end));
            Vec::new()
        };
        match target {
            [] => vec![state],
            ["DROP"] => end(End::Dropped),
            // The kernel accepts the reset target in rules for TCP only.
            ["REJECT", "--reject-with", "tcp-reset"] if packet.protocol == Protocol::Tcp => end(End::Reset),
            ["REJECT"] => end(End::Rejected),
            ["ACCEPT"] => end(End::Passed),
            ["DNAT", "--to-destination", place] => end(End::Translated((*place).to_owned())),
            ["MARK", "--or-mark", _] => vec![State { marked: true, ..state }],
            [chain] if chain.starts_with("KUBE-") => self.chain(table, chain, packet, state, ways),
            other => panic!("unknown target {other:?}"),
        }
    }

    /// Returns the share of such packets that a rule matches, and the rule's target.
    fn judge<'r>(self, rule: &'r str, packet: &Packet<'_>) -> (f64, Vec<&'r str>) {
        let words = words(rule);
        let mut words = words.into_iter();
        let mut share = 1.0;
        let mut negated = false;
        while let Some(word) = words.next() {
            let mut value = || words.next().expect("every option has a value");
            let matches = match word {
                "!" => {
                    negated = true;
                    continue;
                }
                "-j" => return (share, words.collect()),
                "-m" | "--comment" | "--mode" | "--name" | "--seconds" | "--nfacct-name" => {
                    value();
                    true
                }
                // A first packet has no entry in the list.
                "--rcheck" => false,
                "--reap" | "--set" => true,
                "-p" => value() == packet.protocol.to_string().to_lowercase(),
                "-d" => net(value()).contains(&packet.destination),
                "-s" => net(value()).contains(&packet.source),
                "-i" => interface(value(), packet.origin),
                "--dport" => value() == packet.port.to_string(),
                "--dst-type" => value() == "LOCAL" && self.is_local(packet.destination),
                "--src-type" => value() == "LOCAL" && self.is_local(packet.source),
                "--ctstate" => value().split(',').any(|state| state == "NEW"),
                "--mark" => value().is_empty(),
                "--probability" => {
                    share *= value().parse::<f64>().expect("a number");
                    true
                }
                other => panic!("unknown option {other} in {rule}"),
            };
            if matches == negated {
                return (0.0, Vec::new());
            }
            negated = false;
        }
        (share, Vec::new())
    }

    fn is_local(self, address: IpAddr) -> bool {
        address.is_loopback() || self.local_addresses.contains(&address)
    }
}

impl State {
    const fn end(self, end: End) -> Way {
        Way { part: self.part, marked: self.marked, end }
    }
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap_or_else(|_| text.parse::<IpAddr>().expect("an address").into())
}

fn interface(name: &str, origin: Origin<'_>) -> bool {
    let input = match origin {
        Origin::Node => return false,
        Origin::Pod { input_interface } | Origin::Remote { input_interface } => input_interface,
    };
    name.strip_suffix('+').map_or(input == name, |prefix| input.starts_with(prefix))
}
