//! The conditions of rules, and whether packets fulfil them. Both may be known only in part.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use portolan_model::Family;

/// Whether a packet fulfils a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// No packet of this description does.
    No,
    /// Some may.
    Maybe,
    /// All do.
    Yes,
}

/// Name of the loopback interface.
const LOOPBACK: &str = "lo";
/// The protocol number of TCP.
const TCP: u8 = 6;
/// The flag of TCP that starts a connection.
const SYN: u8 = 0x02;
/// FIN, SYN, RST and ACK: those that the first packet of a connection certainly has or has not.
const FLAGS_OF_FIRST: u8 = 0x17;

/// A description of packets. What is `None` is unknown.
#[expect(clippy::struct_excessive_bools, reason = "each is a property of its own")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The family.
    pub family: Family,
    /// Interfaces at which the packet may have arrived; empty if it comes from this node.
    pub input: Option<Vec<String>>,
    /// Interfaces through which the packet may leave; empty if it is for this node.
    pub output: Option<Vec<String>>,
    /// True if the packet comes from elsewhere, so that it does not arrive at the loopback interface.
    pub from_elsewhere: bool,
    /// True if the packet goes elsewhere, so that it does not leave through the loopback interface.
    pub to_elsewhere: bool,
    /// True if the source is an address of this node.
    pub source_is_local: Option<bool>,
    /// True if the destination is an address of this node.
    pub destination_is_local: Option<bool>,
    /// A network that contains the source.
    pub source: Option<IpNet>,
    /// A network that contains the destination.
    pub destination: Option<IpNet>,
    /// The protocol number.
    pub protocol: Option<u8>,
    /// A range that contains the destination port.
    pub port: Option<RangeInclusive<u16>>,
    /// True if connection tracking has translated the destination. It does not count what IPVS translates.
    pub translated: bool,
    /// True if the packet belongs to a connection that has had packets in both directions. Otherwise it starts one.
    pub established: bool,
    /// If kube-proxy's chains lead the packet to an endpoint: whether they masquerade it. `None` if that is not known, or if
    /// what leads it there is something else.
    pub masqueraded: Option<bool>,
    /// True if the packet belongs to a connection to a Service.
    pub of_service: bool,
    /// True if the source becomes an address of this node on the way out, where sources are translated.
    pub leaves_masqueraded: bool,
}

impl Packet {
    /// Returns the first packet of a connection about which nothing else is known.
    pub const fn of(family: Family) -> Self {
        Self {
            family,
            input: None,
            output: None,
            from_elsewhere: false,
            to_elsewhere: false,
            source_is_local: None,
            destination_is_local: None,
            source: None,
            destination: None,
            protocol: None,
            port: None,
            translated: false,
            established: false,
            masqueraded: None,
            of_service: false,
            leaves_masqueraded: false,
        }
    }
}

/// States of a connection, as bits. Rules test for any of several states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConntrackStates(pub u16);

impl ConntrackStates {
    /// The packet belongs to no connection.
    pub const INVALID: Self = Self(1);
    /// The connection has had packets in both directions.
    pub const ESTABLISHED: Self = Self(2);
    /// The connection was started by another one.
    pub const RELATED: Self = Self(4);
    /// The packet starts a connection.
    pub const NEW: Self = Self(8);
    /// The source is translated.
    pub const SNAT: Self = Self(1 << 6);
    /// The destination is translated.
    pub const DNAT: Self = Self(1 << 7);
    /// The packet is exempt from connection tracking.
    pub const UNTRACKED: Self = Self(1 << 8);

    const NAMES: [(Self, &'static str); 7] = [
        (Self::INVALID, "invalid"),
        (Self::ESTABLISHED, "established"),
        (Self::RELATED, "related"),
        (Self::NEW, "new"),
        (Self::SNAT, "snat"),
        (Self::DNAT, "dnat"),
        (Self::UNTRACKED, "untracked"),
    ];

    /// Returns the state of this name.
    pub fn named(name: &str) -> Option<Self> {
        let named = Self::NAMES.into_iter().find(|(_, known)| known.eq_ignore_ascii_case(name));
        named.map(|(state, _)| state)
    }

    /// Returns the union of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// A condition of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// The family of the packet.
    Family(Family),
    /// The arriving interface. A name that ends in `*` is a prefix.
    Input(String),
    /// The leaving interface. A name that ends in `*` is a prefix.
    Output(String),
    /// The source address.
    Source(IpNet),
    /// The destination address.
    Destination(IpNet),
    /// The protocol number.
    Protocol(u8),
    /// The destination port.
    Port(RangeInclusive<u16>),
    /// Any of several states of the connection.
    State(ConntrackStates),
    /// Those flags of TCP that are in a mask have a value.
    TcpFlags {
        /// The flags that count.
        mask: u8,
        /// Their value.
        value: u8,
    },
    /// The source is an address of this node.
    SourceIsLocal,
    /// The destination is an address of this node.
    DestinationIsLocal,
    /// Any of several conditions.
    Any(Vec<Self>),
    /// The opposite of a condition.
    Not(Box<Self>),
    /// A condition that is not modelled, in words.
    Unknown(String),
}

impl Test {
    /// Returns the opposite of this condition if `inverted`.
    #[must_use]
    pub fn inverted_if(self, inverted: bool) -> Self {
        if inverted { Self::Not(Box::new(self)) } else { self }
    }

    /// Returns whether packets of a description fulfil the condition.
    pub fn answer(&self, packet: &Packet) -> Answer {
        match self {
            Self::Family(family) => sure(*family == packet.family),
            Self::Input(name) if packet.from_elsewhere && name == LOOPBACK => Answer::No,
            Self::Output(name) if packet.to_elsewhere && name == LOOPBACK => Answer::No,
            Self::Input(name) => interface(name, packet.input.as_deref()),
            Self::Output(name) => interface(name, packet.output.as_deref()),
            Self::Source(net) => network(net, packet.source.as_ref()),
            Self::Destination(net) => network(net, packet.destination.as_ref()),
            Self::Protocol(number) => {
                packet.protocol.map_or(Answer::Maybe, |protocol| sure(protocol == *number))
            }
            Self::Port(range) => ports(range, packet.port.as_ref()),
            Self::State(state) => state_of(*state, packet),
            Self::TcpFlags { mask, value } => flags(*mask, *value, packet),
            Self::SourceIsLocal => packet.source_is_local.map_or(Answer::Maybe, sure),
            Self::DestinationIsLocal => packet.destination_is_local.map_or(Answer::Maybe, sure),
            Self::Any(tests) if cover(tests, packet) => Answer::Yes,
            Self::Any(tests) => any(tests.iter().map(|test| test.answer(packet))),
            Self::Not(test) => match test.answer(packet) {
                Answer::No => Answer::Yes,
                Answer::Maybe => Answer::Maybe,
                Answer::Yes => Answer::No,
            },
            Self::Unknown(_) => Answer::Maybe,
        }
    }

    /// Returns the name of the interface that the condition requires; `None` for other conditions.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Input(name) | Self::Output(name) => Some(name),
            _ => None,
        }
    }
}

/// Returns whether one of several conditions is fulfilled.
fn any(answers: impl Iterator<Item = Answer>) -> Answer {
    let mut best = Answer::No;
    for answer in answers {
        match answer {
            Answer::Yes => return Answer::Yes,
            Answer::Maybe => best = Answer::Maybe,
            Answer::No => {}
        }
    }
    best
}

/// Returns true if conditions name every interface at which a packet may arrive, or through which it may leave.
fn cover(tests: &[Test], packet: &Packet) -> bool {
    let covers = |names: Option<&Vec<String>>, named: fn(&Test, &str) -> bool| {
        let all = |names: &Vec<String>| names.iter().all(|name| tests.iter().any(|test| named(test, name)));
        names.is_some_and(|names| !names.is_empty() && all(names))
    };
    let is_input = |test: &Test, name: &str| matches!(test, Test::Input(pattern) if is_named(pattern, name));
    let is_output =
        |test: &Test, name: &str| matches!(test, Test::Output(pattern) if is_named(pattern, name));
    covers(packet.input.as_ref(), is_input) || covers(packet.output.as_ref(), is_output)
}

const fn sure(is: bool) -> Answer {
    if is { Answer::Yes } else { Answer::No }
}

/// Returns true if an interface has this name, or this prefix.
pub fn is_named(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix))
}

fn interface(pattern: &str, names: Option<&[String]>) -> Answer {
    let Some(names) = names else { return Answer::Maybe };
    let matching = names.iter().filter(|name| is_named(pattern, name)).count();
    match matching {
        0 => Answer::No,
        count if count == names.len() => Answer::Yes,
        _ => Answer::Maybe,
    }
}

fn network(net: &IpNet, known: Option<&IpNet>) -> Answer {
    if net.prefix_len() == 0 {
        return Answer::Yes;
    }
    match known {
        None => Answer::Maybe,
        Some(known) if net.contains(known) => Answer::Yes,
        Some(known) if known.contains(net) => Answer::Maybe,
        Some(_) => Answer::No,
    }
}

fn ports(range: &RangeInclusive<u16>, known: Option<&RangeInclusive<u16>>) -> Answer {
    match known {
        _ if range == &(0..=u16::MAX) => Answer::Yes,
        None => Answer::Maybe,
        Some(known) if range.contains(known.start()) && range.contains(known.end()) => Answer::Yes,
        Some(known) if range.start() <= known.end() && known.start() <= range.end() => Answer::Maybe,
        Some(_) => Answer::No,
    }
}

/// Packets start a connection or continue one, which is translated or not.
fn state_of(state: ConntrackStates, packet: &Packet) -> Answer {
    let own = if packet.established { ConntrackStates::ESTABLISHED } else { ConntrackStates::NEW };
    if state.has(own) || (packet.translated && state.has(ConntrackStates::DNAT)) {
        Answer::Yes
    } else if state.has(ConntrackStates::SNAT) {
        Answer::Maybe
    } else {
        Answer::No
    }
}

/// The first packet of a connection has SYN and none of FIN, RST and ACK; later ones do not have SYN. Others may have any.
fn flags(mask: u8, value: u8, packet: &Packet) -> Answer {
    if packet.protocol != Some(TCP) {
        return Answer::Maybe;
    }
    let (known, set) = if packet.established { (SYN, 0) } else { (FLAGS_OF_FIRST, SYN) };
    if (value ^ set) & mask & known != 0 || value & !mask != 0 {
        Answer::No
    } else if mask & !known == 0 {
        Answer::Yes
    } else {
        Answer::Maybe
    }
}

/// Returns a network of one address.
pub(crate) fn host(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Family(family) => write!(f, "{family}"),
            Self::Input(name) => write!(f, "iifname {name}"),
            Self::Output(name) => write!(f, "oifname {name}"),
            Self::Source(net) => write!(f, "saddr {net}"),
            Self::Destination(net) => write!(f, "daddr {net}"),
            Self::TcpFlags { mask, value } => write!(f, "tcp flags {value:#04x}/{mask:#04x}"),
            Self::SourceIsLocal => f.write_str("fib saddr type local"),
            Self::DestinationIsLocal => f.write_str("fib daddr type local"),
            Self::Protocol(TCP) => f.write_str("tcp"),
            Self::Protocol(17) => f.write_str("udp"),
            Self::Protocol(number) => write!(f, "protocol {number}"),
            Self::Port(range) if range.start() == range.end() => write!(f, "dport {}", range.start()),
            Self::Port(range) => write!(f, "dport {}-{}", range.start(), range.end()),
            Self::State(state) => {
                let names = ConntrackStates::NAMES.into_iter().filter(|(known, _)| state.has(*known));
                let names: Vec<&str> = names.map(|(_, name)| name).collect();
                write!(f, "ct {}", names.join(","))
            }
            Self::Any(tests) => {
                let tests: Vec<String> = tests.iter().map(ToString::to_string).collect();
                write!(f, "{{ {} }}", tests.join(", "))
            }
            Self::Not(test) => write!(f, "not {test}"),
            Self::Unknown(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().expect("a network")
    }

    #[test]
    fn a_condition_about_something_unknown_may_be_true() {
        let packet = Packet::of(Family::Ipv4);
        let tests = [
            Test::Input("eth0".to_owned()),
            Test::Source(net("10.0.0.0/8")),
            Test::Protocol(6),
            Test::Port(80..=80),
            Test::Unknown("limit".to_owned()),
        ];
        for test in tests {
            assert_eq!(test.answer(&packet), Answer::Maybe, "{test}");
            assert_eq!(test.inverted_if(true).answer(&packet), Answer::Maybe);
        }
        assert_eq!(Test::Source(net("0.0.0.0/0")).answer(&packet), Answer::Yes);
        assert_eq!(Test::Port(0..=u16::MAX).answer(&packet), Answer::Yes);
        assert_eq!(Test::Family(Family::Ipv6).answer(&packet), Answer::No);
    }

    #[test]
    fn addresses_and_ports_are_compared_as_ranges() {
        let packet = Packet {
            destination: Some(net("10.96.0.0/12")),
            port: Some(30000..=32767),
            ..Packet::of(Family::Ipv4)
        };
        let to = |text: &str| Test::Destination(net(text)).answer(&packet);
        assert_eq!(to("10.0.0.0/8"), Answer::Yes);
        assert_eq!(to("10.96.0.10/32"), Answer::Maybe);
        assert_eq!(to("192.168.0.0/16"), Answer::No);
        assert_eq!(Test::Destination(net("10.0.0.0/8")).inverted_if(true).answer(&packet), Answer::No);
        let port = |range| Test::Port(range).answer(&packet);
        assert_eq!(port(1024..=u16::MAX), Answer::Yes);
        assert_eq!(port(30080..=30080), Answer::Maybe);
        assert_eq!(port(32767..=40000), Answer::Maybe);
        assert_eq!(port(8080..=8080), Answer::No);
    }

    #[test]
    fn interfaces_are_compared_with_all_possible_ones() {
        let names = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
        let packet =
            Packet { input: names(&["eth0", "cni0"]), output: names(&[]), ..Packet::of(Family::Ipv4) };
        let input = |pattern: &str| Test::Input(pattern.to_owned()).answer(&packet);
        assert_eq!(input("eth0"), Answer::Maybe);
        assert_eq!(input("docker0"), Answer::No);
        assert_eq!(input("eth*"), Answer::Maybe);
        assert_eq!(input("*"), Answer::Yes);
        assert_eq!(Test::Output("eth0".to_owned()).answer(&packet), Answer::No);
    }

    #[test]
    fn several_conditions_of_which_one_is_enough() {
        let names = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
        let packet =
            Packet { input: names(&["eth0", "cni0"]), protocol: Some(6), ..Packet::of(Family::Ipv4) };
        let input = |names: &[&str]| {
            let tests = names.iter().map(|&name| Test::Input(name.to_owned())).collect();
            Test::Any(tests).answer(&packet)
        };
        assert_eq!(input(&["eth0", "cni0", "x"]), Answer::Yes, "all of them together");
        assert_eq!(input(&["eth0", "x"]), Answer::Maybe);
        assert_eq!(input(&["x"]), Answer::No);
        let protocols = Test::Any(vec![Test::Protocol(17), Test::Protocol(6)]);
        assert_eq!(protocols.answer(&packet), Answer::Yes);
        assert_eq!(protocols.to_string(), "{ udp, tcp }");
        assert_eq!(Test::Any(Vec::new()).answer(&packet), Answer::No);
    }

    #[test]
    fn packets_start_a_connection_or_continue_one() {
        let (new, translated) =
            (Packet::of(Family::Ipv4), Packet { translated: true, ..Packet::of(Family::Ipv4) });
        let old = Test::State(ConntrackStates::ESTABLISHED.with(ConntrackStates::RELATED));
        assert_eq!(old.answer(&new), Answer::No);
        let with_new = Test::State(ConntrackStates::ESTABLISHED.with(ConntrackStates::NEW));
        assert_eq!(with_new.answer(&new), Answer::Yes);
        let dnat = Test::State(ConntrackStates::DNAT);
        assert_eq!((dnat.answer(&new), dnat.answer(&translated)), (Answer::No, Answer::Yes));
        assert_eq!(Test::State(ConntrackStates::INVALID).answer(&new), Answer::No);
        let later = Packet { established: true, ..translated };
        let new = Test::State(ConntrackStates::NEW);
        assert_eq!([&old, &with_new, &dnat].map(|test| test.answer(&later)), [Answer::Yes; 3]);
        assert_eq!(new.answer(&later), Answer::No);
    }

    #[test]
    fn what_comes_from_elsewhere_does_not_pass_the_loopback_interface() {
        let unknown = Packet::of(Family::Ipv4);
        let packet = Packet { from_elsewhere: true, to_elsewhere: true, ..unknown.clone() };
        for test in [Test::Input, Test::Output] {
            let answers = |packet| ["lo", "eth0"].map(|name| test(name.to_owned()).answer(packet));
            assert_eq!(answers(&unknown), [Answer::Maybe; 2]);
            assert_eq!(answers(&packet), [Answer::No, Answer::Maybe]);
        }
    }

    #[test]
    fn the_flags_of_tcp() {
        let first = Packet { protocol: Some(TCP), ..Packet::of(Family::Ipv4) };
        let later = Packet { established: true, ..first.clone() };
        let of = |mask, value| [&first, &later].map(|packet| Test::TcpFlags { mask, value }.answer(packet));
        let (yes, no, maybe) = (Answer::Yes, Answer::No, Answer::Maybe);
        assert_eq!(of(0x17, 0x02), [yes, no], "--syn");
        assert_eq!(of(0x02, 0), [no, yes], "no SYN");
        assert_eq!(of(0x12, 0x10), [no, maybe], "ACK");
        assert_eq!(of(0x3f, 0x02), [maybe, no], "whether it has PSH or URG is not known");
        assert_eq!(of(0x3f, 0), [no, maybe], "none");
        assert_eq!(of(0x02, 0x12), [no, no], "a value outside of its mask");
        let unknown = Test::TcpFlags { mask: 0x17, value: 0x02 }.answer(&Packet::of(Family::Ipv4));
        assert_eq!(unknown, maybe, "of another protocol");
    }

    #[test]
    fn addresses_of_this_node() {
        let of = |is_local| {
            let packet = Packet { destination_is_local: is_local, ..Packet::of(Family::Ipv4) };
            [Test::DestinationIsLocal, Test::SourceIsLocal].map(|test| test.answer(&packet))
        };
        let maybe = Answer::Maybe;
        let found = [None, Some(true), Some(false)].map(of);
        assert_eq!(found, [[maybe; 2], [Answer::Yes, maybe], [Answer::No, maybe]]);
    }

    #[test]
    fn conditions_are_printed_as_nft_writes_them() {
        let tests = [
            Test::Input("eth*".to_owned()).inverted_if(true),
            Test::Destination(host("10.96.0.1".parse().expect("an address"))),
            Test::Protocol(6),
            Test::Port(80..=90),
            Test::State(ConntrackStates::NEW.with(ConntrackStates::INVALID)),
        ];
        let text: Vec<String> = tests.iter().map(ToString::to_string).collect();
        assert_eq!(text.join(" "), "not iifname eth* daddr 10.96.0.1/32 tcp dport 80-90 ct invalid,new");
    }
}
