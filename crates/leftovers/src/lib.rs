//! What kube-proxy, and our own IPVS mode, left in the kernel: finds it, and removes it when it is no longer needed.
//!
//! [`find`] and [`find_own`] list what [`remove`] and [`remove_own`] remove. They make the same choices and change
//! nothing. A clean-up lists before, to say what it removes, and after, to prove that nothing is left. [`find_ipvs`] is for
//! the doctor.
//!
//! The module looks in these places:
//!
//! - the `kube-proxy` tables of kube-proxy's nftables mode, over netlink;
//! - the `KUBE-` chains of its iptables and IPVS modes where iptables is a front end of nftables, over netlink, so
//!   that no program is needed;
//! - the same chains in the kernel's older iptables, with its own programs, if they are installed;
//! - the virtual servers, the network device and the ipsets of the IPVS mode, over netlink.
//!
//! It removes what kube-proxy's own clean-up removes. Chains that rules of other programs lead to stay, and so do
//! kubelet's.
//!
//! # Who uses the objects of the IPVS mode
//!
//! Our IPVS mode uses kube-proxy's names, so a kube-proxy in IPVS mode that is started after ours takes over most of
//! its objects. `successor` finds out from the rules who uses them:
//!
//! - `KUBE-SERVICES` leads to `KUBE-NODE-PORT` in the IPVS mode only, in kube-proxy's and in ours.
//! - In ours, rules refer to the set `PORTOLAN-REJECT`. While a rule does, kube-proxy has not written its own rules
//!   there. Unless it is active in nftables mode or in the other variant of iptables, a clean-up with `--only-ours`
//!   removes nothing.
//! - When no rule refers to the set, and `KUBE-SERVICES` leads to `KUBE-NODE-PORT`, everything belongs to kube-proxy,
//!   except for what has our own names.
//! - When no rule refers to the set, and `KUBE-SERVICES` does not lead to `KUBE-NODE-PORT`, kube-proxy runs in
//!   another mode. The clean-up removes the virtual servers that the set `PORTOLAN-VIRTUAL-SERVERS` names, and the
//!   rules of the IPVS mode that lead into chains of the iptables mode.
//!
//! Each variant of iptables is judged separately. The kernel counts the rules that refer to the set, in both variants
//! together. A save of the older iptables shows how many of these it has; the rest are in the front end of nftables.
//! If our rules are in one variant and kube-proxy has completed its rules in the other, ours are removed.
//!
//! A clean-up removes the sets last, because rules refer to them. So if the table `kube-proxy` exists together with a
//! set of ours, an earlier clean-up may have been interrupted, and all chains of the IPVS mode are removed.

mod chains;
mod firewall;
mod found;
mod ipvs;
mod legacy;
mod own;
mod sets;
mod successor;
mod tables;

use std::collections::BTreeSet;

use ipnet::IpNet;
use portolan_model::Family;
use portolan_sock::SocketError;

use chains::{Entries, FIREWALL, RemovedChains};
use portolan_engine::dataplane::Claims;
use portolan_iptables::Variant;

pub use found::{Found, Held, Kept, Kind, Object};
pub use ipvs::DEVICE as IPVS_DEVICE;
#[cfg(feature = "fuzzing")]
pub use legacy::removal_of;
pub use own::{find_own, remove_own};
pub use successor::{runs_ipvs, unserved};

/// What has been removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Tables of the nftables mode.
    pub tables: usize,
    /// Chains of the iptables mode and of the IPVS mode.
    pub chains: usize,
    /// Chains that were not removed, because rules of other programs lead to them.
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
    fn take(&mut self, outcome: RemovedChains) {
        self.chains += outcome.chains;
        self.rules += outcome.rules;
        self.held_chains.extend(outcome.held);
    }

    /// Returns true if nothing was removed.
    pub fn is_empty(&self) -> bool {
        let Self { tables, chains, rules, held_chains: _, virtual_servers, devices, sets } = *self;
        [tables, chains, rules, virtual_servers, devices, sets] == [0; 6]
    }
}

/// Why an object could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading or changing the nftables ruleset failed.
    #[error("kube-proxy's {what}, {family}: {source}")]
    Nftables {
        /// The objects to be removed.
        what: &'static str,
        /// Their family.
        family: Family,
        /// The cause.
        source: portolan_engine::Error,
    },
    /// The network device of the IPVS mode cannot be found or removed.
    #[error("network device {device}: {source}; run `ip link delete {device}` on the node", device = IPVS_DEVICE)]
    Device {
        /// The cause.
        source: SocketError,
    },
    /// The virtual servers of the IPVS mode cannot be listed or removed.
    #[error(
        "virtual servers of kube-proxy's IPVS mode: {source}; `portolan-proxy cleanup` on the node tries again; `ipvsadm -Ln` \
         shows what is left at addresses of {device}, and `ipvsadm -D` removes one of them", device = IPVS_DEVICE
    )]
    VirtualServers {
        /// The cause.
        source: portolan_ipvs::Error,
    },
    /// Another program creates virtual servers while they are removed.
    #[error(
        "{count} IPVS virtual servers are there again just after all were removed: stop what makes them (a kube-proxy \
         in IPVS mode?), then run `portolan-proxy cleanup` on the node"
    )]
    VirtualServersLeft {
        /// The number of virtual servers that exist after the removal.
        count: usize,
    },
    /// The ipsets of the IPVS mode cannot be listed or removed.
    #[error("ipsets of kube-proxy's IPVS mode: {source}; see `ipset list -n` on the node")]
    Sets {
        /// The cause.
        source: SocketError,
    },
    /// A rule of another program refers to ipsets of kube-proxy.
    #[error(
        "a rule still refers to ipsets of kube-proxy's IPVS mode ({names}): find it with `iptables-save` and \
         `ip6tables-save` on the node, remove it, and run `ipset destroy` for each"
    )]
    SetsInUse {
        /// The names of the sets.
        names: String,
    },
    /// The list of the older iptables' tables cannot be read: only root may read it.
    #[error(
        "{file} cannot be read ({source}), so chains of kube-proxy in the kernel's older iptables ({family}) would \
         stay; if it ever ran in iptables mode here, run `portolan-proxy cleanup` or `kube-proxy --cleanup` as \
         root on the node, or restart the node"
    )]
    Unreadable {
        /// The file with the list.
        file: &'static str,
        /// The family.
        family: Family,
        /// The system's error.
        source: std::io::Error,
    },
    /// The older iptables has tables, and no program that can read them is installed.
    #[error(
        "the kernel's older iptables has tables here ({family}: {tables}), and {program}, which could remove chains \
         of kube-proxy from them, is not installed; if it ever ran in iptables mode here, run `portolan-proxy \
         cleanup` where {program} is installed or `kube-proxy --cleanup` on the node, or restart the node"
    )]
    NoProgram {
        /// The family.
        family: Family,
        /// The tables that kube-proxy may have written to.
        tables: String,
        /// The missing program.
        program: &'static str,
    },
    /// A program exists but cannot be run.
    #[error("cannot run {program}: {source}")]
    Start {
        /// The program.
        program: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// A program failed.
    #[error("{program} failed ({status}): {message}")]
    Failed {
        /// The program.
        program: &'static str,
        /// The exit status.
        status: std::process::ExitStatus,
        /// The program's error output.
        message: String,
    },
}

impl Error {
    /// Returns true if it is not known whether kube-proxy left anything, and this process cannot find out.
    pub const fn is_unknown(&self) -> bool {
        matches!(self, Self::Unreadable { .. } | Self::NoProgram { .. })
    }
}

/// What an active mode, or connections of a former one, use of the objects that kube-proxy may have left. These are
/// kept.
#[derive(Debug, Clone, Default)]
pub struct Keep {
    /// Chains of iptables.
    pub chains: Vec<Claims>,
    /// True to keep virtual servers, their device, and ipsets.
    pub ipvs: bool,
    /// True to keep `KUBE-FIREWALL` and the rules that lead to it. If false, it is removed where kubelet has left no
    /// chains, and in IPv6, where kubelet does not create it; but never if it has rules of other programs.
    pub firewall: bool,
    /// Networks in which virtual servers and addresses, even on [`IPVS_DEVICE`], belong to other programs
    /// (`ipvs.excludeCIDRs`).
    pub exclude: Vec<IpNet>,
}

impl Keep {
    /// Returns true if a chain is kept.
    fn chain(&self, variant: Variant, family: Family, table: &str, chain: &str) -> bool {
        if (table, chain) == ("filter", FIREWALL) {
            return self.firewall;
        }
        let of = |claims: &&Claims| (claims.place, claims.family) == (variant.place(), family);
        self.chains.iter().filter(of).any(|claims| (claims.uses)(table, chain))
    }
}

/// Removes everything except for `keep`, in the network namespace of this thread, for both families. Goes on after an
/// error. Blocks while the iptables programs run, and until the kernel has released the ipsets.
///
/// Connections through the virtual servers end.
pub fn remove(keep: &Keep) -> (Removed, Vec<Error>) {
    let (mut removed, mut errors) = (Removed::default(), Vec::new());
    for (family, keep) in in_families(keep) {
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
    // The sets go last, because rules refer to them.
    match sets::remove() {
        Ok(sets) => removed.sets = sets,
        Err(error) => errors.push(error),
    }
    (removed, errors)
}

/// Lists what [`remove`] would remove, and what stays. Changes nothing. Goes on after an error.
pub fn find(keep: &Keep) -> (Found, Vec<Error>) {
    let (mut found, mut errors) = (Found::default(), Vec::new());
    for (family, keep) in in_families(keep) {
        find_rules(family, &keep, &mut found, &mut errors);
    }
    if keep.ipvs {
        return (found, errors);
    }
    let (objects, more) = find_ipvs(&keep.exclude);
    found.objects.extend(objects);
    errors.extend(more);
    (found, errors)
}

/// Lists what [`remove`] would remove of the IPVS mode, besides chains: virtual servers, the device with its addresses, and
/// ipsets. `exclude` is that of [`Keep`]. Changes nothing. Goes on after an error.
pub fn find_ipvs(exclude: &[IpNet]) -> (Vec<Object>, Vec<Error>) {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for objects in [ipvs::find(exclude), sets::find()] {
        match objects {
            Ok(objects) => found.extend(objects),
            Err(error) => errors.push(error),
        }
    }
    (found, errors)
}

/// Adds the tables of nftables with these names to what was found. Changes nothing.
pub fn find_tables(family: Family, names: &[&str], found: &mut Found) -> Result<(), portolan_engine::Error> {
    tables::find_tables(family, names, found)
}

/// Returns what is kept in each family. In IPv4, kubelet needs the chain that it shares.
fn in_families(keep: &Keep) -> [(Family, Keep); 2] {
    let kubelet = keep.firewall || has_chains_of_kubelet();
    Family::BOTH.map(|family| {
        let firewall = keep.firewall || (kubelet && family == Family::Ipv4);
        (family, Keep { firewall, ..keep.clone() })
    })
}

/// Returns true if kubelet uses iptables on this node: it needs the chain that it shares. Also true if that cannot be
/// read.
fn has_chains_of_kubelet() -> bool {
    let in_older = |family| legacy::has_chains_of_kubelet(family).unwrap_or(true);
    tables::has_chains_of_kubelet().unwrap_or(true) || Family::BOTH.into_iter().any(in_older)
}

fn find_rules(family: Family, keep: &Keep, found: &mut Found, errors: &mut Vec<Error>) {
    let failed = |what| move |source| Error::Nftables { what, family, source };
    let tables = tables::find_tables(family, &[tables::KUBE_PROXY], found);
    errors.extend(tables.map_err(failed("table of the nftables mode")).err());
    let no_more: Entries = |_| Vec::new();
    let is_kept = |variant| move |table: &str, chain: &str| keep.chain(variant, family, table, chain);
    let of_nft = tables::find_chains(family, is_kept(Variant::Nft), no_more, found);
    errors.extend(of_nft.map_err(failed("chains of the iptables mode")).err());
    errors.extend(legacy::find_chains(family, is_kept(Variant::Legacy), no_more, found).err());
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
