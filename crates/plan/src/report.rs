//! The report. Codes are for programs and stay the same when a text changes.

use serde::{Deserialize, Serialize};

use portolan_model::Family;
use portolan_model::table::Entry;

/// Version of the form of a [`Report`]. It changes if a field or code is removed or gets another meaning; new ones may be
/// added without.
pub const VERSION: u32 = 1;

/// What would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// Name of the node.
    pub node: String,
    /// The mode that would program the node.
    pub mode: String,
    /// What the wanted state is compared with.
    pub against: Against,
    /// True if anything would change.
    pub changes: bool,
    /// The families that the node serves.
    pub families: Vec<FamilyPlan>,
    /// Kernel settings that a start would write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<SettingChange>,
    /// What a start would remove after its first commit: rules of other modes and of kube-proxy. In a comparison with a snapshot
    /// that is the mode whose rules another one replaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    /// What the reader should know besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// What the wanted state is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Against {
    /// The kernel of this node.
    Kernel,
    /// A kernel without rules for Services.
    Nothing,
    /// Other objects.
    Manifests,
    /// What was programmed on the node of a snapshot.
    Snapshot,
}

/// What would change of one family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FamilyPlan {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// Whose rules the kernel has, or had, such as `iptables`. `None` if it has none, or was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<String>,
    /// How many Service ports and endpoints would change.
    pub counts: Counts,
    /// The Service ports that would change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceChange>,
    /// Changes of the addresses that accept node ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_ports: Vec<Change>,
    /// What would be written in the terms of the kernel. `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<RulesPlan>,
}

/// How much would change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Service ports that are not there.
    pub added: usize,
    /// Service ports, or frontends without a Service port, that are not wanted.
    pub removed: usize,
    /// Service ports that are there in another way.
    pub changed: usize,
    /// Service ports that stay as they are.
    pub unchanged: usize,
    /// Endpoints that Service ports would get.
    pub endpoints_added: usize,
    /// Endpoints that Service ports would lose.
    pub endpoints_removed: usize,
}

/// What happens to a Service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// It is not there.
    Add,
    /// It is not wanted.
    Remove,
    /// It is there in another way.
    Change,
}

/// What would change of one Service port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceChange {
    /// The Service port, as `namespace/service:port`. `None` if the kernel does not hold its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The protocol.
    pub protocol: String,
    /// What happens.
    pub action: Action,
    /// The frontends, if the Service port is added or removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frontends: Vec<String>,
    /// Number of endpoints that it gets.
    pub endpoints_added: usize,
    /// Number of endpoints that it loses.
    pub endpoints_removed: usize,
    /// Each difference, if the Service port is changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// What kind of difference it is.
    pub code: String,
    /// The difference in words.
    pub text: String,
}

impl Change {
    pub(crate) fn new(code: &str, text: String) -> Self {
        Self { code: code.to_owned(), text }
    }
}

/// What would be written in the terms of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RulesPlan {
    /// Number of lines.
    pub count: usize,
    /// The lines in the order of writing. Empty if they were not asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<String>,
}

/// A kernel setting that would be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SettingChange {
    /// Its name, as sysctl has it.
    pub name: String,
    /// The present value.
    pub present: u64,
    /// The value that would be written.
    pub wanted: u64,
}

/// Something that the reader should know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// What kind of note it is.
    pub code: String,
    /// The note.
    pub text: String,
}

impl FamilyPlan {
    /// Returns a plan without changes.
    pub fn nothing(family: Family) -> Self {
        Self {
            family: family.to_string(),
            present: None,
            counts: Counts::default(),
            services: Vec::new(),
            node_ports: Vec::new(),
            rules: None,
        }
    }

    /// Returns true if nothing would change.
    pub fn is_empty(&self) -> bool {
        let writes = self.rules.as_ref().is_some_and(|rules| rules.count > 0);
        self.services.is_empty() && self.node_ports.is_empty() && !writes
    }
}

impl Counts {
    pub(crate) fn of(services: &[ServiceChange], wanted: &[Entry]) -> Self {
        let count = |action| services.iter().filter(|service| service.action == action).count();
        let (added, changed) = (count(Action::Add), count(Action::Change));
        let programmed = wanted.iter().filter(|(_, forwarding)| !forwarding.frontends.is_empty()).count();
        Self {
            added,
            removed: count(Action::Remove),
            changed,
            unchanged: programmed.saturating_sub(added).saturating_sub(changed),
            endpoints_added: services.iter().map(|service| service.endpoints_added).sum(),
            endpoints_removed: services.iter().map(|service| service.endpoints_removed).sum(),
        }
    }
}
