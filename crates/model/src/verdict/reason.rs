//! The reasons of a verdict: one variant for each rule that can decide something.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::catalog::{LeftOut, WhyLeftOut};
use crate::selection::{Choice, HintKind, HintUse};
use crate::{Family, Frontend, Protocol, ServicePortName};

/// The annotation of Services whose endpoints are to see the client's address.
const KEEP_CLIENT_ADDRESS: &str = "portolan.dev/userspace-keep-client-address";

/// A rule that applied to a packet.
///
/// The [`Display`](fmt::Display) text is for operators. It names the field of the Service or of the configuration that
/// causes the rule. [`code`](Self::code) is for programs and stays the same when a text changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The table is for the other family.
    OtherFamily {
        /// The family of the table.
        table: Family,
    },
    /// A flow that conntrack already translates goes on to its endpoint.
    Established {
        /// The endpoint of the flow.
        endpoint: SocketAddr,
    },
    /// A flow that conntrack knows without a translation.
    EstablishedNotTranslated,

    /// A Service claims the destination and does not get it on this node. Added by
    /// [`Verdict::with_left_out`](super::Verdict::with_left_out).
    LeftOut(LeftOut),
    /// A frontend matches.
    Matched {
        /// The Service port.
        name: Arc<ServicePortName>,
        /// The frontend.
        frontend: Frontend,
    },
    /// No frontend matches. The destination is a Service's address, but the Service has no such port.
    OtherPort {
        /// A Service port at this address.
        name: Arc<ServicePortName>,
        /// Its frontend at this address.
        frontend: Frontend,
        /// The protocol of the packet.
        protocol: Protocol,
        /// The port of the packet.
        port: u16,
    },
    /// No frontend matches. The destination is in a service CIDR, but no Service has it.
    UnusedAddress {
        /// The destination.
        address: IpAddr,
        /// The service CIDR.
        cidr: IpNet,
    },
    /// No frontend matches, and the destination is no address of Services.
    NoFrontend {
        /// The destination.
        destination: SocketAddr,
        /// The protocol of the packet.
        protocol: Protocol,
    },
    /// A Service has this node port, but this address of the node does not accept node ports.
    NodePortNotAccepted {
        /// The Service port.
        name: Arc<ServicePortName>,
        /// The destination.
        destination: SocketAddr,
    },
    /// Mode difference: a node port without usable endpoints is stopped at every address of the node.
    NodePortStopped,
    /// Packets to this node's own addresses that no frontend matches are left to the node.
    LeftToNode {
        /// The destination.
        address: IpAddr,
    },
    /// Mode difference: packets that no frontend matches are left alone.
    StraysIgnored,
    /// Mode difference: every address of a Service is local to this node, so its other ports are rejected.
    RefusedAtServiceAddress,

    /// The source is in a source range of the load-balancer IP.
    SourceInRange {
        /// The source.
        source: IpAddr,
        /// The range.
        range: IpNet,
    },
    /// The source is a load-balancer IP of the Service, and the source ranges contain this node's address.
    SourceIsLoadBalancerIp {
        /// The source.
        source: IpAddr,
        /// The address of this node.
        node: IpAddr,
    },
    /// The source is in none of the source ranges of the load-balancer IP.
    SourceOutsideRanges {
        /// The source.
        source: IpAddr,
    },
    /// The load-balancer IP has source ranges, but none of this family can be parsed.
    SourceRangesUnreadable,
    /// Mode difference: source ranges are not checked, because the Service port has no endpoints.
    SourceRangesNotChecked,

    /// Traffic policy Cluster: all endpoints.
    ClusterPolicy(Traffic),
    /// Traffic policy Local: endpoints on this node only.
    LocalPolicy(Traffic),
    /// External policy Local does not apply to pods.
    ShortCutForPods,
    /// External policy Local does not apply to this node itself.
    ShortCutForNode,
    /// Mode difference: with endpoints on this node, external policy Local applies to pods and this node, too.
    LocalPolicyForAll,
    /// The use of topology hints. Added by [`Verdict::with_endpoints`](super::Verdict::with_endpoints).
    Hints {
        /// The kind.
        kind: HintKind,
        /// The use.
        used: HintUse,
    },
    /// The choice of one endpoint. Added by [`Verdict::with_endpoints`](super::Verdict::with_endpoints).
    Endpoint {
        /// The address and port.
        endpoint: SocketAddr,
        /// The choice.
        choice: Choice,
    },

    /// Mode difference: SCTP is rejected.
    SctpNotCarried,
    /// Rejected: there is no usable endpoint on any node.
    NoEndpoints,
    /// Dropped: a Local policy allows no endpoint, and other nodes have some.
    EndpointsElsewhere(Traffic),
    /// Mode difference: packets of this node are neither rejected nor dropped but leave the node.
    OwnTrafficLeaves,
    /// One of the endpoints gets the packet.
    Balanced {
        /// The number of endpoints.
        count: usize,
    },
    /// Flows of one source go to one endpoint.
    SessionAffinity {
        /// The timeout in seconds.
        seconds: u32,
        /// Mode difference: true if affinity is kept for each frontend, false if for the whole Service port.
        per_frontend: bool,
    },

    /// Masqueraded: all traffic to cluster IPs is.
    MasqueradeAll,
    /// Masqueraded: the source is outside the pods.
    MasqueradeFromOutside,
    /// Masqueraded: external policy Cluster.
    MasqueradeExternal,
    /// Masqueraded: traffic of this node itself that a Local policy does not apply to.
    MasqueradeOwnTraffic,
    /// Mode difference: endpoints see the relay.
    MasqueradeByRelay,
    /// Masqueraded if the endpoint connects to itself.
    MasqueradeHairpin {
        /// The endpoint that is also the source.
        endpoint: SocketAddr,
    },
    /// Mode difference: masqueraded if an endpoint of another node connects to itself through this node.
    MasqueradeHairpinElsewhere {
        /// The endpoint that is also the source.
        endpoint: SocketAddr,
    },
    /// Not masqueraded if this endpoint gets the packet, which comes from elsewhere: the endpoint is an address of this node.
    SourceKeptOnNode {
        /// The endpoint.
        endpoint: SocketAddr,
    },
    /// Mode difference: not masqueraded if this endpoint gets the packet, because the Service asks for it and the endpoint is on
    /// this node.
    SourceKeptByRelay {
        /// The endpoint.
        endpoint: SocketAddr,
    },
    /// Not masqueraded.
    SourceKept(SourceKept),
}

/// The two kinds of traffic, each with a traffic policy of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Traffic {
    /// To cluster IPs.
    Internal,
    /// To all other frontends.
    External,
}

/// Why endpoints see the source address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceKept {
    /// The source is a pod.
    Pod,
    /// There is no local detector, so that no source counts as outside the pods.
    NoDetector,
    /// External policy Local keeps the source.
    LocalPolicy,
    /// Mode difference: the Service asks for it.
    OnRequest,
}

impl Traffic {
    /// Returns the field of a Service that has the policy.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Internal => "internalTrafficPolicy",
            Self::External => "externalTrafficPolicy",
        }
    }
}

impl Reason {
    /// Returns true if the reason selects one of the lists of endpoints.
    pub const fn selects_endpoints(&self) -> bool {
        matches!(
            self,
            Self::ClusterPolicy(_)
                | Self::LocalPolicy(_)
                | Self::ShortCutForPods
                | Self::ShortCutForNode
                | Self::LocalPolicyForAll
        )
    }

    /// Returns true if no frontend was looked up, because the packet is of another family or of an established flow.
    pub(super) const fn precedes_lookup(&self) -> bool {
        matches!(self, Self::OtherFamily { .. } | Self::Established { .. } | Self::EstablishedNotTranslated)
    }

    /// Returns the stable name for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::OtherFamily { .. } => "other-family",
            Self::Established { .. } => "established",
            Self::EstablishedNotTranslated => "established-not-translated",
            Self::LeftOut(left_out) => match left_out.why {
                WhyLeftOut::ApiServer => "left-out-api-server",
                WhyLeftOut::Address(_) => "left-out-address",
                WhyLeftOut::Conflict(_) => "left-out-conflict",
            },
            Self::Matched { .. } => "matched",
            Self::OtherPort { .. } => "other-port",
            Self::UnusedAddress { .. } => "unused-address",
            Self::NoFrontend { .. } => "no-frontend",
            Self::NodePortNotAccepted { .. } => "node-port-not-accepted",
            Self::NodePortStopped => "node-port-stopped",
            Self::LeftToNode { .. } => "left-to-node",
            Self::StraysIgnored => "strays-ignored",
            Self::RefusedAtServiceAddress => "refused-at-service-address",
            Self::SourceInRange { .. } => "source-in-range",
            Self::SourceIsLoadBalancerIp { .. } => "source-is-load-balancer-ip",
            Self::SourceOutsideRanges { .. } => "source-outside-ranges",
            Self::SourceRangesUnreadable => "source-ranges-unreadable",
            Self::SourceRangesNotChecked => "source-ranges-not-checked",
            Self::ClusterPolicy(Traffic::Internal) => "internal-policy-cluster",
            Self::ClusterPolicy(Traffic::External) => "external-policy-cluster",
            Self::LocalPolicy(Traffic::Internal) => "internal-policy-local",
            Self::LocalPolicy(Traffic::External) => "external-policy-local",
            Self::ShortCutForPods => "short-cut-for-pods",
            Self::ShortCutForNode => "short-cut-for-node",
            Self::LocalPolicyForAll => "external-policy-local-for-all",
            Self::Hints { kind, used } => used.code(*kind),
            Self::Endpoint { choice, .. } => choice.code(),
            Self::SctpNotCarried => "sctp-not-carried",
            Self::NoEndpoints => "no-endpoints",
            Self::EndpointsElsewhere(Traffic::Internal) => "internal-endpoints-elsewhere",
            Self::EndpointsElsewhere(Traffic::External) => "external-endpoints-elsewhere",
            Self::OwnTrafficLeaves => "own-traffic-leaves",
            Self::Balanced { .. } => "balanced",
            Self::SessionAffinity { .. } => "session-affinity",
            Self::MasqueradeAll => "masquerade-all",
            Self::MasqueradeFromOutside => "masquerade-from-outside",
            Self::MasqueradeExternal => "masquerade-external",
            Self::MasqueradeOwnTraffic => "masquerade-own-traffic",
            Self::MasqueradeByRelay => "masquerade-by-relay",
            Self::MasqueradeHairpin { .. } => "masquerade-hairpin",
            Self::MasqueradeHairpinElsewhere { .. } => "masquerade-hairpin-elsewhere",
            Self::SourceKeptOnNode { .. } => "source-kept-on-node",
            Self::SourceKeptByRelay { .. } => "source-kept-by-relay",
            Self::SourceKept(SourceKept::Pod) => "source-kept-pod",
            Self::SourceKept(SourceKept::NoDetector) => "source-kept-no-detector",
            Self::SourceKept(SourceKept::LocalPolicy) => "source-kept-local-policy",
            Self::SourceKept(SourceKept::OnRequest) => "source-kept-on-request",
        }
    }

    /// Writes the reasons of the lookup of a frontend.
    fn lookup(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherFamily { table } => write!(f, "the packet is not {table}, but this table is"),
            Self::Established { endpoint } => write!(
                f,
                "the flow is established: conntrack translates it to {endpoint}, and changes of Services do not \
                 affect it"
            ),
            Self::EstablishedNotTranslated => f.write_str(
                "the flow is established and conntrack does not translate it: Services do not affect it",
            ),
            Self::LeftOut(LeftOut { name, frontend, why }) => {
                write!(f, "{frontend} of {name} ({}) is left out on this node: {why}", name.protocol)
            }
            Self::Matched { name, frontend } => {
                write!(f, "the destination is {frontend} of {name} ({})", name.protocol)
            }
            Self::OtherPort { name, frontend, protocol, port } => write!(
                f,
                "the destination is the address of {}/{} ({frontend}), but no Service has port {port}/{protocol} at \
                 this address",
                name.namespace, name.service
            ),
            Self::UnusedAddress { address, cidr } => {
                write!(f, "{address} is in the service CIDR {cidr}, but no Service has this cluster IP")
            }
            Self::NoFrontend { destination, protocol } => {
                write!(f, "no Service has the address and port {destination} ({protocol})")
            }
            Self::NodePortNotAccepted { name, destination } => {
                let port = destination.port();
                write!(f, "{port} is a node port of {name}, but {} does not accept node ports ", destination.ip())?;
                f.write_str(if destination.ip().is_loopback() {
                    "(it is a loopback address)"
                } else {
                    "(nodePortAddresses)"
                })
            }
            Self::NodePortStopped => f.write_str(
                "in this mode a node port without usable endpoints is stopped at every address of the node",
            ),
            Self::LeftToNode { address } => {
                write!(f, "{address} is an address of this node, so the packet is left to the node")
            }
            Self::StraysIgnored => f.write_str("in this mode packets that match no frontend are left alone"),
            Self::RefusedAtServiceAddress => f.write_str(
                "in this mode the addresses of Services are local to this node, so their other ports are rejected",
            ),
            other => other.check(f),
        }
    }

    /// Writes the reasons of source ranges and traffic policies.
    fn check(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SourceInRange { source, range } => {
                write!(f, "loadBalancerSourceRanges: {range} contains the source {source}")
            }
            Self::SourceIsLoadBalancerIp { source, node } => write!(
                f,
                "loadBalancerSourceRanges: a range contains this node's address {node}, so the Service's \
                 load-balancer IP {source} is also allowed as source"
            ),
            Self::SourceOutsideRanges { source } => {
                write!(f, "loadBalancerSourceRanges: no range contains the source {source}, so the packet is dropped")
            }
            Self::SourceRangesUnreadable => f.write_str(
                "loadBalancerSourceRanges: no range of this family can be parsed, so no source is allowed",
            ),
            Self::SourceRangesNotChecked => f.write_str(
                "loadBalancerSourceRanges: in this mode they are not checked, because there are no endpoints",
            ),
            Self::ClusterPolicy(traffic) => {
                write!(f, "{}: Cluster: endpoints of all nodes are used", traffic.field())
            }
            Self::LocalPolicy(traffic) => {
                write!(f, "{}: Local: only endpoints of this node are used", traffic.field())
            }
            Self::ShortCutForPods => f.write_str(
                "externalTrafficPolicy: Local does not apply to pods (detectLocalMode): endpoints of all nodes are \
                 used",
            ),
            Self::ShortCutForNode => f.write_str(
                "externalTrafficPolicy: Local does not apply to this node's own packets: endpoints of all nodes are \
                 used",
            ),
            Self::LocalPolicyForAll => f.write_str(
                "externalTrafficPolicy: Local: in this mode it also applies to pods and this node, because this node \
                 has endpoints",
            ),
            Self::Hints { kind, used } => {
                write!(f, "{} (topology hints): ", kind.field())?;
                match used {
                    HintUse::Absent => f.write_str("no ready endpoint has them"),
                    HintUse::Followed => write!(f, "endpoints for other {kind}s are left out"),
                    HintUse::Superseded => f.write_str("ignored, because hints.forNodes is followed"),
                    HintUse::Incomplete => f.write_str("ignored, because a ready endpoint has none"),
                    HintUse::NoneHere => write!(f, "ignored, because none names this {kind}"),
                }
            }
            Self::Endpoint { endpoint, choice } => write!(f, "endpoint {endpoint} {choice}"),
            other => other.delivery(f),
        }
    }

    /// Writes the reasons of the outcome and of masquerading.
    fn delivery(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SctpNotCarried => f.write_str("this mode does not carry SCTP, so the packet is rejected"),
            Self::NoEndpoints => {
                f.write_str("no node has a usable endpoint of this Service port, so the packet is rejected")
            }
            Self::EndpointsElsewhere(traffic) => write!(
                f,
                "{}: Local: usable endpoints are on other nodes only, so the packet is dropped",
                traffic.field()
            ),
            Self::OwnTrafficLeaves => f.write_str(
                "in this mode packets of this node are not stopped at external addresses without usable endpoints: \
                 the packet leaves the node",
            ),
            Self::Balanced { count: 1 } => f.write_str("the only endpoint gets the packet"),
            Self::Balanced { count } => write!(f, "one of {count} endpoints gets the packet"),
            Self::SessionAffinity { seconds, per_frontend } => {
                write!(f, "sessionAffinity: ClientIP: flows of a source go to the same endpoint for {seconds} s")?;
                f.write_str(if *per_frontend { ", in this mode for each frontend" } else { "" })
            }
            Self::MasqueradeAll => {
                f.write_str("masquerading: masqueradeAll applies to all packets to cluster IPs")
            }
            Self::MasqueradeFromOutside => {
                f.write_str("masquerading: the source is not a pod (detectLocalMode)")
            }
            Self::MasqueradeExternal => {
                f.write_str("masquerading: externalTrafficPolicy: Cluster replaces the source")
            }
            Self::MasqueradeOwnTraffic => f.write_str("masquerading: the source is an address of this node"),
            Self::MasqueradeByRelay => {
                f.write_str("masquerading: in this mode endpoints see the address of the relay on this node")
            }
            Self::MasqueradeHairpin { endpoint } => {
                write!(f, "masquerading if {endpoint} gets the packet: it is also the source (hairpin)")
            }
            Self::MasqueradeHairpinElsewhere { endpoint } => write!(
                f,
                "masquerading if {endpoint} gets the packet: it is also the source (hairpin; in this mode also if it \
                 is on another node)"
            ),
            Self::SourceKeptOnNode { endpoint } => write!(
                f,
                "no masquerading if {endpoint} gets the packet: it is an address of this node, which the packet does \
                 not leave"
            ),
            Self::SourceKeptByRelay { endpoint } => write!(
                f,
                "no masquerading if {endpoint} gets the packet: it is on this node, and the Service's annotation \
                 {KEEP_CLIENT_ADDRESS} keeps the source there"
            ),
            Self::SourceKept(SourceKept::Pod) => {
                f.write_str("no masquerading: the source is a pod (detectLocalMode)")
            }
            Self::SourceKept(SourceKept::NoDetector) => {
                f.write_str("no masquerading: detectLocalMode is not available, so no source is outside the pods")
            }
            Self::SourceKept(SourceKept::LocalPolicy) => {
                f.write_str("no masquerading: externalTrafficPolicy: Local keeps the source")
            }
            Self::SourceKept(SourceKept::OnRequest) => {
                write!(f, "no masquerading: the Service's annotation {KEEP_CLIENT_ADDRESS} keeps the source")
            }
            // All other reasons are written by the functions that call this one.
            other => f.write_str(other.code()),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lookup(f)
    }
}
