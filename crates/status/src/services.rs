//! Services as they are programmed, one page at a time.

use serde::{Deserialize, Serialize};

/// A page of Services in the order of their names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePage {
    /// [`VERSION`](crate::VERSION).
    pub version: u32,
    /// When the page was made, in RFC 3339.
    pub time: String,
    /// The Services.
    pub services: Vec<Service>,
    /// The value of the query parameter `after` that asks for the next page. Null on the last page.
    pub next: Option<String>,
    /// Why counters that were asked for are missing. Null if none are, or if they were not asked for.
    pub not_counted: Option<String>,
    /// When the counters were read, in RFC 3339. Null if they were not.
    pub counted_at: Option<String>,
}

/// A Service with its ports in both families.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Service {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The port of its health check server on this node.
    pub health_check_node_port: Option<u16>,
    /// Its ports, IPv4 before IPv6.
    pub ports: Vec<ServicePort>,
}

/// A Service port in one family.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The name; empty if it has none.
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Where clients reach it.
    pub frontends: Vec<Frontend>,
    /// `Cluster` or `Local`.
    pub internal_traffic_policy: String,
    /// `Cluster` or `Local`.
    pub external_traffic_policy: String,
    /// The timeout of session affinity by client address, in seconds. Null without affinity.
    pub session_affinity_seconds: Option<u32>,
    /// Ranges whose clients may reach the load-balancer IPs. Empty if all may.
    pub source_ranges: Vec<String>,
    /// Whether any node has a usable endpoint. If none has, clients are refused.
    pub has_endpoints: bool,
    /// The endpoints that this node uses.
    pub endpoints: Vec<Endpoint>,
    /// What was counted. Null unless it was asked for, and if nothing is counted.
    pub counters: Option<Counters>,
    /// Every endpoint that EndpointSlices list for it, with the reasons, those in use first. Null unless one Service was
    /// asked for. At most [`MAX_CANDIDATES`](ServicePort::MAX_CANDIDATES), and for the first
    /// [`MAX_EXPLAINED`](Service::MAX_EXPLAINED) ports of the Service only.
    pub candidates: Option<Vec<Candidate>>,
    /// Why it is not programmed, or not with all endpoints. Null if it is.
    pub refused: Option<String>,
    /// True if it is programmed, but not with all endpoints.
    pub refused_in_part: bool,
}

impl Service {
    /// For how many ports of a Service a page gives the reasons of the selection.
    pub const MAX_EXPLAINED: usize = 20;
}

impl ServicePort {
    /// How many candidates a Service port names.
    pub const MAX_CANDIDATES: usize = 1_000;
}

/// Where clients reach a Service port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Frontend {
    /// `clusterIP`, `externalIP`, `loadBalancerIP` or `nodePort`.
    pub kind: String,
    /// The address. Null for a node port.
    pub address: Option<String>,
    /// The port.
    pub port: u16,
}

/// An endpoint that this node uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    /// Address and port.
    pub address: String,
    /// True if traffic with policy Cluster goes to it.
    pub cluster: bool,
    /// True if traffic with policy Local goes to it.
    pub local: bool,
    /// What went to it. Null unless it was asked for, and if nothing is counted.
    pub counters: Option<Passed>,
}

/// What was counted of a Service port in one family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Counters {
    /// What went to endpoints. Null if the mode does not count it.
    pub passed: Option<Passed>,
    /// What did not.
    pub refused: Refused,
}

/// What went to endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Passed {
    /// New connections; flows for UDP.
    pub connections: u64,
    /// Packets from clients. Null if the mode counts connections only.
    pub packets: Option<u64>,
    /// Bytes in these packets. Null if the mode counts connections only.
    pub bytes: Option<u64>,
}

/// Packets that did not go to an endpoint, by reason. A number is null if the mode does not count it, or has nothing to count
/// at present. A client that tries again is counted again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Refused {
    /// Rejected: no endpoint.
    pub no_endpoint: Option<u64>,
    /// Dropped: no endpoint on this node, and the traffic must stay here.
    pub no_local_endpoint: Option<u64>,
    /// Dropped: the source ranges do not allow the client.
    pub source_range: Option<u64>,
}

impl Refused {
    /// Returns all of them together.
    pub fn total(&self) -> u64 {
        [self.no_endpoint, self.no_local_endpoint, self.source_range]
            .into_iter()
            .flatten()
            .fold(0, u64::saturating_add)
    }
}

/// An endpoint that an EndpointSlice lists, in use or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Candidate {
    /// Address and port.
    pub address: String,
    /// The name of the EndpointSlice.
    pub slice: String,
    /// True if it is on this node.
    pub on_this_node: bool,
    /// Whether traffic with policy Cluster goes to it, and why.
    pub cluster: Choice,
    /// Whether traffic with policy Local goes to it, and why.
    pub local: Choice,
}

/// Whether an endpoint is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Choice {
    /// True if it is.
    pub used: bool,
    /// The stable name of the reason.
    pub code: String,
    /// The reason, as the end of a sentence that starts with the endpoint.
    pub text: String,
}

impl Candidate {
    /// The code of a list of endpoints that no traffic uses.
    pub const NO_TRAFFIC: &str = "endpoint-list-unused";

    /// Returns the choice that explains why no traffic goes to the endpoint. `None` if some does.
    pub fn left_out(&self) -> Option<&Choice> {
        let is_unused = !self.cluster.used && !self.local.used;
        let is_of_cluster = self.cluster.code != Self::NO_TRAFFIC;
        is_unused.then_some(if is_of_cluster { &self.cluster } else { &self.local })
    }
}
