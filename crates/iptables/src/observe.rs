//! Reads the rules of this mode back, in the terms of the forwarding table ([`Observed`]).
//!
//! ```text
//! iptables-save -c ──lines──> line: one rule ──> chains: what each chain has ──> assemble ──> Observed
//! ```
//!
//! The parts are pure and read one line at a time. They need neither the wanted table nor the planner, and not even an
//! agent that runs: chains that kube-proxy wrote have the same names and comments.
//!
//! # What identifies a Service port
//!
//! The chains of a Service port have one hash in their names. The name is that of a comment, if it has this hash; so a
//! changed comment gives no wrong name. A Service port without such a comment has no name here, and belongs to
//! the Service port of the table that has its frontends. Rules that refuse or drop packets name no chain: for these the
//! comment is all there is.
//!
//! # What is read
//!
//! - **Frontends**: rules of the shared chains that match an address and port, or a node port. A frontend is reported
//!   only if its packets find all rules on their way, also the jumps from the kernel's own chains. So a rule that is missing
//!   there is the difference "not programmed". For a frontend without endpoints, only the cluster IP has a kind.
//! - **Endpoints**: the rules that choose an endpoint, and the translation in the endpoint's chain. The counters are those of
//!   the translation, which is written anew only if the endpoint changes. An endpoint in both lists has them in the first.
//! - **Session affinity**: the rule that looks clients up, and the one that adds them. If one is missing, the endpoint has
//!   no affinity.
//! - **Source ranges**: without the load-balancer IPs, which the mode may add. If the rule is missing that drops packets
//!   from other sources, all sources are allowed.
//! - **Addresses that accept node ports**: the rules that lead to the chain of node ports.
//! - **Not read**: masquerading, which sources are pods of this node, health-check node ports.
//!
//! A rule that kube-proxy does not write is not understood ([`UnknownRules`]). If it has no match and ends its chain,
//! no packet reaches the rules after it, so these are not read. Otherwise, the rules after it are read as if it were not
//! there.
//!
//! # The userspace mode with redirect
//!
//! Its rules are those of this mode, but lead to listeners of the relay. They are recognized by the rules that guard the
//! listeners. Endpoints and session affinity are then in the relay's table, and unknown here; a frontend is reported only
//! if its packets come to a listener.

mod assemble;
mod chains;
mod comment;
mod line;
mod node_ports;
mod unknown;

use portolan_model::Family;
use portolan_model::observed::Observed;

pub use unknown::{UnknownRule, UnknownRules};

use super::Programs;
use super::program::Error;
use chains::Chains;

/// What was read back of the chains of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// The Service ports.
    pub observed: Observed,
    /// The ports of the relay's listeners, first and last, if the chains are those of the userspace mode. `None` if they
    /// are those of the iptables mode.
    pub listeners: Option<(u16, u16)>,
    /// Rules in the chains that are not understood.
    pub unknown: UnknownRules,
}

impl Reading {
    /// Reads the chains of a family in the network namespace of this thread. Returns `None` if there are none of this mode
    /// or of the userspace mode.
    ///
    /// # Errors
    /// The program failed, or cannot print a table.
    pub fn read(programs: &Programs, family: Family) -> Result<Option<Self>, Error> {
        let mut chains = Chains::new(family);
        programs.save(&["-c"], |line| chains.line(line))?;
        if let Some(table) = chains.unreadable {
            return Err(programs.unreadable(table));
        }
        let reading = Self::of(&chains);
        if let Some(reading) = &reading {
            reading.unknown.log(family);
        }
        Ok(reading)
    }

    /// Reads the output of `iptables-save -c`.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn of_save(family: Family, save: &str) -> Option<Self> {
        let mut chains = Chains::new(family);
        save.lines().for_each(|line| chains.line(line));
        Self::of(&chains)
    }

    fn of(chains: &Chains) -> Option<Self> {
        chains.are_there.then(|| Self {
            observed: assemble::observed(chains),
            listeners: chains.listeners,
            unknown: chains.unknown.clone(),
        })
    }
}

/// Reads the rules of a family in the network namespace of this thread, also those that kube-proxy wrote. Returns `None`
/// if there are no chains of this mode; those of the userspace mode do not count.
///
/// # Errors
/// The program failed, or cannot print a table.
pub fn read(programs: &Programs, family: Family) -> Result<Option<Observed>, Error> {
    let reading = Reading::read(programs, family)?;
    Ok(reading.filter(|reading| reading.listeners.is_none()).map(|reading| reading.observed))
}

#[cfg(test)]
mod tests;
