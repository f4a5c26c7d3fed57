//! What a mode read from the kernel, in a form of its own for the file: `model::observed` may change.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use portolan_model::observed::{
    Counters, Fact, NodePortReach, Observed, ObservedEndpoint, ObservedEndpoints, ObservedFrontend,
    ObservedPlace, ObservedPort, Refused, Traffic,
};
use portolan_model::{Family, Frontend, NodePortAddresses, Protocol, ServicePortName};
use serde::{Deserialize, Serialize};

/// What is programmed for Services in one family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Programmed {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The mode that programmed it. `None` if it is the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// See [`Observed::node_port_addresses`].
    pub node_port_addresses: Option<Vec<IpAddr>>,
    /// The addresses that accept node ports, if the mode holds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ports: Option<NodePorts>,
    /// See [`Observed::ports`].
    pub ports: Vec<Port>,
}

/// The addresses of the node that accept node ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePorts {
    /// Those that are no loopback addresses; null for all of the node.
    pub addresses: Option<Vec<IpAddr>>,
    /// The networks of loopback addresses.
    pub loopback: Vec<String>,
}

/// A Service port, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Its name, if the kernel holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Where clients reach it.
    pub frontends: Vec<At>,
    /// The endpoints, if the mode holds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<Endpoints>,
    /// The timeout of session affinity in seconds, null without affinity, if the mode holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Known<Option<u32>>>,
    /// The source ranges, if the mode holds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_ranges: Option<Known<Vec<String>>>,
    /// What went to endpoints, if the mode counts it for all frontends together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<Passed>,
}

/// The name of a Service port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Name {
    /// The namespace of the Service.
    pub namespace: String,
    /// The name of the Service.
    pub service: String,
    /// The name of the port; empty if it has none.
    pub port: String,
}

/// Something that the mode holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known<T> {
    /// What it is.
    pub known: T,
}

/// A frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct At {
    /// Where it is.
    #[serde(flatten)]
    pub place: FrontendAddress,
    /// What passed, if the mode counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<Passed>,
    /// What was refused, if the mode counts.
    #[serde(default, skip_serializing_if = "RefusedPackets::is_empty")]
    pub refused: RefusedPackets,
}

/// The place of a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FrontendAddress {
    /// A cluster IP and port.
    ClusterIp(SocketAddr),
    /// An external IP and port.
    ExternalIp(SocketAddr),
    /// A load-balancer IP and port.
    LoadBalancerIp(SocketAddr),
    /// A node port at all addresses that accept node ports.
    NodePort(u16),
    /// An address and port of a kind that the kernel does not hold.
    Address(SocketAddr),
    /// A node port at one address.
    NodePortAt(SocketAddr),
}

/// What passed a rule or a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// New connections.
    #[serde(default)]
    pub connections: u64,
    /// Packets and bytes, if the mode counts all of them.
    #[serde(flatten)]
    pub traffic: Option<PacketsAndBytes>,
}

/// Packets and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketsAndBytes {
    /// Packets.
    pub packets: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// Packets that were refused, by reason; null if the mode does not count them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RefusedPackets {
    /// Without an endpoint.
    pub no_endpoint: Option<u64>,
    /// Without an endpoint on this node, where one is required.
    pub no_local_endpoint: Option<u64>,
    /// From a client that the source ranges do not allow.
    pub source_range: Option<u64>,
}

impl RefusedPackets {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The endpoints of a Service port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Endpoints {
    /// The two lists, as far as the mode holds them.
    Lists {
        /// For traffic that may go to any node.
        cluster: Option<Vec<Endpoint>>,
        /// For traffic that must stay on this node.
        local: Option<Vec<Endpoint>>,
    },
    /// One list for all frontends of the entry.
    Shared(Vec<Endpoint>),
}

/// An endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// The address and port.
    pub at: SocketAddr,
    /// What passed, if the mode counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<Passed>,
}

impl From<&Observed> for Programmed {
    fn from(observed: &Observed) -> Self {
        Self {
            family: observed.family.name().to_owned(),
            mode: None,
            node_port_addresses: observed.node_port_addresses.clone(),
            node_ports: match &observed.node_ports {
                Fact::Known(reach) => Some(NodePorts::from(reach)),
                Fact::Unknown => None,
            },
            ports: observed.ports.iter().map(Port::from).collect(),
        }
    }
}

impl From<&NodePortReach> for NodePorts {
    fn from(reach: &NodePortReach) -> Self {
        let NodePortReach { addresses, loopback } = reach;
        Self {
            addresses: match addresses {
                NodePortAddresses::MatchAll => None,
                NodePortAddresses::Addresses(addresses) => Some(addresses.clone()),
            },
            loopback: loopback.iter().map(ToString::to_string).collect(),
        }
    }
}

impl NodePorts {
    fn reach(&self) -> Result<NodePortReach, String> {
        let Self { addresses, loopback } = self;
        let network = |text: &String| text.parse().map_err(|_| format!("`{text}` is not a network"));
        Ok(NodePortReach {
            addresses: addresses.clone().map_or(NodePortAddresses::MatchAll, NodePortAddresses::Addresses),
            loopback: loopback.iter().map(network).collect::<Result<_, _>>()?,
        })
    }
}

impl Programmed {
    /// Returns the same as it was read.
    ///
    /// # Errors
    /// A name is unknown. The error says which.
    pub fn observed(&self) -> Result<Observed, String> {
        let Self { family: name, mode: _, node_port_addresses, node_ports, ports } = self;
        Ok(Observed {
            family: Family::named(name).ok_or_else(|| format!("`{name}` is not a family"))?,
            node_port_addresses: node_port_addresses.clone(),
            node_ports: match node_ports {
                Some(node_ports) => Fact::Known(node_ports.reach()?),
                None => Fact::Unknown,
            },
            ports: ports.iter().map(Port::observed).collect::<Result<_, _>>()?,
        })
    }
}

impl From<&ObservedPort> for Port {
    fn from(port: &ObservedPort) -> Self {
        let ObservedPort { name, protocol, frontends, endpoints, affinity, source_ranges, counters } = port;
        let list = |list: &[ObservedEndpoint]| list.iter().copied().map(Endpoint::from).collect::<Vec<_>>();
        let fact = |fact: &Fact<Vec<ObservedEndpoint>>| known(fact).map(|endpoints| list(endpoints));
        Self {
            name: name.as_deref().map(|name| Name {
                namespace: name.namespace.to_string(),
                service: name.service.to_string(),
                port: name.port.to_string(),
            }),
            protocol: protocol.name().to_owned(),
            frontends: frontends.iter().copied().map(At::from).collect(),
            endpoints: match endpoints {
                ObservedEndpoints::Unknown => None,
                ObservedEndpoints::Lists { cluster, local } => {
                    Some(Endpoints::Lists { cluster: fact(cluster), local: fact(local) })
                }
                ObservedEndpoints::Shared(endpoints) => Some(Endpoints::Shared(list(endpoints))),
            },
            affinity: known(affinity).map(|seconds| Known { known: *seconds }),
            source_ranges: known(source_ranges)
                .map(|ranges| Known { known: ranges.iter().map(ToString::to_string).collect() }),
            counters: counters.map(Passed::from),
        }
    }
}

impl Port {
    fn observed(&self) -> Result<ObservedPort, String> {
        let Self { name, protocol, frontends, endpoints, affinity, source_ranges, counters } = self;
        let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        let known = all.into_iter().find(|known| known.name() == protocol);
        let protocol = known.ok_or_else(|| format!("`{protocol}` is not a protocol"))?;
        let name = name.as_ref().map(|name| ServicePortName {
            namespace: name.namespace.as_str().into(),
            service: name.service.as_str().into(),
            port: name.port.as_str().into(),
            protocol,
        });
        let range =
            |text: &String| text.parse::<IpNet>().map_err(|_| format!("`{text}` is not a source range"));
        let ranges = source_ranges.as_ref().map(|ranges| ranges.known.iter().map(range).collect());
        let list = |list: &[Endpoint]| list.iter().copied().map(ObservedEndpoint::from).collect::<Vec<_>>();
        let fact_of = |listed: &Option<Vec<Endpoint>>| fact(listed.as_deref().map(list));
        Ok(ObservedPort {
            name: name.map(Arc::new),
            protocol,
            frontends: frontends.iter().copied().map(ObservedFrontend::from).collect(),
            endpoints: match endpoints {
                None => ObservedEndpoints::Unknown,
                Some(Endpoints::Lists { cluster, local }) => {
                    ObservedEndpoints::Lists { cluster: fact_of(cluster), local: fact_of(local) }
                }
                Some(Endpoints::Shared(endpoints)) => ObservedEndpoints::Shared(list(endpoints)),
            },
            affinity: fact(affinity.as_ref().map(|affinity| affinity.known)),
            source_ranges: fact(ranges.transpose()?),
            counters: counters.map(Counters::from),
        })
    }
}

const fn known<T>(fact: &Fact<T>) -> Option<&T> {
    match fact {
        Fact::Unknown => None,
        Fact::Known(value) => Some(value),
    }
}

fn fact<T>(known: Option<T>) -> Fact<T> {
    known.map_or(Fact::Unknown, Fact::Known)
}

impl From<ObservedFrontend> for At {
    fn from(ObservedFrontend { place, counters, refused }: ObservedFrontend) -> Self {
        let at = SocketAddr::new;
        let place = match place {
            ObservedPlace::Frontend(Frontend::ClusterIp(ip, port)) => {
                FrontendAddress::ClusterIp(at(ip, port))
            }
            ObservedPlace::Frontend(Frontend::ExternalIp(ip, port)) => {
                FrontendAddress::ExternalIp(at(ip, port))
            }
            ObservedPlace::Frontend(Frontend::LoadBalancerIp(ip, port)) => {
                FrontendAddress::LoadBalancerIp(at(ip, port))
            }
            ObservedPlace::Frontend(Frontend::NodePort(port)) => FrontendAddress::NodePort(port),
            ObservedPlace::Address(socket) => FrontendAddress::Address(socket),
            ObservedPlace::NodePortAt(socket) => FrontendAddress::NodePortAt(socket),
        };
        Self { place, counters: counters.map(Passed::from), refused: refused.into() }
    }
}

impl From<At> for ObservedFrontend {
    fn from(At { place, counters, refused }: At) -> Self {
        let frontend =
            |of: fn(IpAddr, u16) -> Frontend, at: SocketAddr| ObservedPlace::Frontend(of(at.ip(), at.port()));
        let place = match place {
            FrontendAddress::ClusterIp(at) => frontend(Frontend::ClusterIp, at),
            FrontendAddress::ExternalIp(at) => frontend(Frontend::ExternalIp, at),
            FrontendAddress::LoadBalancerIp(at) => frontend(Frontend::LoadBalancerIp, at),
            FrontendAddress::NodePort(port) => ObservedPlace::Frontend(Frontend::NodePort(port)),
            FrontendAddress::Address(at) => ObservedPlace::Address(at),
            FrontendAddress::NodePortAt(at) => ObservedPlace::NodePortAt(at),
        };
        Self { place, counters: counters.map(Counters::from), refused: refused.into() }
    }
}

impl From<ObservedEndpoint> for Endpoint {
    fn from(ObservedEndpoint { at, counters }: ObservedEndpoint) -> Self {
        Self { at, counters: counters.map(Passed::from) }
    }
}

impl From<Endpoint> for ObservedEndpoint {
    fn from(Endpoint { at, counters }: Endpoint) -> Self {
        Self { at, counters: counters.map(Counters::from) }
    }
}

impl From<Counters> for Passed {
    fn from(Counters { connections, traffic }: Counters) -> Self {
        let traffic = traffic.map(|Traffic { packets, bytes }| PacketsAndBytes { packets, bytes });
        Self { connections, traffic }
    }
}

impl From<Passed> for Counters {
    fn from(Passed { connections, traffic }: Passed) -> Self {
        let traffic = traffic.map(|PacketsAndBytes { packets, bytes }| Traffic { packets, bytes });
        Self { connections, traffic }
    }
}

impl From<Refused> for RefusedPackets {
    fn from(Refused { no_endpoint, no_local_endpoint, source_range }: Refused) -> Self {
        Self { no_endpoint, no_local_endpoint, source_range }
    }
}

impl From<RefusedPackets> for Refused {
    fn from(RefusedPackets { no_endpoint, no_local_endpoint, source_range }: RefusedPackets) -> Self {
        Self { no_endpoint, no_local_endpoint, source_range }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use portolan_model::Family;
    use portolan_model::world::Rng;
    use proptest::prelude::*;

    use super::*;

    fn socket(rng: &mut Rng) -> SocketAddr {
        let port = u16::try_from(rng.below(65_536)).unwrap();
        let host = u8::try_from(rng.below(256)).unwrap();
        let v6 = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into()]);
        SocketAddr::new(if rng.chance(50) { IpAddr::from([10, 0, 0, host]) } else { v6 }, port)
    }

    fn counters(rng: &mut Rng) -> Option<Counters> {
        let traffic = rng.chance(50).then(|| Traffic { packets: rng.bits(), bytes: rng.bits() });
        rng.chance(50).then(|| Counters { connections: rng.bits(), traffic })
    }

    fn random_fact<T>(rng: &mut Rng, value: impl FnOnce(&mut Rng) -> T) -> Fact<T> {
        if rng.chance(50) { Fact::Known(value(rng)) } else { Fact::Unknown }
    }

    fn endpoints(rng: &mut Rng) -> Vec<ObservedEndpoint> {
        (0..rng.below(3)).map(|_| ObservedEndpoint { at: socket(rng), counters: counters(rng) }).collect()
    }

    fn frontend(rng: &mut Rng) -> ObservedFrontend {
        let at = socket(rng);
        let place = match rng.below(6) {
            0 => ObservedPlace::Frontend(Frontend::ClusterIp(at.ip(), at.port())),
            1 => ObservedPlace::Frontend(Frontend::ExternalIp(at.ip(), at.port())),
            2 => ObservedPlace::Frontend(Frontend::LoadBalancerIp(at.ip(), at.port())),
            3 => ObservedPlace::Frontend(Frontend::NodePort(at.port())),
            4 => ObservedPlace::Address(at),
            _ => ObservedPlace::NodePortAt(at),
        };
        let mut number = || rng.chance(50).then(|| rng.bits());
        let refused = Refused { no_endpoint: number(), no_local_endpoint: number(), source_range: number() };
        ObservedFrontend { place, counters: counters(rng), refused }
    }

    fn port(rng: &mut Rng) -> ObservedPort {
        let protocol = *rng.pick(&[Protocol::Tcp, Protocol::Udp, Protocol::Sctp]).unwrap();
        let name = ServicePortName {
            namespace: "a".into(),
            service: rng.below(9).to_string().into(),
            port: "".into(),
            protocol,
        };
        let ranges = |rng: &mut Rng| (0..rng.below(3)).map(|_| socket(rng).ip().into()).collect();
        ObservedPort {
            name: rng.chance(70).then(|| Arc::new(name)),
            protocol,
            frontends: (0..rng.below(4)).map(|_| frontend(rng)).collect(),
            endpoints: match rng.below(3) {
                0 => ObservedEndpoints::Unknown,
                1 => ObservedEndpoints::Lists {
                    cluster: random_fact(rng, endpoints),
                    local: random_fact(rng, endpoints),
                },
                _ => ObservedEndpoints::Shared(endpoints(rng)),
            },
            affinity: random_fact(rng, |rng| rng.chance(50).then_some(10_800)),
            source_ranges: random_fact(rng, ranges),
            counters: counters(rng),
        }
    }

    fn reach(rng: &mut Rng) -> NodePortReach {
        let addresses = match rng.below(2) {
            0 => NodePortAddresses::MatchAll,
            _ => NodePortAddresses::Addresses(vec![socket(rng).ip()]),
        };
        NodePortReach { addresses, loopback: (0..rng.below(2)).map(|_| socket(rng).ip().into()).collect() }
    }

    proptest! {
        #[test]
        fn what_was_read_comes_back_from_json(seed in any::<u64>()) {
            let mut rng = Rng::new(seed);
            let observed = Observed {
                family: if rng.chance(50) { Family::Ipv4 } else { Family::Ipv6 },
                node_port_addresses: rng.chance(50).then(|| vec![socket(&mut rng).ip()]),
                node_ports: random_fact(&mut rng, reach),
                ports: (0..rng.below(5)).map(|_| port(&mut rng)).collect(),
            };
            let json = serde_json::to_string(&Programmed::from(&observed)).unwrap();
            let read: Programmed = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(read.observed(), Ok(observed));
        }
    }

    #[test]
    fn an_unknown_name_is_an_error() {
        let of = |family: &str, protocol: &str| {
            let port = Port {
                name: None,
                protocol: protocol.into(),
                frontends: Vec::new(),
                endpoints: None,
                affinity: None,
                source_ranges: Some(Known { known: vec!["x".into()] }),
                counters: None,
            };
            let programmed = Programmed {
                family: family.into(),
                mode: None,
                node_port_addresses: None,
                node_ports: None,
                ports: vec![port],
            };
            programmed.observed().unwrap_err()
        };
        assert_eq!(of("IPX", "TCP"), "`IPX` is not a family");
        assert_eq!(of("IPv4", "tcp"), "`tcp` is not a protocol");
        assert_eq!(of("IPv4", "TCP"), "`x` is not a source range");
    }
}
