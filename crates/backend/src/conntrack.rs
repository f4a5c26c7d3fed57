//! Stale UDP flows: conntrack entries that keep sending a client's packets to an endpoint that is gone, or past
//! the Service altogether because they are older than its rules.
//!
//! A UDP flow lives as long as its client sends, and NAT rules are asked about its first packet only. So after
//! the endpoints of a UDP Service port changed, [`Check`] says which flows are stale (pure), [`Cleaner`] deletes
//! those from the kernel, and [`CleanerThread`] does so on a thread of its own, as requests come.
//!
//! The kernel's table is never held here: flows are judged as they are listed and deleted by the batch, so that
//! memory does not depend on how many there are. TCP and SCTP are left alone: their peers notice.

mod check;
mod cleaner;
mod pending;
mod translations;
mod worker;

pub use check::{Check, Verdict};
pub use cleaner::{Cleaner, Report};
pub use translations::Translations;
pub use worker::{Cleaned, CleanerThread, Requests};

use portolan_sock::SocketError;

/// Why flows could not be cleaned up; what was deleted until then stays deleted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A netlink socket could not be opened.
    #[error("opening a netlink socket for conntrack: {0}")]
    Open(SocketError),
    /// The flows could not be listed. EPERM means that `CAP_NET_ADMIN` is missing, EINVAL that the kernel has
    /// no `nf_conntrack_netlink`.
    #[error("listing UDP flows: {0}; needs CAP_NET_ADMIN and the kernel module nf_conntrack_netlink")]
    List(SocketError),
    /// Stale flows could not be deleted.
    #[error("deleting stale UDP flows: {0}")]
    Delete(SocketError),
    /// This node's addresses, which tell whose node ports are meant, could not be listed.
    #[error("listing this node's addresses to tell its node ports: {0}")]
    Addresses(SocketError),
}
