//! The answer. Codes are for programs and stay the same when a text changes.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::question::Question;

/// Version of the form of a [`Report`]. It changes if a field or code is removed or gets another meaning; new ones may be
/// added without.
pub const VERSION: u32 = 1;

/// What happens to a packet, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The question.
    pub question: Question,
    /// Name of the node on which the packet is handled.
    pub node: String,
    /// The mode of the proxy.
    pub mode: String,
    /// Where the Services of `wanted` come from.
    pub source: Source,
    /// The client.
    pub from: Client,
    /// The destination.
    pub to: Destination,
    /// The result of everything that was looked at.
    pub outcome: Outcome,
    /// The outcome in one sentence.
    pub summary: String,
    /// What the objects and settings require.
    pub wanted: Wanted,
    /// What the kernel has. `None` if it was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programmed: Option<Programmed>,
    /// What conntrack has of the flow. `None` if it was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<Connections>,
    /// Rules of other programs that affect the packet, in the order in which it meets them. `None` if they were not read, or
    /// were not looked at, as a note with the code `firewall-not-evaluated` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firewall: Option<Vec<Obstacle>>,
    /// What reverse-path filters of this node drop. Empty if nothing is dropped, or if it is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reverse_path: Vec<ReversePath>,
    /// Endpoints to which this node does not send the packet, by its routes and settings. Empty if there are none, or if it is
    /// not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routing: Vec<Routing>,
    /// What the reader should know besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// Where the Services come from that an answer is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Objects in files.
    Manifests,
    /// The objects of the API server.
    ApiServer,
    /// The table of a running proxy, which has also read the kernel.
    Agent,
    /// A snapshot of a proxy, with what was programmed then.
    Snapshot,
}

/// The result of everything that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// An endpoint gets the packet.
    Reachable,
    /// The packet is rejected, by Services or by a rule of another program.
    Refused,
    /// The packet is dropped without reply, by Services or by a rule of another program.
    Dropped,
    /// Services do not affect the packet. Also if a rule of another program takes it before them.
    NotAService,
    /// The kernel has something else than what is wanted.
    NotAsWanted,
}

/// The client that sends the packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Client {
    /// What it is.
    pub kind: ClientKind,
    /// Its address.
    pub address: IpAddr,
    /// True if the question names no address, and this one is an example.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub example: bool,
    /// `NAME.NAMESPACE` of the pod, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Name of its node, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Name of the interface at which the packet arrives, if known or assumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}

/// What a client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientKind {
    /// A process on this node.
    Node,
    /// A pod.
    Pod,
    /// Another host.
    Outside,
}

/// Where the packet is sent to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Destination {
    /// The address and port.
    pub socket: SocketAddr,
    /// The protocol: `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The family: `IPv4` or `IPv6`.
    pub family: String,
}

/// What the objects and settings require.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wanted {
    /// What happens to the packet.
    pub fate: Fate,
    /// The Service port and frontend that decide. `None` if no frontend matches, and for established flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<DecidedBy>,
    /// The reasons, in the order in which they apply.
    pub steps: Vec<Step>,
    /// If no frontend matches: the frontends that are nearest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nearest: Vec<Nearest>,
    /// Every endpoint of the Service port, used or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<EndpointReport>,
    /// Session affinity, if an endpoint gets the packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Whether endpoints see an address of this node, if an endpoint gets the packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masquerade: Option<Masquerade>,
    /// The sources that a load-balancer IP allows, if the packet is sent to one; empty if it allows all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_ranges: Vec<String>,
}

/// What happens to the packet, as far as Services decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// One of the endpoints in use gets it.
    Delivered,
    /// It is rejected: with a TCP reset, or an ICMP port unreachable for other protocols.
    Rejected,
    /// It is dropped without reply.
    Dropped,
    /// It is not affected.
    NotAffected,
}

/// The Service port and the frontend that decide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DecidedBy {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub service: String,
    /// Name of the port; empty if it has none.
    pub port: String,
    /// The kind of frontend.
    pub frontend: FrontendKind,
}

/// The kind of a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrontendKind {
    /// A cluster IP.
    ClusterIp,
    /// An external IP.
    ExternalIp,
    /// A load-balancer IP.
    LoadBalancerIp,
    /// A node port.
    NodePort,
}

/// A reason of the verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// What it is about.
    pub stage: Stage,
    /// The stable name of the reason (`Reason::code` of the model).
    pub code: String,
    /// The reason in one sentence.
    pub text: String,
}

/// What a step is about, in the order of a packet's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Which frontend matches.
    Frontend,
    /// Whether the source may use it.
    SourceRanges,
    /// Which endpoints the traffic policy and hints allow.
    Endpoints,
    /// What happens with these endpoints.
    Delivery,
    /// Whether flows of one source stay together.
    Affinity,
    /// Whether endpoints see the source.
    Masquerading,
}

/// A frontend or endpoint that resembles the destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Nearest {
    /// How it resembles the destination: `other-protocol`, `other-port`, `node-port-other-protocol`,
    /// `node-port-not-accepted` or `endpoint`.
    pub code: String,
    /// The Service port, as `NAMESPACE/SERVICE[:PORT]`.
    pub service: String,
    /// One sentence.
    pub text: String,
}

/// An endpoint of the Service port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointReport {
    /// Its address and port.
    pub endpoint: SocketAddr,
    /// True if it may get the packet.
    pub used: bool,
    /// The stable name of the reason (`Choice::code` of the model).
    pub code: String,
    /// The reason. Continues a sentence that starts with the endpoint.
    pub text: String,
    /// True if it would see an address of this node in place of the source. Only for endpoints in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masqueraded: Option<bool>,
    /// Name of the EndpointSlice that lists it.
    pub slice: String,
    /// `NAME.NAMESPACE` of its pod, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Name of its node, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// True if it is on this node.
    pub local: bool,
}

/// Session affinity by client address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Affinity {
    /// The timeout in seconds.
    pub seconds: u32,
}

/// Whether endpoints see an address of this node in place of the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Masquerade {
    /// Which endpoints do.
    pub applies: MasqueradeUse,
    /// The stable name of the reason.
    pub code: String,
}

/// Which endpoints see an address of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MasqueradeUse {
    /// All of them. From elsewhere, endpoints at addresses of this node do not: the packet does not leave the node.
    Always,
    /// An endpoint that is itself the client (hairpin).
    Hairpin,
    /// None.
    Never,
}

/// What the kernel has, compared with what is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Programmed {
    /// True if there is no difference that concerns the packet.
    pub as_wanted: bool,
    /// The differences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<DifferenceReport>,
}

/// A difference between what is wanted and what the kernel has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DifferenceReport {
    /// The Service port, as `NAMESPACE/SERVICE[:PORT]`. `None` if the kernel does not hold its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The stable name (`Deviation::code` of the model).
    pub code: String,
    /// One sentence.
    pub text: String,
}

/// What conntrack has of the flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connections {
    /// The number of connections of the client, or of all clients if the question names none, to the destination.
    pub count: usize,
    /// True if conntrack may have more, because not all could be read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Some of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub some: Vec<ConnectionReport>,
}

/// A connection or UDP flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionReport {
    /// The client.
    pub source: SocketAddr,
    /// The endpoint. `None` if the destination is not translated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<SocketAddr>,
    /// True if the endpoint sees another address than the client's.
    pub masqueraded: bool,
    /// True if a new connection may not go to this endpoint.
    pub stale: bool,
    /// True if a reply was seen.
    pub replied: bool,
    /// Seconds until the entry expires without packets, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u32>,
}

/// A rule of another program that affects the packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Obstacle {
    /// What it does.
    pub kind: ObstacleKind,
    /// True if it affects every packet of the flow. Otherwise some of its conditions are not known here.
    pub certain: bool,
    /// The program that owns the chain.
    pub owner: String,
    /// The chain.
    pub chain: String,
    /// The rule; `None` for the policy of the chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The conditions that are not known here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only_if: Vec<String>,
    /// The endpoints whose packets are affected; empty if the packet is affected whatever its endpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<SocketAddr>,
}

/// What a rule of another program does to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObstacleKind {
    /// Drops it.
    Drops,
    /// Refuses it with an answer.
    Rejects,
    /// Translates its destination, or passes it to a socket of this node.
    Redirects,
    /// Exempts it from connection tracking, so that it is not translated.
    NotTracked,
    /// Ends the chain that leads to Services before it does, so that the packet is not translated.
    NotTranslated,
    /// Decides in a way that is not known here, such as by a queue to a program.
    NotJudged,
}

/// What a reverse-path filter drops. A strict filter drops a packet whose source has no route through the interface at which
/// the packet arrives, a loose one a packet whose source has no route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReversePath {
    /// What is dropped.
    pub drops: Filtered,
    /// True if it certainly arrives at the interface. Otherwise it may take another way.
    pub certain: bool,
    /// The interface with the filter.
    pub interface: String,
    /// The setting that decides, with its value.
    pub setting: String,
    /// The source of the packet. For an answer, the address of this node to which it is sent.
    pub address: IpAddr,
    /// The interface through which the route to the sender leads. `None` if there is no route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// The endpoints that are affected; empty if it is any endpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<SocketAddr>,
}

impl ReversePath {
    /// Returns true if the packet to an endpoint is certainly dropped.
    pub(crate) fn certainly_drops_packet_to(&self, endpoint: SocketAddr) -> bool {
        self.certain
            && self.drops == Filtered::Packet
            && (self.endpoints.is_empty() || self.endpoints.contains(&endpoint))
    }
}

/// Why this node does not send the packet to endpoints. All of it is certain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Routing {
    /// The reason.
    pub fault: RoutingFault,
    /// True if the node refuses the packet with an answer. Otherwise it drops the packet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub answers: bool,
    /// The interface without a carrier, or the one that does not forward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The endpoints that are affected; empty if it is any endpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<SocketAddr>,
}

/// What of the routes and settings stops the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RoutingFault {
    /// The node does not forward packets.
    ForwardingOff,
    /// There is no route to the endpoint.
    NoRoute,
    /// The route to the endpoint is of the type `unreachable` or `prohibit`.
    RouteRefuses,
    /// The route to the endpoint is of the type `blackhole`.
    RouteDiscards,
    /// The interface to the endpoint has no carrier.
    NoCarrier,
}

/// What a reverse-path filter drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Filtered {
    /// The packet of the client.
    Packet,
    /// The answer of the endpoint.
    Answer,
}

/// What the reader should know besides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// The stable name.
    pub code: String,
    /// One sentence.
    pub text: String,
}

impl Note {
    pub(crate) fn new(code: &str, text: impl Into<String>) -> Self {
        Self { code: code.to_owned(), text: text.into() }
    }
}
