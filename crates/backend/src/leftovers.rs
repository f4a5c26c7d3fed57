//! What kube-proxy left in the kernel: found, and removed when it is no longer needed.
//!
//! Places: the `kube-proxy` tables of its nftables mode, the `KUBE-` chains of its iptables mode where
//! iptables is a front end of nftables (both over netlink, so that no program is needed), and the same chains
//! in the kernel's older iptables (by its own programs, where they are installed). The chains are those of its IPVS
//! mode as well, of which there are also virtual servers, a network device and ipsets. Removed is what kube-proxy's
//! own clean-up removes; what other programs jump to, or kubelet owns, stays.

mod chains;
mod firewall;
mod ipvs;
mod legacy;
mod own;
mod sets;
mod successor;
pub(crate) mod tables;

use std::collections::BTreeSet;

use ipnet::IpNet;
use portolan_model::Family;
use portolan_sock::SocketError;

use crate::dataplane::Chains;
use crate::iptables::Variant;
use chains::{Entries, FIREWALL, Outcome};

pub use ipvs::DEVICE as IPVS_DEVICE;
pub use own::remove_own;
pub use successor::{runs_ipvs, unserved};

/// What was removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Tables of the nftables mode.
    pub tables: usize,
    /// Chains of the iptables mode and of the IPVS mode.
    pub chains: usize,
    /// Those that were not removed, because rules of others lead to them.
    pub held_chains: BTreeSet<String>,
    /// Rules of the IPVS mode that led into chains that stay.
    pub rules: usize,
    /// Virtual servers of the IPVS mode.
    pub virtual_servers: usize,
    /// Network devices of the IPVS mode: [`IPVS_DEVICE`] or none.
    pub devices: usize,
    /// ipsets of the IPVS mode.
    pub sets: usize,
}

impl Removed {
    fn take(&mut self, outcome: Outcome) {
        self.chains += outcome.chains;
        self.rules += outcome.rules;
        self.held_chains.extend(outcome.held);
    }

    /// Whether nothing was removed.
    pub fn is_empty(&self) -> bool {
        let Self { tables, chains, rules, held_chains: _, virtual_servers, devices, sets } = *self;
        [tables, chains, rules, virtual_servers, devices, sets] == [0; 6]
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
        source: SocketError,
    },
    /// The virtual servers of the IPVS mode cannot be listed, or not be removed.
    #[error(
        "virtual servers of kube-proxy's IPVS mode: {source}; run `ipvsadm --clear` and `ip link delete {device}` on the \
         node", device = IPVS_DEVICE
    )]
    VirtualServers {
        /// What happened.
        source: crate::ipvs::Error,
    },
    /// Something makes virtual servers as quickly as they are removed.
    #[error(
        "{count} IPVS virtual servers are there again just after all were removed: stop what makes them (a kube-proxy \
         in IPVS mode?), then run `portolan proxy --cleanup` on the node"
    )]
    VirtualServersLeft {
        /// How many.
        count: usize,
    },
    /// The ipsets of the IPVS mode cannot be listed, or not be removed.
    #[error("ipsets of kube-proxy's IPVS mode: {source}; see `ipset list -n` on the node")]
    Sets {
        /// What happened.
        source: SocketError,
    },
    /// A rule of somebody else refers to ipsets of kube-proxy's.
    #[error(
        "a rule still refers to ipsets of kube-proxy's IPVS mode ({names}): find it with `iptables-save` and \
         `ip6tables-save` on the node, remove it, and run `ipset destroy` for each"
    )]
    SetsInUse {
        /// Their names.
        names: String,
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

/// What a mode that runs, or connections of a former one, use of what kube-proxy may have left.
#[derive(Debug, Clone, Default)]
pub struct Keep {
    /// Chains of iptables.
    pub chains: Vec<Chains>,
    /// Virtual servers, their device, and ipsets.
    pub ipvs: bool,
    /// `KUBE-FIREWALL`, with the rules that lead to it. Without this it goes where no kubelet has left chains, and in IPv6,
    /// where kubelet does not make it; but never where it has rules of others.
    pub firewall: bool,
    /// Networks in which others have virtual servers and addresses, even on [`IPVS_DEVICE`] (`ipvs.excludeCIDRs`).
    pub exclude: Vec<IpNet>,
}

impl Keep {
    /// Whether a chain stays.
    fn chain(&self, variant: Variant, family: Family, table: &str, chain: &str) -> bool {
        if (table, chain) == ("filter", FIREWALL) {
            return self.firewall;
        }
        let of = |chains: &&Chains| (chains.variant, chains.family) == (variant, family);
        self.chains.iter().filter(of).any(|chains| (chains.uses)(table, chain))
    }
}

/// Removes all of it but `keep` in the network namespace of this thread, both families. What cannot be removed does not
/// keep the rest from being removed. Blocks while the iptables programs run, and while the kernel lets go of ipsets.
///
/// Connections that virtual servers forward end.
pub fn remove(keep: &Keep) -> (Removed, Vec<Error>) {
    let (mut removed, mut errors) = (Removed::default(), Vec::new());
    let kubelet = keep.firewall || has_chains_of_kubelet();
    for family in Family::BOTH {
        let firewall = keep.firewall || (kubelet && family == Family::Ipv4);
        let keep = Keep { firewall, ..keep.clone() };
        remove_rules(family, &keep, &mut removed, &mut errors);
    }
    if keep.ipvs {
        return (removed, errors);
    }
    match ipvs::remove(&keep.exclude) {
        Ok(None) => {}
        Ok(Some(gone)) => {
            (removed.virtual_servers, removed.devices) = (gone.virtual_servers, usize::from(gone.device));
        }
        Err(error) => errors.push(error),
    }
    // Rules refer to them.
    match sets::remove() {
        Ok(sets) => removed.sets = sets,
        Err(error) => errors.push(error),
    }
    (removed, errors)
}

/// Whether a kubelet uses iptables here: it would miss the chain that it shares. What cannot be read may be its.
fn has_chains_of_kubelet() -> bool {
    let in_older = |family| legacy::has_chains_of_kubelet(family).unwrap_or(true);
    tables::has_chains_of_kubelet().unwrap_or(true) || Family::BOTH.into_iter().any(in_older)
}

fn remove_rules(family: Family, keep: &Keep, removed: &mut Removed, errors: &mut Vec<Error>) {
    let failed = |what| move |source| Error::Nftables { what, family, source };
    match tables::remove_table(family).map_err(failed("table of the nftables mode")) {
        Ok(tables) => removed.tables += usize::from(tables),
        Err(error) => errors.push(error),
    }
    let no_more: Entries = |_| Vec::new();
    match tables::remove_chains(
        family,
        |table, chain| keep.chain(Variant::Nft, family, table, chain),
        no_more,
    )
    .map_err(failed("chains of the iptables mode"))
    {
        Ok(outcome) => removed.take(outcome),
        Err(error) => errors.push(error),
    }
    let is_kept = |table: &str, chain: &str| keep.chain(Variant::Legacy, family, table, chain);
    match legacy::remove_chains(family, is_kept, no_more) {
        Ok(outcome) => removed.take(outcome),
        Err(error) => errors.push(error),
    }
}
