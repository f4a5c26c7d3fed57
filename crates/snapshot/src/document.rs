//! The content of a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, UNIX_EPOCH};

use portolan_model::Family;
use portolan_model::catalog;
use portolan_node::time::rfc3339;
use portolan_recorder::{Entry, Record};
use portolan_status::AgentState;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::programmed::Programmed;
use crate::rules::Chain;

/// What [`Snapshot::format`] says.
pub const FORMAT: &str = "portolan-snapshot";
/// The version of the format.
pub const VERSION: u32 = 1;

/// What an agent knows and has done, and what the kernel of its node has. `O` are the objects, `R` the records of the
/// history: lists for a reader, and what the lists are made from for the agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot<O = Vec<Value>, R = Vec<Recorded>> {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// When the agent made its part, in RFC 3339.
    pub time: String,
    /// The state document, with the configuration in effect.
    pub state: AgentState,
    /// The node.
    pub node: Node,
    /// Where the agent reaches the API server. No Service gets these addresses and ports.
    pub api_server: ApiServer,
    /// The Services, EndpointSlices, ServiceCIDRs and the Node of the agent, as manifests ([`crate::objects`]).
    pub objects: O,
    /// Addresses and ports of the endpoints that passive health checks have set aside.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub set_aside: BTreeSet<SocketAddr>,
    /// The last syncs.
    pub history: History<R>,
    /// The kernel's release and version.
    #[serde(default)]
    pub kernel: Kernel,
    /// What is programmed for Services, by family.
    #[serde(default)]
    pub programmed: Vec<Programmed>,
    /// The firewall rules of programs that know nothing of Services. `None` if they were not read.
    #[serde(default)]
    pub rules: Option<Vec<Chain>>,
    /// Counters of conntrack, the sum over all processors, by their names in `/proc/net/stat/nf_conntrack`.
    #[serde(default)]
    pub conntrack: BTreeMap<String, u64>,
    /// The report of `portolan doctor`.
    #[serde(default)]
    pub doctor: Value,
    /// What could not be read.
    #[serde(default)]
    pub unread: Vec<Unread>,
}

/// The node as the agent sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Node {
    /// The name of its Node object.
    pub name: String,
    /// The addresses of its interfaces, without those that the IPVS mode adds.
    pub addresses: Vec<IpAddr>,
    /// The families that the agent serves: `IPv4`, `IPv6`.
    pub families: Vec<String>,
}

/// Where the agent reaches the API server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiServer {
    /// Addresses and ports to which its clients connect.
    pub sockets: BTreeSet<SocketAddr>,
    /// Addresses that no Service may have on any port.
    pub addresses: BTreeSet<IpAddr>,
    /// Node ports that no Service may have.
    pub node_ports: Vec<NodePort>,
}

/// A node port of a family.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePort {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The port.
    pub port: u16,
}

/// The history of the last syncs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct History<R = Vec<Recorded>> {
    /// The limit of the ring in bytes of memory. 0 if nothing is recorded.
    pub limit: usize,
    /// Number of records since the start of the agent, those that were dropped included.
    pub total: u64,
    /// The records that are left, the oldest first.
    pub records: R,
}

/// A record of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recorded {
    /// Its number since the start of the agent, from 0.
    pub sequence: u64,
    /// When it happened, in RFC 3339.
    pub time: String,
    /// What happened.
    #[serde(flatten)]
    pub entry: Entry,
}

/// The kernel, as `uname(2)` returns it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Kernel {
    /// Such as `6.1.0-18-amd64`.
    pub release: String,
    /// The version of the build.
    pub version: String,
    /// The architecture.
    pub machine: String,
}

/// Something that could not be read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Unread {
    /// What.
    pub what: String,
    /// Why.
    pub reason: String,
}

impl Snapshot {
    /// Returns the families that the agent serves. Unknown names are left out.
    pub fn families(&self) -> Vec<Family> {
        self.node.families.iter().filter_map(|name| Family::named(name)).collect()
    }
}

impl From<&catalog::ApiServer> for ApiServer {
    fn from(of: &catalog::ApiServer) -> Self {
        let node_ports = of.node_ports.iter();
        let node_port =
            |(family, port): &(Family, u16)| NodePort { family: family.name().into(), port: *port };
        Self {
            sockets: of.sockets.clone(),
            addresses: of.addresses.clone(),
            node_ports: node_ports.map(node_port).collect(),
        }
    }
}

impl From<&ApiServer> for catalog::ApiServer {
    fn from(of: &ApiServer) -> Self {
        let node_port = |at: &NodePort| Some((Family::named(&at.family)?, at.port));
        Self {
            sockets: of.sockets.clone(),
            addresses: of.addresses.clone(),
            node_ports: of.node_ports.iter().filter_map(node_port).collect(),
        }
    }
}

impl From<Record> for Recorded {
    fn from(record: Record) -> Self {
        let at = UNIX_EPOCH.checked_add(record.at).unwrap_or(UNIX_EPOCH + Duration::MAX / 2);
        Self { sequence: record.sequence, time: rfc3339(at), entry: record.entry }
    }
}
