//! Whether kube-proxy does the work where rules of ours still do: without it they are all that leads to Services. And whether
//! it does so in its IPVS mode, which uses what ours has made.

use portolan_model::Family;
use portolan_sock::{Protocol, Socket};
use portolan_wire::nftables::{Event, request};

use super::tables::{self, KUBE_PROXY, consistently, wire_family};
use super::{Error, legacy, sets};
use crate::nft;

/// The chain that kube-proxy fills in its modes iptables and IPVS, by the last thing that it does in a family, whatever
/// Services there are. Before that it is empty. No kubelet writes to it.
const FORWARD: (&str, &str) = ("filter", "KUBE-FORWARD");
/// Tables of ours that lead to Services.
const OWN: [&str; 3] = [nft::TABLE, nft::CAPTURE_TABLE, nft::CONNECTIONS_TABLE];

/// A way that leads through the chains of the IPVS mode only, kube-proxy's and ours: its table, and from where to where.
const IPVS_WAY: (&str, &str, &str) = ("nat", "KUBE-SERVICES", "KUBE-NODE-PORT");

/// Whose the rules of the IPVS mode are, which have the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IpvsRules {
    /// There are none.
    None,
    /// Of our own IPVS mode, or what an earlier clean-up has left of them.
    Ours,
    /// kube-proxy has written its own over what was there.
    KubeProxys,
}

/// Whose the rules of the IPVS mode are in each variant of iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Variants {
    pub(super) nft: IpvsRules,
    pub(super) legacy: IpvsRules,
}

impl Variants {
    const fn both(rules: IpvsRules) -> Self {
        Self { nft: rules, legacy: rules }
    }

    /// Whether in some variant the rules are these.
    pub(super) fn any(self, rules: IpvsRules) -> bool {
        [self.nft, self.legacy].contains(&rules)
    }
}

/// The families in which rules of ours lead to Services in the network namespace of this thread, and kube-proxy has neither
/// the table of its nftables mode nor the rules of another mode there.
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

/// Whether kube-proxy has come to its end in one of its modes iptables and IPVS. Where the rules are ours, they fill the same
/// chain, so only the other variant of iptables tells.
fn is_programmed(family: Family, rules: Variants) -> Result<bool, Error> {
    let failed = |source| Error::Nftables { what: "rules", family, source };
    Ok((rules.nft != IpvsRules::Ours && !has_no_rules(family).map_err(failed)?)
        || (rules.legacy != IpvsRules::Ours && legacy::has_rules(family, FORWARD)?))
}

/// Whether a kube-proxy in IPVS mode has written its rules in the network namespace of this thread: then virtual servers, their
/// device and the ipsets that it knows are its own.
pub fn runs_ipvs() -> Result<bool, Error> {
    for family in Family::BOTH {
        if ipvs_rules(family)?.any(IpvsRules::KubeProxys) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whose the rules of the IPVS mode in a family are.
pub(super) fn ipvs_rules(family: Family) -> Result<Variants, Error> {
    let failed = |source| Error::Nftables { what: "rules", family, source };
    // Without sets there are no rules that refer to them.
    if !sets::are_there(family)? {
        return Ok(Variants::both(IpvsRules::None));
    }
    let (table, from, to) = IPVS_WAY;
    let leads = tables::leads(family, table, from, to).map_err(failed)?;
    let in_force = sets::rules_in_force(family)?;
    let beside_table = has_tables(family).map_err(failed)?.kube_proxys;
    // Not every user may look into the older iptables, so that is done where nothing else tells.
    if in_force == 0 && leads {
        return Ok(Variants::both(IpvsRules::KubeProxys));
    }
    if in_force > 0 && beside_table {
        return Ok(Variants::both(IpvsRules::Ours));
    }
    let older = legacy::find(family, IPVS_WAY, &sets::refused(family))?;
    if in_force == 0 {
        return Ok(Variants::both(if older.leads {
            IpvsRules::KubeProxys
        } else if beside_table && sets::has_own(family)? {
            // A clean-up that did not come to its end may have left chains that lead to sets.
            IpvsRules::Ours
        } else {
            IpvsRules::None
        }));
    }
    Ok(Variants {
        nft: whose(leads, in_force.saturating_sub(older.references)),
        legacy: whose(older.leads, older.references),
    })
}

/// Whose the rules of a variant are, by whether they lead the way of the IPVS mode, and how many refer to a set of ours.
const fn whose(leads: bool, references: u32) -> IpvsRules {
    match (leads, references) {
        (_, 1..) => IpvsRules::Ours,
        (true, 0) => IpvsRules::KubeProxys,
        (false, 0) => IpvsRules::None,
    }
}

/// Which tables are there.
#[derive(Debug, Default)]
struct Tables {
    /// Some of ours that lead to Services.
    own: bool,
    /// That of kube-proxy's nftables mode.
    kube_proxys: bool,
}

fn has_tables(family: Family) -> Result<Tables, crate::Error> {
    let mut socket = Socket::open(Protocol::Netfilter).map_err(crate::Error::from)?;
    consistently(|| {
        let mut found = Tables::default();
        socket.dump(&mut request::tables(wire_family(family)), |frame| {
            if let Event::NewTable(table) = Event::decode(frame)? {
                found.own |= OWN.contains(&&*table.name);
                found.kube_proxys |= table.name == KUBE_PROXY;
            }
            Ok(())
        })?;
        Ok(found)
    })
}

/// Whether the chain is empty where iptables is a front end of nftables, or not there.
fn has_no_rules(family: Family) -> Result<bool, crate::Error> {
    let ((table, chain), mut socket) = (FORWARD, Socket::open(Protocol::Netfilter)?);
    consistently(|| {
        let mut found = false;
        socket.dump(&mut request::rules(wire_family(family), table, None), |frame| {
            if let Event::NewRule(rule) = Event::decode(frame)? {
                found |= (&*rule.table, &*rule.chain) == (table, chain);
            }
            Ok(())
        })?;
        Ok(!found)
    })
}
