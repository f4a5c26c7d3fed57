//! One rule of a save, in parts. Any text is a rule with matches that are not known, and never an error.

use std::borrow::Cow;
use std::net::IpAddr;

use ipnet::IpNet;
use portolan_model::Protocol;
use portolan_model::observed::Counters;

use crate::fixed::{EXTERNAL_SERVICES, PROXY_FIREWALL};
use crate::name::ChainName;
use crate::rule::lower_case;

/// Modules of iptables whose matches the reader knows. A rule with another module has [`Match::Other`].
const MODULES: [&str; 10] =
    ["comment", "tcp", "udp", "sctp", "addrtype", "conntrack", "statistic", "recent", "mark", "nfacct"];
/// Targets after which a packet does not reach the next rule of the chain.
const FINAL: [&str; 9] =
    ["ACCEPT", "DROP", "REJECT", "RETURN", "DNAT", "REDIRECT", "MASQUERADE", "QUEUE", "NFQUEUE"];

/// A kind of match. A comment is none, because it matches every packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Match {
    /// A source range.
    Source = 1,
    /// A destination range.
    Destination = 1 << 1,
    /// A transport protocol of Services.
    Protocol = 1 << 2,
    /// Destination ports.
    Port = 1 << 3,
    /// A share of the packets.
    Random = 1 << 4,
    /// A list of clients.
    Recent = 1 << 5,
    /// Packets from this node.
    LocalSource = 1 << 6,
    /// Packets to an address of this node.
    LocalDestination = 1 << 7,
    /// An input interface.
    Interface = 1 << 8,
    /// The first packet of a connection.
    New = 1 << 9,
    /// A packet mark.
    Mark = 1 << 10,
    /// An nfacct counter, which matches every packet.
    Counter = 1 << 11,
    /// Anything else, and what is negated.
    Other = 1 << 12,
}

/// The match with a list of clients.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Recent<'a> {
    /// The name of the list.
    pub(super) list: Cow<'a, str>,
    /// The rule looks a client up that was added at most this many seconds ago.
    pub(super) within: Option<u32>,
    /// The rule looks a client up.
    pub(super) is_check: bool,
    /// The rule adds the client.
    pub(super) is_set: bool,
}

/// A rule of a save.
#[derive(Debug, Default)]
pub(super) struct Rule<'a> {
    pub(super) chain: Cow<'a, str>,
    pub(super) counters: Option<Counters>,
    pub(super) source: Option<IpNet>,
    pub(super) destination: Option<IpNet>,
    pub(super) protocol: Option<Protocol>,
    /// The first and the last destination port.
    pub(super) ports: Option<(u16, u16)>,
    /// Empty if there is none.
    pub(super) comment: Cow<'a, str>,
    pub(super) recent: Recent<'a>,
    pub(super) target: Option<Cow<'a, str>>,
    /// The words after the target.
    pub(super) arguments: Vec<Cow<'a, str>>,
    matches: u16,
    is_goto: bool,
}

impl<'a> Rule<'a> {
    /// Parses a line of a save. Returns `None` if it is not a rule.
    pub(super) fn parse(line: &'a str) -> Option<Self> {
        let (counters, line) = match line.strip_prefix('[').and_then(|line| line.split_once("] ")) {
            Some((text, rest)) => (counters(text), rest),
            None => (None, line),
        };
        let mut words = Words(line.strip_prefix("-A ")?);
        let mut rule = Self { chain: words.next()?, counters, ..Self::default() };
        while let Some(word) = words.next() {
            match &*word {
                "-j" | "-g" => {
                    rule.is_goto = word == "-g";
                    rule.target = words.next();
                    rule.arguments = words.by_ref().collect();
                }
                "!" => rule.negated(&mut words),
                option => rule.option(option, &mut words),
            }
        }
        Some(rule)
    }

    /// Reads a negated match. In the chains that check packets to Services, that of packets to endpoints is none: kube-proxy
    /// does not have it.
    fn negated(&mut self, words: &mut Words<'a>) {
        let mut ahead = Words(words.0);
        let (option, value) = (ahead.next(), ahead.next());
        let is_taken = match option.as_deref() {
            Some("--ctstate") => value.is_some_and(|state| state == "DNAT"),
            Some("--mark") => true,
            _ => false,
        };
        if is_taken && [EXTERNAL_SERVICES, PROXY_FIREWALL].contains(&&*self.chain) {
            words.0 = ahead.0;
        } else {
            self.add(Match::Other);
        }
    }

    fn option(&mut self, option: &str, words: &mut Words<'a>) {
        match option {
            "--rcheck" => self.recent.is_check = true,
            "--set" => self.recent.is_set = true,
            "--reap" | "--rsource" => {}
            _ => {
                let value = words.next().unwrap_or_default();
                match option {
                    "-m" if MODULES.contains(&&*value) => {}
                    "--comment" => self.comment = value,
                    _ => {
                        let kind = self.value(option, value).unwrap_or(Match::Other);
                        self.add(kind);
                    }
                }
                return;
            }
        }
        self.add(Match::Recent);
    }

    /// Notes a match with a value. Returns `None` if it is not understood.
    fn value(&mut self, option: &str, value: Cow<'a, str>) -> Option<Match> {
        Some(match (option, &*value) {
            ("-s", _) => {
                self.source = Some(net(&value)?);
                Match::Source
            }
            ("-d", _) => {
                self.destination = Some(net(&value)?);
                Match::Destination
            }
            ("-p", _) => {
                self.protocol = Some(protocol(&value)?);
                Match::Protocol
            }
            ("--dport", _) => {
                self.ports = Some(ports(&value)?);
                Match::Port
            }
            ("--mode", "random") | ("--probability", _) => Match::Random,
            ("--seconds", _) => {
                self.recent.within = Some(value.parse().ok()?);
                Match::Recent
            }
            ("--name", _) => {
                self.recent.list = value;
                Match::Recent
            }
            ("--mask", _) => Match::Recent,
            ("--src-type", "LOCAL") => Match::LocalSource,
            ("--dst-type", "LOCAL") => Match::LocalDestination,
            ("-i", _) => Match::Interface,
            ("--ctstate", "NEW") => Match::New,
            ("--mark", _) => Match::Mark,
            ("--nfacct-name", _) => Match::Counter,
            _ => return None,
        })
    }

    fn add(&mut self, kind: Match) {
        self.matches |= kind as u16;
    }

    /// Returns true if the rule has no other matches than these.
    pub(super) fn has_only(&self, kinds: &[Match]) -> bool {
        kinds.iter().fold(self.matches, |left, kind| left & !(*kind as u16)) == 0
    }

    /// Returns true if the rule has exactly these matches.
    pub(super) fn has(&self, kinds: &[Match]) -> bool {
        kinds.iter().fold(0, |all, kind| all | *kind as u16) == self.matches
    }

    /// Returns true if no packet reaches the next rule of the chain.
    pub(super) fn ends_chain(&self) -> bool {
        let is_final = |target: &str| self.is_goto || FINAL.contains(&target);
        self.has(&[]) && self.target.as_deref().is_some_and(is_final)
    }

    /// Returns the target; empty if there is none. That of a goto is not returned: no rule of this mode has one.
    pub(super) fn target(&self) -> &str {
        if self.is_goto { "goto" } else { self.target.as_deref().unwrap_or_default() }
    }

    /// Returns the chain of a Service port that the rule jumps to.
    pub(super) fn chain_of_service(&self) -> Option<ChainName> {
        ChainName::parse(self.target())
    }

    /// Returns the destination, if it is a single address.
    pub(super) fn to(&self) -> Option<IpAddr> {
        self.destination.filter(|net| net.prefix_len() == net.max_prefix_len()).map(|net| net.addr())
    }

    /// Returns the destination port, if it is a single one.
    pub(super) fn port(&self) -> Option<u16> {
        self.ports.filter(|(first, last)| first == last).map(|(port, _)| port)
    }

    /// Returns the word after an option of the target.
    pub(super) fn argument(&self, option: &str) -> Option<&str> {
        let place = self.arguments.iter().position(|word| word == option)?;
        self.arguments.get(place.checked_add(1)?).map(|word| &**word)
    }
}

/// Parses `12:345`, packets and bytes. A rule of the nat table meets the first packet of a connection only, so its packets
/// are connections, and its bytes say nothing.
fn counters(text: &str) -> Option<Counters> {
    let (packets, _) = text.split_once(':')?;
    Some(Counters::of_connections(packets.parse().ok()?))
}

fn net(text: &str) -> Option<IpNet> {
    text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok()
}

fn protocol(text: &str) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|protocol| lower_case(*protocol) == text)
}

fn ports(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once(':').unwrap_or((text, text));
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// The words of a rule. A text in quotes is one word; in it, a backslash comes before a quote or another backslash.
struct Words<'a>(&'a str);

impl<'a> Iterator for Words<'a> {
    type Item = Cow<'a, str>;

    fn next(&mut self) -> Option<Cow<'a, str>> {
        let text = self.0.trim_start();
        if text.is_empty() {
            return None;
        }
        let Some(quoted) = text.strip_prefix('"') else {
            let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
            self.0 = rest;
            return Some(word.into());
        };
        let mut is_escaped = false;
        let end = quoted.bytes().position(|byte| {
            let is_end = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            is_end
        });
        let (word, rest) = end.and_then(|end| quoted.split_at_checked(end)).unwrap_or((quoted, ""));
        self.0 = rest.strip_prefix('"').unwrap_or(rest);
        Some(without_escapes(word))
    }
}

fn without_escapes(word: &str) -> Cow<'_, str> {
    if !word.contains('\\') {
        return word.into();
    }
    let mut text = String::with_capacity(word.len());
    let mut characters = word.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => text.extend(characters.next()),
            _ => text.push(character),
        }
    }
    text.into()
}
