//! What is asked: the sender, the destination, and the state of the flow.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use portolan_model::Protocol;
use serde::{Deserialize, Serialize};

/// Longest name of an object in the API.
const LONGEST_NAME: usize = 253;

/// A question about one packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Question {
    /// Who sends the packet.
    pub from: Sender,
    /// Where it is sent to.
    pub to: Target,
    /// The state of its flow.
    #[serde(default)]
    pub flow: Flow,
    /// Name of the interface at which the packet arrives on this node. `None` if it is not known. Detection of pods by
    /// interface, firewall rules and reverse-path filters depend on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}

/// Who sends a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Sender {
    /// A process on this node, from the address that the node uses.
    Node,
    /// A host outside of the cluster, whose address does not matter.
    Outside,
    /// The host or pod with this address.
    Address(IpAddr),
    /// A pod: `NAME` or `NAME.NAMESPACE`.
    Pod(String),
}

/// Where a packet is sent to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Target {
    /// An address and port.
    Socket {
        /// The address and port.
        socket: SocketAddr,
        /// The protocol.
        protocol: Protocol,
    },
    /// The cluster IP of a Service.
    Service {
        /// Name of the Service.
        name: String,
        /// Its namespace. `None` if it is the only Service of this name.
        namespace: Option<String>,
        /// The port. `None` if the Service has only one.
        port: Option<ServicePortRef>,
        /// The protocol. `None` if only one protocol has the port.
        protocol: Option<Protocol>,
    },
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServicePortRef {
    /// By its number at the cluster IP.
    Number(u16),
    /// By its name.
    Name(String),
}

/// The state of the flow that the packet belongs to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Flow {
    /// The packet is the first one.
    #[default]
    New,
    /// The flow is known to conntrack.
    #[serde(rename_all = "camelCase")]
    Established {
        /// The endpoint to which the flow goes. `None` if conntrack is to be asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        endpoint: Option<SocketAddr>,
    },
}

/// Why a text is no sender or no destination.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Not a sender.
    #[error("`{0}` is no sender; write an IP address, `node`, `outside` or `pod/NAME[.NAMESPACE]`")]
    Sender(String),
    /// Not a destination.
    #[error(
        "`{0}` is no destination; write ADDRESS:PORT[/PROTOCOL], such as 10.96.0.10:53/udp or [fd00::1]:80, or \
         svc/NAME[.NAMESPACE][:PORT][/PROTOCOL]"
    )]
    Target(String),
    /// A destination without port.
    #[error("`{0}` has no port; write ADDRESS:PORT, and an IPv6 address in brackets")]
    NoPort(String),
    /// An unknown protocol.
    #[error("`{0}` is no protocol of Services; write tcp, udp or sctp")]
    Protocol(String),
}

impl Question {
    /// Creates a question about the first packet of a flow.
    pub const fn new(from: Sender, to: Target) -> Self {
        Self { from, to, flow: Flow::New, interface: None }
    }
}

impl FromStr for Sender {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = || ParseError::Sender(text.to_owned());
        match text {
            "node" => return Ok(Self::Node),
            "outside" => return Ok(Self::Outside),
            _ => {}
        }
        if let Some(name) = text.strip_prefix("pod/").or_else(|| text.strip_prefix("pods/")) {
            return if is_name(name) { Ok(Self::Pod(name.to_owned())) } else { Err(wrong()) };
        }
        let address: IpAddr = text.parse().map_err(|_| wrong())?;
        Ok(Self::Address(address.to_canonical()))
    }
}

impl FromStr for Target {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let service = ["svc/", "service/", "services/"].iter().find_map(|prefix| text.strip_prefix(prefix));
        let (place, protocol) = match service.unwrap_or(text).split_once('/') {
            Some((place, protocol)) => (place, Some(parse_protocol(protocol)?)),
            None => (service.unwrap_or(text), None),
        };
        if service.is_some() {
            return parse_service(place, protocol).ok_or_else(|| ParseError::Target(text.to_owned()));
        }
        if let Ok(socket) = place.parse::<SocketAddr>()
            && socket.port() > 0
        {
            let socket = SocketAddr::new(socket.ip().to_canonical(), socket.port());
            return Ok(Self::Socket { socket, protocol: protocol.unwrap_or_default() });
        }
        let bare = place.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(place);
        Err(if bare.parse::<IpAddr>().is_ok() {
            ParseError::NoPort(text.to_owned())
        } else {
            ParseError::Target(text.to_owned())
        })
    }
}

/// Parses `NAME[.NAMESPACE][:PORT]`. Names of Services have no dots.
fn parse_service(text: &str, protocol: Option<Protocol>) -> Option<Target> {
    let (place, port) = match text.split_once(':') {
        Some((place, port)) => (place, Some(parse_port(port)?)),
        None => (text, None),
    };
    let (name, namespace) = match place.split_once('.') {
        Some((name, namespace)) => (name, Some(namespace)),
        None => (place, None),
    };
    let are_names = is_name(name) && namespace.is_none_or(|name| is_name(name) && !name.contains('.'));
    are_names.then(|| Target::Service {
        name: name.to_owned(),
        namespace: namespace.map(str::to_owned),
        port,
        protocol,
    })
}

fn parse_port(text: &str) -> Option<ServicePortRef> {
    match text.parse::<u16>() {
        Ok(0) => None,
        Ok(number) => Some(ServicePortRef::Number(number)),
        Err(_) => (is_name(text) && !text.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| ServicePortRef::Name(text.to_owned())),
    }
}

fn parse_protocol(text: &str) -> Result<Protocol, ParseError> {
    let known = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let found = known.into_iter().find(|protocol| protocol.name().eq_ignore_ascii_case(text));
    found.ok_or_else(|| ParseError::Protocol(text.to_owned()))
}

/// Returns true for texts that can be the name of an object.
fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    !text.is_empty() && text.len() <= LONGEST_NAME && text.bytes().all(is_part)
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("node"),
            Self::Outside => f.write_str("outside"),
            Self::Address(address) => address.fmt(f),
            Self::Pod(name) => write!(f, "pod/{name}"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self {
            Self::Socket { socket, protocol } => {
                write!(f, "{socket}")?;
                Some(*protocol)
            }
            Self::Service { name, namespace, port, protocol } => {
                write!(f, "svc/{name}")?;
                if let Some(namespace) = namespace {
                    write!(f, ".{namespace}")?;
                }
                match port {
                    Some(ServicePortRef::Number(number)) => write!(f, ":{number}")?,
                    Some(ServicePortRef::Name(name)) => write!(f, ":{name}")?,
                    None => {}
                }
                *protocol
            }
        };
        protocol.map_or(Ok(()), |protocol| write!(f, "/{}", protocol.name().to_ascii_lowercase()))
    }
}

impl TryFrom<String> for Sender {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, ParseError> {
        text.parse()
    }
}

impl TryFrom<String> for Target {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, ParseError> {
        text.parse()
    }
}

impl From<Sender> for String {
    fn from(sender: Sender) -> Self {
        sender.to_string()
    }
}

impl From<Target> for String {
    fn from(target: Target) -> Self {
        target.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn senders() {
        for text in ["node", "outside", "10.244.1.10", "fd00::1", "pod/web-1", "pod/web.1.shop"] {
            assert_eq!(text.parse::<Sender>().expect(text).to_string(), text);
        }
        assert_eq!("pods/a".parse(), Ok(Sender::Pod("a".to_owned())));
        assert_eq!("::ffff:10.0.0.1".parse(), Ok(Sender::Address([10, 0, 0, 1].into())));
        for text in ["", "pod/", "pod/a b", "web-1", "10.0.0.1:80", "svc/a", "10.0.0.0/8"] {
            assert_eq!(text.parse::<Sender>(), Err(ParseError::Sender(text.to_owned())));
        }
    }

    #[test]
    fn destinations() {
        let table = [
            ("10.96.0.10:53/udp", "10.96.0.10:53/udp"),
            ("10.96.0.10:53/UDP", "10.96.0.10:53/udp"),
            ("[fd00::1]:80", "[fd00::1]:80/tcp"),
            ("[::ffff:10.0.0.1]:80", "10.0.0.1:80/tcp"),
            ("svc/dns", "svc/dns"),
            ("service/dns.kube-system:dns", "svc/dns.kube-system:dns"),
            ("svc/dns.kube-system:53/sctp", "svc/dns.kube-system:53/sctp"),
            ("svc/dns/udp", "svc/dns/udp"),
        ];
        for (text, want) in table {
            assert_eq!(text.parse::<Target>().expect(text).to_string(), want);
        }
        for text in [
            "",
            "dns",
            "svc/",
            "svc/a:",
            "svc/a:0",
            "svc/a:70000",
            "svc/a.b.c",
            "svc/a.",
            "10.0.0.1:x",
            "1.2.3.4:0",
        ] {
            assert_eq!(text.parse::<Target>(), Err(ParseError::Target(text.to_owned())), "{text}");
        }
        for text in ["10.96.0.10", "fd00::1", "[fd00::1]", "10.96.0.10/udp"] {
            assert_eq!(text.parse::<Target>(), Err(ParseError::NoPort(text.to_owned())), "{text}");
        }
        assert_eq!("10.0.0.1:80/icmp".parse::<Target>(), Err(ParseError::Protocol("icmp".to_owned())));
        assert_eq!("svc/a/".parse::<Target>(), Err(ParseError::Protocol(String::new())));
    }

    #[test]
    fn questions_as_json() {
        let mut question = Question::new(Sender::Node, "svc/dns:53/udp".parse().expect("a destination"));
        question.flow = Flow::Established { endpoint: Some("10.244.1.5:53".parse().expect("an endpoint")) };
        let json = serde_json::to_string(&question).expect("JSON");
        assert_eq!(
            json,
            r#"{"from":"node","to":"svc/dns:53/udp","flow":{"established":{"endpoint":"10.244.1.5:53"}}}"#
        );
        assert_eq!(serde_json::from_str::<Question>(&json).expect("a question"), question);
        let short: Question =
            serde_json::from_str(r#"{"from":"node","to":"10.0.0.1:80"}"#).expect("a question");
        assert_eq!(short.flow, Flow::New);
        let error = serde_json::from_str::<Question>(r#"{"from":"nobody","to":"10.0.0.1:80"}"#);
        assert!(error.expect_err("no sender").to_string().contains("`nobody` is no sender"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,40}") {
            if let Ok(sender) = text.parse::<Sender>() {
                prop_assert_eq!(sender.to_string().parse(), Ok(sender));
            }
            if let Ok(target) = text.parse::<Target>() {
                prop_assert_eq!(target.to_string().parse(), Ok(target));
            }
        }

        #[test]
        fn texts_like_destinations_are_read_or_refused(text in "(svc/)?[a-z0-9.:/\\[\\]-]{0,24}") {
            if let Ok(target) = text.parse::<Target>() {
                prop_assert_eq!(target.to_string().parse(), Ok(target));
            }
        }
    }
}
