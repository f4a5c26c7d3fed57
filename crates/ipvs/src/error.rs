//! The errors of this data plane.

use std::io::ErrorKind;

use portolan_model::IpvsScheduler;
use portolan_sock::{Errno, SocketError};

/// Why a read or a write failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A netlink socket failed, or the kernel refused a request.
    #[error("{what}: {source}")]
    Socket {
        /// The operation.
        what: &'static str,
        /// The socket's error.
        source: SocketError,
    },
    /// The kernel refused a change.
    #[error("{what}: {errno}; comparing everything")]
    Refused {
        /// The change, with its object.
        what: String,
        /// The kernel's reason.
        errno: Errno,
    },
    /// The kernel's replies were lost.
    #[error("the kernel's answers to changes of {what} were lost; comparing everything")]
    Lost {
        /// The kind of objects that were changed.
        what: &'static str,
    },
    /// The kernel lacks a scheduler.
    #[error("the kernel does not have the IPVS scheduler {scheduler}; run `modprobe ip_vs_{scheduler}`")]
    Scheduler {
        /// The scheduler.
        scheduler: IpvsScheduler,
    },
    /// The rules around virtual servers could not be written.
    #[error(transparent)]
    Rules(portolan_iptables::Error),
    /// The rules around virtual servers could not be removed without programs.
    #[error("chains of the {table} table: {source}")]
    Chains {
        /// The table.
        table: &'static str,
        /// The cause.
        source: portolan_engine::Error,
    },
    /// This data plane was opened without programs of iptables.
    #[error("the programs of iptables cannot be run")]
    NoPrograms,
    /// One of our sets has as many members as it may have.
    #[error("the ipset {set} is full; use the nftables mode for a cluster of this size")]
    Full {
        /// The set's name.
        set: String,
    },
    /// Another program has made a set of another type with one of our names.
    #[error(
        "the ipset {set} is of type {found}, not {wanted}: find who made it, and run `ipset destroy {set}`"
    )]
    Set {
        /// The set's name.
        set: String,
        /// The set's type.
        found: String,
        /// The type that it should have.
        wanted: &'static str,
    },
}

/// Permission denied: the device may have no IPv6 address (`addrconf_add_dev` in `net/ipv6/addrconf.c`).
const EACCES: i32 = 13;
/// The argument is invalid, such as an endpoint at a broadcast address.
const EINVAL: i32 = 22;
/// No device can have the address.
const EADDRNOTAVAIL: i32 = 99;
/// The first error code of ipset (`IPSET_ERR_PRIVATE`), such as that for an address of zeros.
const OF_SETS: i32 = 4096;

impl From<portolan_iptables::Error> for Error {
    fn from(error: portolan_iptables::Error) -> Self {
        Self::Rules(error)
    }
}

impl From<Error> for portolan_engine::Error {
    fn from(error: Error) -> Self {
        Self::of_mode(error)
    }
}

impl Error {
    /// Returns true if the other changes in the same call were carried out.
    pub(super) const fn is_of_one(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Full { .. })
    }

    /// Returns the kernel's reason, if it refused a change.
    pub(super) const fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// Returns true if the kernel refused an object for its value or for a setting of the node, so that it would refuse it again.
    pub(super) const fn is_of_object(&self) -> bool {
        matches!(self, Self::Refused { errno: Errno(errno), .. }
            if *errno == EACCES || *errno == EINVAL || *errno == EADDRNOTAVAIL || *errno >= OF_SETS)
    }

    /// Returns true if programs of iptables are missing, lack permissions, or refuse their work. A lock that another program holds is
    /// no such error.
    pub(super) const fn is_of_programs(&self) -> bool {
        use portolan_iptables::Error as Of;
        matches!(
            self,
            Self::NoPrograms | Self::Rules(Of::Start { .. } | Of::LockFile { .. } | Of::Failed { .. })
        )
    }

    /// Returns true for those of [`Self::is_of_programs`] that another attempt does not mend. A program that fails without a word about
    /// permissions may have lacked memory for a moment.
    pub(super) fn is_lasting(&self) -> bool {
        use portolan_iptables::Error as Of;
        match self {
            Self::NoPrograms | Self::Rules(Of::LockFile { .. }) => true,
            Self::Rules(Of::Start { source, .. }) => {
                matches!(source.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
            }
            Self::Rules(Of::Failed { message, .. }) => {
                ["Permission denied", "Operation not permitted"].iter().any(|text| message.contains(text))
            }
            _ => false,
        }
    }

    pub(super) fn socket(what: &'static str) -> impl Fn(SocketError) -> Self {
        move |source| Self::Socket { what, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_ipv6_refuses_addresses_and_nothing_else() {
        let refused =
            |errno| Error::Refused { what: "address fd00::1 of kube-ipvs0".to_owned(), errno: Errno(errno) };
        assert!(
            [EACCES, EINVAL, EADDRNOTAVAIL, OF_SETS].into_iter().all(|errno| refused(errno).is_of_object())
        );
        assert!(!refused(Errno::EPERM.0).is_of_object());
    }
}
