//! Finds what on this node breaks Services, and says how to mend it: `portolan doctor`.
//!
//! The core is pure. [`facts`] are plain values. [`checks`] turns them into [`finding`]s: what is wrong, what it breaks,
//! and the command that mends it. The crate `firewall` decides which packets firewall rules of other programs drop,
//! translate or exempt from connection tracking. [`report`] prints the result.
//!
//! I/O is at the edge: [`gather`] reads the facts of this node (netlink, `/proc`, and the programs of the older iptables),
//! [`fix`] executes the mends that are safe, and [`command`] is the command line. What only the API server knows
//! ([`facts::Cluster`], [`facts::Api`]) is filled in by the caller. So is what takes knowledge of the modes
//! ([`command::Callbacks`]): the list of their objects, the trial of a mode, and the removal of leftovers.
//!
//! The crate must not know how Portolan programs its rules. Without `--fix` it changes nothing of the node: the trial of a mode
//! runs in a network namespace of its own. It may load modules.

pub mod checks;
pub mod command;
pub mod facts;
pub mod finding;
pub mod fix;
pub mod gather;
pub mod report;

pub use command::{DoctorOptions, run};
pub use finding::{Code, Finding, Fix, Severity};
use portolan_firewall as rules;
