//! What a record holds.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Something that the agent did or noticed, with its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The number of the record since the start of the agent, from 0.
    pub sequence: u64,
    /// When it happened, since the Unix epoch, in whole microseconds.
    pub at: Duration,
    /// What happened.
    pub entry: Entry,
}

/// Something that the agent did or noticed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "camelCase")]
pub enum Entry {
    /// An object came from the API server.
    Object(ObjectEvent),
    /// The forwarding of a Service port changed.
    Change(Change),
    /// A data plane wrote, or failed to.
    Commit(Commit),
    /// Another program may have changed the rules.
    Drift(Drift),
    /// Something else.
    Note(Note),
}

/// An object that came from the API server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectEvent {
    /// What happened to the object.
    pub verb: Verb,
    /// Its kind, such as `Service`.
    pub kind: String,
    /// Its namespace; empty if the kind has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its `resourceVersion`; empty for a deletion.
    pub resource_version: String,
    /// True if what the agent keeps of the object changed.
    pub changed: bool,
    /// The first four fields that could not be used.
    pub faults: Vec<String>,
    /// What the agent keeps of the object, in brief. Empty if that did not change, and for a deletion.
    pub kept: String,
}

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verb {
    /// It was added or changed.
    #[default]
    Applied,
    /// It was deleted.
    Deleted,
}

/// A change of a Service port in one family.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Change {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The Service port: `namespace/name:port`.
    pub service_port: String,
    /// Its protocol.
    pub protocol: String,
    /// What it had before. `None` if it is new.
    pub before: Option<Size>,
    /// What it has. `None` if it was removed.
    pub after: Option<Size>,
    /// What differs, in brief.
    pub difference: String,
}

/// How much a Service port has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Size {
    /// Frontends.
    pub frontends: u64,
    /// Endpoints for traffic that may go to any node.
    pub cluster: u64,
    /// Endpoints for traffic that must stay on this node.
    pub local: u64,
}

/// An attempt of a data plane to write.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Commit {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The mode of the data plane.
    pub mode: String,
    /// `commit`, `during-comparison`, `replacement`, `collection`, or `put-off` for a periodic comparison that other programs have
    /// disturbed.
    pub step: String,
    /// Why everything was compared. `None` if only changes were written.
    pub reason: Option<String>,
    /// True if everything was compared with the kernel.
    pub full: bool,
    /// True if a change by another program was repaired.
    pub repaired: bool,
    /// True if a comparison that was to verify everything found no difference.
    pub verified: bool,
    /// Service ports with a change.
    pub changed: u64,
    /// The first four of them.
    pub service_ports: Vec<String>,
    /// Service ports that could not be programmed, or only in part.
    pub refused: u64,
    /// Elements written.
    pub elements: u64,
    /// Other objects written: tables, chains, rules, sets.
    pub objects: u64,
    /// Bytes sent to the kernel.
    pub bytes: u64,
    /// The first of what was written, in the words of nft, `iptables-restore`, ipvsadm, ipset or ip. If there is more, `...` is the
    /// last.
    pub messages: Vec<String>,
    /// How long it took, in microseconds.
    pub duration_us: u64,
    /// How much of that the kernel took, in microseconds.
    pub kernel_us: u64,
    /// The answer of the kernel, or why there was none. `None` after a success.
    pub error: Option<String>,
}

/// A suspected change of the rules by another program.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Drift {
    /// `IPv4` or `IPv6`.
    pub family: String,
}

/// Something else that explains later records.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Note {
    /// What it is about, in one word.
    pub about: String,
    /// One sentence.
    pub text: String,
}
