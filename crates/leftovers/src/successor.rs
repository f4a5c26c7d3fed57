//! Finds out whether kube-proxy has taken over from rules of ours, which otherwise are all that leads to Services,
//! and whether it runs in IPVS mode, which uses the objects of ours.

use portolan_iptables::netlink::{retry_on_change, wire_family};
use portolan_model::Family;
use portolan_sock::{Protocol, Socket};
use portolan_wire::nftables::{NftablesEvent, request};

use super::tables::{self, KUBE_PROXY};
use super::{Error, legacy, sets};

/// The chain that kube-proxy fills in its iptables and IPVS modes, as the last step for a family, independently of
/// Services. Until then it is empty. Kubelet does not write to it.
const FORWARD: (&str, &str) = ("filter", "KUBE-FORWARD");
/// Our tables that lead to Services.
const OWN: [&str; 3] =
    [portolan_nftables::TABLE, portolan_nftables::CAPTURE_TABLE, portolan_nftables::CONNECTIONS_TABLE];

/// A jump that exists in the IPVS mode only, kube-proxy's and ours: its table, and the chains from and to which it
/// leads.
const IPVS_JUMP: (&str, &str, &str) = ("nat", "KUBE-SERVICES", "KUBE-NODE-PORT");

/// The owner of the rules of the IPVS mode. kube-proxy's and ours have the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IpvsRules {
    /// There are no such rules.
    None,
    /// Our own IPVS mode wrote them, or an earlier clean-up left some of them.
    Ours,
    /// kube-proxy has overwritten them.
    KubeProxys,
}

/// The owners of the rules of the IPVS mode in each variant of iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Variants {
    pub(super) nft: IpvsRules,
    pub(super) legacy: IpvsRules,
}

impl Variants {
    const fn both(rules: IpvsRules) -> Self {
        Self { nft: rules, legacy: rules }
    }

    /// Returns true if the rules of either variant have this owner.
    pub(super) fn any(self, rules: IpvsRules) -> bool {
        [self.nft, self.legacy].contains(&rules)
    }
}

/// Returns the families in which rules of ours lead to Services in the network namespace of this thread, and
/// kube-proxy has neither the table of its nftables mode nor complete rules of another mode.
pub fn unserved() -> Result<Vec<Family>, Error> {
    let mut families = Vec::new();
    for family in Family::BOTH {
        let failed = |source| Error::Nftables { what: "rules", family, source };
        let found = has_tables(family).map_err(failed)?;
        if found.kube_proxys {
            continue;
        }
        let rules = ipvs_rules(family)?;
        if (found.own || rules.any(IpvsRules::Ours)) && !is_programmed(family, rules)? {
            families.push(family);
        }
    }
    Ok(families)
}

/// Returns true if kube-proxy has completed its rules in its iptables or IPVS mode. Where the rules are ours, they
/// fill the same chain, so only the other variant of iptables is checked.
fn is_programmed(family: Family, rules: Variants) -> Result<bool, Error> {
    let failed = |source| Error::Nftables { what: "rules", family, source };
    Ok((rules.nft != IpvsRules::Ours && !has_no_rules(family).map_err(failed)?)
        || (rules.legacy != IpvsRules::Ours && legacy::has_rules(family, FORWARD)?))
}

/// Returns true if a kube-proxy in IPVS mode has written its rules in the network namespace of this thread. The
/// virtual servers, their device and the ipsets with kube-proxy's names are its own then.
pub fn runs_ipvs() -> Result<bool, Error> {
    for family in Family::BOTH {
        if ipvs_rules(family)?.any(IpvsRules::KubeProxys) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the owners of the rules of the IPVS mode in a family.
pub(super) fn ipvs_rules(family: Family) -> Result<Variants, Error> {
    let failed = |source| Error::Nftables { what: "rules", family, source };
    // Rules of the IPVS mode refer to sets, so without sets there are no rules.
    if !sets::are_there(family)? {
        return Ok(Variants::both(IpvsRules::None));
    }
    let (table, from, to) = IPVS_JUMP;
    let leads = tables::leads(family, table, from, to).map_err(failed)?;
    let in_force = sets::rules_in_force(family)?;
    let beside_table = has_tables(family).map_err(failed)?.kube_proxys;
    // Only root may read the older iptables, so it is read only if nothing else decides.
    if in_force == 0 && leads {
        return Ok(Variants::both(IpvsRules::KubeProxys));
    }
    if in_force > 0 && beside_table {
        return Ok(Variants::both(IpvsRules::Ours));
    }
    let older = legacy::find(family, IPVS_JUMP, &sets::refused(family))?;
    if in_force == 0 {
        return Ok(Variants::both(if older.leads {
            IpvsRules::KubeProxys
        } else if beside_table && sets::has_own(family)? {
            // An interrupted clean-up may have left chains that refer to sets.
            IpvsRules::Ours
        } else {
            IpvsRules::None
        }));
    }
    Ok(Variants {
        nft: owner_of(leads, in_force.saturating_sub(older.references)),
        legacy: owner_of(older.leads, older.references),
    })
}

/// Returns the owner of the rules of a variant: `leads` is true if the jump of the IPVS mode exists, and `references`
/// is the number of rules that refer to our set.
const fn owner_of(leads: bool, references: u32) -> IpvsRules {
    match (leads, references) {
        (_, 1..) => IpvsRules::Ours,
        (true, 0) => IpvsRules::KubeProxys,
        (false, 0) => IpvsRules::None,
    }
}

/// The tables that exist.
#[derive(Debug, Default)]
struct Tables {
    /// A table of ours that leads to Services exists.
    own: bool,
    /// The table of kube-proxy's nftables mode exists.
    kube_proxys: bool,
}

fn has_tables(family: Family) -> Result<Tables, portolan_engine::Error> {
    let mut socket = Socket::open(Protocol::Netfilter).map_err(portolan_engine::Error::from)?;
    retry_on_change(|| {
        let mut found = Tables::default();
        socket.dump(&mut request::tables(wire_family(family)), |frame| {
            if let NftablesEvent::NewTable(table) = NftablesEvent::decode(frame)? {
                found.own |= OWN.contains(&&*table.name);
                found.kube_proxys |= table.name == KUBE_PROXY;
            }
            Ok(())
        })?;
        Ok(found)
    })
}

/// Returns true if the chain is empty or missing where iptables is a front end of nftables.
fn has_no_rules(family: Family) -> Result<bool, portolan_engine::Error> {
    let ((table, chain), mut socket) = (FORWARD, Socket::open(Protocol::Netfilter)?);
    retry_on_change(|| {
        let mut found = false;
        socket.dump(&mut request::rules(wire_family(family), table, None), |frame| {
            if let NftablesEvent::NewRule(rule) = NftablesEvent::decode(frame)? {
                found |= (&*rule.table, &*rule.chain) == (table, chain);
            }
            Ok(())
        })?;
        Ok(!found)
    })
}
