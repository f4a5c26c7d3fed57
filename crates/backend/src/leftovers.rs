//! What kube-proxy left in the kernel: found, and removed when it is no longer needed.
//!
//! Three places: the `kube-proxy` tables of its nftables mode, the `KUBE-` chains of its iptables mode where
//! iptables is a front end of nftables (both over netlink, so that no program is needed), and the same chains
//! in the kernel's older iptables (by its own programs, where they are installed). Removed is what kube-proxy's
//! own clean-up removes; what other programs jump to, or kubelet owns, stays. Of the IPVS mode only the network
//! device goes, and only when that is asked for; its virtual servers are counted.

mod chains;
mod ipvs;
mod legacy;
mod tables;

use portolan_model::Family;

pub use ipvs::{DEVICE as IPVS_DEVICE, has_device as has_ipvs_device, remove as remove_ipvs};

/// What was removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Tables of the nftables mode.
    pub tables: usize,
    /// Chains of the iptables mode.
    pub chains: usize,
}

impl Removed {
    /// Whether there was nothing to remove.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Why something could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading or changing the nftables ruleset failed.
    #[error("kube-proxy's {what}, {family}: {source}")]
    Nftables {
        /// What was to be removed.
        what: &'static str,
        /// Its family.
        family: Family,
        /// What happened.
        source: crate::Error,
    },
    /// The network device of the IPVS mode cannot be looked for, or not be removed.
    #[error("network device {device}: {source}; run `ip link delete {device}` on the node", device = IPVS_DEVICE)]
    Device {
        /// What happened.
        source: portolan_sock::SocketError,
    },
    /// There are virtual servers, which is all that is left of the IPVS mode, or anybody else's.
    #[error(
        "{count} IPVS virtual servers are left, which this version does not remove: if they are kube-proxy's, run \
         `ipvsadm --clear` on the node"
    )]
    VirtualServersLeft {
        /// How many.
        count: usize,
    },
    /// The virtual servers of the IPVS mode cannot be counted.
    #[error(
        "{file} cannot be read ({source}), so virtual servers of kube-proxy's IPVS mode may be left: run \
         `ipvsadm --clear` on the node"
    )]
    VirtualServers {
        /// Their list.
        file: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// Nobody but root can see whether the older iptables has tables here.
    #[error(
        "{file} cannot be read ({source}), so chains of kube-proxy in the kernel's older iptables ({family}) would \
         stay; if it ever ran in iptables mode here, run `portolan proxy --cleanup` or `kube-proxy --cleanup` as \
         root on the node, or restart the node"
    )]
    Unreadable {
        /// The list of tables.
        file: &'static str,
        /// Its family.
        family: Family,
        /// What the system said.
        source: std::io::Error,
    },
    /// The older iptables has tables, and nothing that could look into them is installed.
    #[error(
        "the kernel's older iptables has tables here ({family}: {tables}), and {program}, which could remove chains \
         of kube-proxy from them, is not installed; if it ever ran in iptables mode here, run `portolan proxy \
         --cleanup` where {program} is installed or `kube-proxy --cleanup` on the node, or restart the node"
    )]
    NoProgram {
        /// The family.
        family: Family,
        /// The tables that kube-proxy may have written to.
        tables: String,
        /// What is missing.
        program: &'static str,
    },
    /// A program is there but could not be run.
    #[error("cannot run {program}: {source}")]
    Start {
        /// The program.
        program: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// A program failed.
    #[error("{program} failed ({status}): {message}")]
    Failed {
        /// The program.
        program: &'static str,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it wrote.
        message: String,
    },
}

/// Removes all of it in the network namespace of this thread, both families. What cannot be removed does not
/// keep the rest from being removed. Blocks while the iptables programs run.
pub fn remove() -> (Removed, Vec<Error>) {
    let (mut removed, mut errors) = (Removed::default(), Vec::new());
    for family in Family::BOTH {
        let failed = |what| move |source| Error::Nftables { what, family, source };
        match tables::remove_table(family).map_err(failed("table of the nftables mode")) {
            Ok(tables) => removed.tables += usize::from(tables),
            Err(error) => errors.push(error),
        }
        match tables::remove_chains(family).map_err(failed("chains of the iptables mode")) {
            Ok(chains) => removed.chains += chains,
            Err(error) => errors.push(error),
        }
        match legacy::remove_chains(family) {
            Ok(chains) => removed.chains += chains,
            Err(error) => errors.push(error),
        }
    }
    (removed, errors)
}
