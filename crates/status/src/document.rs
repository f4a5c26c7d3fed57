//! The state document.

pub(crate) mod event;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use event::{RecordedEvent, What};

/// What the agent does and has done, without single Services.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentState {
    /// [`VERSION`](crate::VERSION).
    pub version: u32,
    /// When the document was made, in RFC 3339.
    pub time: String,
    /// The process.
    pub agent: Agent,
    /// Whether the kernel has everything in every family, except for changes that wait for the next commit.
    pub in_sync: bool,
    /// What is wrong, the most important first.
    pub problems: Vec<Problem>,
    /// The configured mode: `nftables`, `iptables`, `ipvs` or `userspace`.
    pub mode: String,
    /// How packets come to the relay in the userspace mode: `tproxy` or `redirect`.
    pub capture: Option<String>,
    /// What `/livez` and `/readyz` say.
    pub health: Health,
    /// The known objects.
    pub objects: Objects,
    /// Whether the engine has answered in time. If not, a commit is under way, and the families are those of the last answer.
    pub engine_answered: bool,
    /// The families. Empty before the first complete state is known.
    pub families: Vec<Family>,
    /// The watches of the API server.
    pub watches: Vec<Watch>,
    /// How full the table of tracked connections is.
    pub conntrack: Option<Conntrack>,
    /// The relay of the userspace mode, if there was one since the start.
    pub relay: Option<Relay>,
    /// The configuration in effect, as a `KubeProxyConfiguration`.
    pub configuration: Value,
}

/// The process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Agent {
    /// The version that it reports.
    pub version: String,
    /// The name of its Node object.
    pub node: String,
    /// Its process ID, in its own namespace of process IDs.
    pub pid: u32,
    /// When it was started.
    pub started: Moment,
}

/// A time in the past.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Moment {
    /// The time in RFC 3339.
    pub at: String,
    /// Seconds from then until the document was made.
    pub age_seconds: f64,
}

/// Something that is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Problem {
    /// One of the codes in [`problems`](crate::problems).
    pub code: String,
    /// One sentence for the operator.
    pub text: String,
}

/// What the health server says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Health {
    /// No change waits for longer than twice the sync period.
    pub healthy: bool,
    /// Every family has been programmed once.
    pub ready: bool,
    /// The Node object was seen, is not being deleted, and has no taint of the cluster autoscaler.
    pub node_eligible: bool,
    /// What the first complete commit waits for.
    pub waiting_for: Vec<String>,
}

/// The known objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Objects {
    /// Services.
    pub services: usize,
    /// EndpointSlices.
    pub endpoint_slices: usize,
    /// Changes of Services that are not in the kernel.
    pub pending_services: usize,
    /// Changes of EndpointSlices that are not in the kernel.
    pub pending_endpoint_slices: usize,
}

/// What one family's data plane does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Family {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The mode of the active data plane.
    pub mode: String,
    /// Where its rules are, such as one of the two iptables. The mode if there is no choice.
    pub place: String,
    /// `waiting` before the first complete state is known, `inSync`, or `comparing` if everything is to be compared.
    pub sync: String,
    /// Since when: the end of the last comparison if in sync; otherwise when the kernel was last known to have everything.
    pub since: Option<Moment>,
    /// Why everything is compared: `start`, `failure`, `drift`, `settings`, `node`, `periodic` or `verification`.
    pub reason: Option<String>,
    /// Services with at least one port in this family.
    pub services: usize,
    /// Service ports.
    pub service_ports: usize,
    /// Addresses and ports at which clients reach Services.
    pub frontends: usize,
    /// Endpoints in use, counted for each Service port.
    pub endpoints: usize,
    /// Of these, the ones to which traffic with policy Cluster goes.
    pub cluster_endpoints: usize,
    /// Of these, the ones to which traffic with policy Local goes.
    pub local_endpoints: usize,
    /// Service ports without a usable endpoint on any node. Their clients are refused.
    pub ports_without_endpoints: usize,
    /// Service ports with a change that waits for the next commit.
    pub pending: usize,
    /// Service ports that are not programmed, or not with all of their endpoints. At most
    /// [`MAX_REFUSED`](Family::MAX_REFUSED) of them.
    pub refused: Vec<RefusedPort>,
    /// How many there are of these.
    pub refused_count: usize,
    /// The last commits, the newest first.
    pub syncs: Vec<Sync>,
    /// The last failures, the newest first.
    pub failures: Vec<Sync>,
    /// The last comparisons, repairs, replacements and failures, the newest first.
    pub events: Vec<RecordedEvent>,
    /// What was done since the start.
    pub totals: Totals,
    /// Changes of the rules by other programs.
    pub drift: Drift,
    /// The mode of the data plane that is to replace the active one.
    pub successor: Option<String>,
    /// The places of replaced data planes whose rules are being removed.
    pub retiring: Vec<String>,
}

impl Family {
    /// How many Service ports that are not programmed a document names for each family.
    pub const MAX_REFUSED: usize = 100;

    /// Returns true if the kernel has everything but changes that wait for the next commit.
    pub fn is_in_sync(&self) -> bool {
        self.sync == "inSync"
    }
}

/// A Service port that is not programmed, or only in part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RefusedPort {
    /// The Service port: `namespace/name:port`.
    pub service_port: String,
    /// Its protocol.
    pub protocol: String,
    /// True if clients reach it, but not every endpoint is used.
    pub in_part: bool,
    /// Why, and what to do about it.
    pub reason: String,
}

/// An attempt to write the rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Sync {
    /// When it ended.
    pub ended: Moment,
    /// The mode of the data plane.
    pub mode: String,
    /// `commit`, `replacement` by another data plane, or `collection` of what only deleted Services needed.
    pub step: String,
    /// True if everything was compared with the kernel.
    pub full: bool,
    /// Why everything was compared; see [`Family::reason`].
    pub reason: Option<String>,
    /// True if a change by another program was repaired.
    pub repaired: bool,
    /// Service ports with a change.
    pub changed: usize,
    /// Some of them.
    pub examples: Vec<String>,
    /// Changes of Services that it completed.
    pub services: usize,
    /// Changes of EndpointSlices that it completed.
    pub endpoint_slices: usize,
    /// Elements written.
    pub elements: usize,
    /// Other objects written: tables, chains, rules, sets.
    pub objects: usize,
    /// Bytes sent to the kernel.
    pub bytes: usize,
    /// How long it took.
    pub duration_seconds: f64,
    /// How much of that the kernel took.
    pub kernel_seconds: f64,
    /// Why it failed. Null after a success.
    pub error: Option<String>,
}

/// What a family's data planes have done since the start. The difference of two documents is a rate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Totals {
    /// Successful commits.
    pub syncs: u64,
    /// Failed attempts.
    pub failures: u64,
    /// Changes of Service ports that were written.
    pub changed: u64,
}

/// Changes of the rules by other programs since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Drift {
    /// How often everything was compared because another program may have changed the rules.
    pub noticed: u64,
    /// How often something had to be repaired.
    pub repaired: u64,
    /// When that was last noticed.
    pub last: Option<Moment>,
    /// When something last had to be repaired.
    pub last_repaired: Option<Moment>,
}

/// A watch of the API server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Watch {
    /// The resource, such as `services`.
    pub resource: String,
    /// Seconds since it last received anything. Null before the first list.
    pub age_seconds: Option<f64>,
    /// Requests that have failed since then. Null if none has.
    pub failure: Option<WatchFailure>,
}

/// Requests of a watch that failed, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WatchFailure {
    /// When the first of them failed.
    pub since: Moment,
    /// When the last one failed.
    pub last: Moment,
    /// Number of them.
    pub times: u32,
    /// Why the last one failed.
    pub reason: String,
}

/// How full the table of tracked connections is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Conntrack {
    /// Tracked connections.
    pub entries: u64,
    /// How many there may be.
    pub max: u64,
}

/// The relays of the userspace mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Relay {
    /// Open connections.
    pub connections: u64,
    /// Open UDP flows.
    pub flows: u64,
    /// Endpoints that failed at their last attempt.
    pub failing_endpoints: u64,
    /// Relays that take no new connections and end with their last one.
    pub draining: usize,
}
