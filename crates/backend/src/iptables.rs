//! The iptables data plane: every Service port is chains and rules with kube-proxy's names, order and comments.
//!
//! Owns what the rules of the mode are ([`Planner`] and below it, all pure: the forwarding table in, the text that
//! `iptables-restore` reads out) and how the programs are found and run ([`Programs`]). See `ARCHITECTURE.md` for the
//! layout and the order of writes. It must not know where changes come from, nor when a commit is due.
//!
//! [`Iptables`] is the edge.

mod chains;
mod counters;
mod dataplane;
mod dispatch;
mod fixed;
#[cfg(test)]
mod interpreter;
mod lock;
mod memory;
mod meter;
mod name;
mod options;
mod partial;
mod planner;
mod present;
mod probe;
mod program;
mod removal;
mod rule;
mod saved;
mod service;
#[cfg(test)]
mod walk;
mod writers;

pub use counters::{Counted, counted, remove_counters};
pub use dataplane::Iptables;
pub use memory::{Memory, Size};
pub use meter::{Measures, Meter, Rules};
pub use options::{Options, Redirect};
pub use planner::{Pieces, Planner};
pub use present::Present;
pub(crate) use present::{is_own, is_watched};
pub use program::{Error, Programs, Variant};
pub use writers::Writers;
