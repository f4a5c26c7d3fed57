//! What can go wrong between this data plane and the kernel.

use portolan_model::IpvsScheduler;
use portolan_sock::{Errno, SocketError};

/// Why something could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A netlink socket failed, or the kernel refused a question.
    #[error("{what}: {source}")]
    Socket {
        /// What was being done.
        what: &'static str,
        /// What happened.
        source: SocketError,
    },
    /// The kernel refused a change.
    #[error("{what}: {errno}; comparing everything")]
    Refused {
        /// The change, with its object.
        what: String,
        /// Why.
        errno: Errno,
    },
    /// The kernel's answers were lost.
    #[error("the kernel's answers to changes of {what} were lost; comparing everything")]
    Lost {
        /// What was being changed.
        what: &'static str,
    },
    /// The kernel does not have a scheduler.
    #[error("the kernel does not have the IPVS scheduler {scheduler}; run `modprobe ip_vs_{scheduler}`")]
    Scheduler {
        /// Which.
        scheduler: IpvsScheduler,
    },
    /// The rules around virtual servers could not be written.
    #[error(transparent)]
    Rules(crate::iptables::Error),
    /// A set of ours has as many members as it may have.
    #[error(
        "the ipset {set} is full: it takes 65536 members; use the nftables mode for a cluster of this size"
    )]
    Full {
        /// Its name.
        set: String,
    },
    /// Somebody has made a set of another type under a name of ours.
    #[error(
        "the ipset {set} is of type {found}, not {wanted}: find who made it, and run `ipset destroy {set}`"
    )]
    Set {
        /// Its name.
        set: String,
        /// Its type.
        found: String,
        /// The type that it should have.
        wanted: &'static str,
    },
}

/// Invalid argument: an endpoint at a broadcast address, for one.
const EINVAL: i32 = 22;
/// An address that no device can have.
const EADDRNOTAVAIL: i32 = 99;
/// Those of ipset begin here (`IPSET_ERR_PRIVATE`), such as for an address that is all zeros.
const OF_SETS: i32 = 4096;

impl Error {
    /// Whether other changes that were sent with it have been carried out.
    pub(super) const fn is_of_one(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Full { .. })
    }

    /// Whether the kernel refused one object for what it is, and would do so again.
    pub(super) const fn is_of_object(&self) -> bool {
        matches!(self, Self::Refused { errno: Errno(errno), .. }
            if *errno == EINVAL || *errno == EADDRNOTAVAIL || *errno >= OF_SETS)
    }

    pub(super) fn socket(what: &'static str) -> impl Fn(SocketError) -> Self {
        move |source| Self::Socket { what, source }
    }
}
