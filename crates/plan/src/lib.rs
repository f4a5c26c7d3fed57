//! What would change on a node: `portolan plan`.
//!
//! What is there and what is wanted go in, a [`Report`] comes out. What is there is one of these ([`Present`]):
//!
//! - what was read from the kernel ([`Observed`]), written by this program or by kube-proxy;
//! - nothing;
//! - the forwarding table of other objects.
//!
//! ```text
//! Present ─┐
//!          ├─ family() ─> FamilyPlan ─┐
//! wanted ──┘                          ├─> Report ──text──> lines for people
//!   rules, kernel settings, leftovers ┘
//! ```
//!
//! - `services` compares Service ports.
//! - `node_ports` compares the addresses that accept node ports.
//! - `report` has the report. Its codes and the names of its fields stay the same while [`VERSION`] does.
//!
//! The caller adds what is not in the terms of Services: the rules that a commit would write, kernel settings, and what a
//! start removes of other modes.
//!
//! The crate is pure. It must not know I/O, how modes program rules, the API server, or command lines.

mod node_ports;
mod report;
mod services;
mod text;

use std::net::IpAddr;

use portolan_model::Family;
use portolan_model::observed::{Fact, NodePortReach, Observed};
use portolan_model::table::Entry;

pub use report::{
    Action, Against, Change, Counts, FamilyPlan, Note, Report, RulesPlan, ServiceChange, SettingChange,
    VERSION,
};

/// What is there before a change.
#[derive(Debug, Clone, Copy)]
pub enum Present<'a> {
    /// Nothing.
    Nothing,
    /// What was read from the kernel.
    Kernel(&'a Observed),
    /// The forwarding table of other objects, in the same mode and with the same settings.
    Table(&'a [Entry]),
}

/// What is there and what is wanted of one family.
#[derive(Debug, Clone, Copy)]
pub struct Comparison<'a> {
    /// The family.
    pub family: Family,
    /// What is there.
    pub present: Present<'a>,
    /// The forwarding table, without the Service ports that the mode does not program.
    pub wanted: &'a [Entry],
    /// The addresses that are to accept node ports.
    pub node_ports: &'a NodePortReach,
    /// The addresses of this node.
    pub node_addresses: &'a [IpAddr],
}

/// Compares what is there with what is wanted. The result has no rules; see [`FamilyPlan::rules`].
pub fn family(comparison: &Comparison<'_>) -> FamilyPlan {
    let Comparison { family, present, wanted, node_ports, node_addresses } = *comparison;
    let (services, node_ports) = match present {
        Present::Nothing => (services::against_nothing(wanted), Vec::new()),
        Present::Table(table) => (services::between(table, wanted), Vec::new()),
        Present::Kernel(observed) => {
            let of_node = node_ports::of_family(family, node_addresses);
            let changes = match &observed.node_ports {
                Fact::Known(present) => {
                    let each = observed.node_port_addresses.is_some();
                    node_ports::changes(present, node_ports, each.then_some(&of_node))
                }
                Fact::Unknown => Vec::new(),
            };
            (services::against_kernel(observed, wanted, node_ports, &of_node), changes)
        }
    };
    let counts = Counts::of(&services, wanted);
    FamilyPlan { counts, services, node_ports, ..FamilyPlan::nothing(family) }
}

#[cfg(test)]
mod tests;
