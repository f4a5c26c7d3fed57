//! Clean-up of stale UDP flows. A flow is stale if its conntrack entry sends a client's packets to an endpoint that
//! is gone, or past the Service because the entry is older than the rules.
//!
//! A UDP flow lives as long as its client sends, and NAT rules see only its first packet. So flows are cleaned up
//! after the endpoints of a UDP Service port have changed. [`Check`] decides which flows are stale (a pure function),
//! [`Cleaner`] deletes those from the kernel, and [`CleanerThread`] does so on its own thread on request.
//!
//! [`flows_to`] lists the flows to one destination, for diagnosis.
//!
//! [`passive`] finds endpoints whose TCP connections fail.
//!
//! Flows are checked while they are listed, and deleted in batches. The kernel's table is never held in memory, so
//! memory does not depend on the number of flows. TCP and SCTP flows are left alone: their peers notice.

mod check;
mod cleaner;
mod listing;
pub mod passive;
mod pending;
mod translations;
mod worker;

pub use check::{Check, Verdict};
pub use cleaner::{Cleaner, Report};
pub use listing::{Listed, flows_to};
pub use translations::Translations;
pub use worker::{Cleaned, CleanerThread, NodePorts, Requests};

use portolan_sock::SocketError;

/// Why flows could not be cleaned up. Flows deleted before the error stay deleted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A netlink socket could not be opened.
    #[error("opening a netlink socket for conntrack: {0}")]
    Open(SocketError),
    /// The flows could not be listed. EPERM means that `CAP_NET_ADMIN` is missing, EINVAL that the kernel has no
    /// `nf_conntrack_netlink`.
    #[error("listing UDP flows: {0}; needs CAP_NET_ADMIN and the kernel module nf_conntrack_netlink")]
    List(SocketError),
    /// The flows to a destination could not be listed.
    #[error("listing flows: {0}; needs CAP_NET_ADMIN and the kernel module nf_conntrack_netlink")]
    ListTo(SocketError),
    /// Stale flows could not be deleted.
    #[error("deleting stale UDP flows: {0}")]
    Delete(SocketError),
    /// This node's addresses, which decide which flows go to its node ports, could not be listed.
    #[error("listing this node's addresses to tell its node ports: {0}")]
    Addresses(SocketError),
}
