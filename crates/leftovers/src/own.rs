//! Removes what only our own IPVS mode needs, when kube-proxy is active.
//!
//! Most of its names are kube-proxy's. A kube-proxy in IPVS mode uses the objects with these names; in another mode
//! it neither uses nor removes them.

use ipnet::IpNet;
use portolan_model::Family;

use super::chains::{CANARY, Entries};
use super::found::{Found, Object};
use super::successor::{IpvsRules, Variants, ipvs_rules};
use super::{Error, Removed, ipvs, legacy, sets, tables};
use portolan_ipvs as mode;

/// Removes what our IPVS mode made and kube-proxy does not use, in the network namespace of this thread, for both
/// families.
///
/// If kube-proxy runs in IPVS mode, that is only what has names of our own: chains of the mangle table, and ipsets.
/// Connections go on. Otherwise it is everything except for chains of kube-proxy's iptables mode: virtual servers
/// with their connections, their device, ipsets, chains, and the rules of the IPVS mode that lead into chains that
/// stay. In `exclude` (`ipvs.excludeCIDRs`) virtual servers and addresses stay, unless they are noted as ours.
pub fn remove_own(exclude: &[IpNet]) -> (Removed, Vec<Error>) {
    let (mut removed, mut errors) = (Removed::default(), Vec::new());
    let rules = match families() {
        Ok(rules) => rules,
        Err(error) => return (removed, vec![error]),
    };
    for (family, rules) in rules {
        remove_chains(family, rules, &mut removed, &mut errors);
    }
    let is_kube_proxys = rules.iter().any(|(_, rules)| rules.any(IpvsRules::KubeProxys));
    if let Err(error) = remove_objects(exclude, is_kube_proxys, &mut removed) {
        errors.push(error);
    }
    (removed, errors)
}

/// Lists what [`remove_own`] would remove.
pub fn find_own(exclude: &[IpNet]) -> (Found, Vec<Error>) {
    let (mut found, mut errors) = (Found::default(), Vec::new());
    let rules = match families() {
        Ok(rules) => rules,
        Err(error) => return (found, vec![error]),
    };
    for (family, rules) in rules {
        let failed = |source| Error::Nftables { what: "chains of the ipvs mode", family, source };
        let keep = |rules| move |table: &str, chain: &str| !is_unused(rules, table, chain);
        errors.extend(
            tables::find_chains(family, keep(rules.nft), entries(rules.nft), &mut found)
                .map_err(failed)
                .err(),
        );
        errors
            .extend(legacy::find_chains(family, keep(rules.legacy), entries(rules.legacy), &mut found).err());
    }
    // kube-proxy uses what stays, whatever else the reason is.
    found.kept.clear();
    let is_kube_proxys = rules.iter().any(|(_, rules)| rules.any(IpvsRules::KubeProxys));
    match find_objects(exclude, is_kube_proxys) {
        Ok(objects) => found.objects.extend(objects),
        Err(error) => errors.push(error),
    }
    (found, errors)
}

fn find_objects(exclude: &[IpNet], is_kube_proxys: bool) -> Result<Vec<Object>, Error> {
    if is_kube_proxys || !sets::has_marker()? {
        return sets::find_own();
    }
    let mut objects = ipvs::find(exclude)?;
    objects.extend(sets::find()?);
    Ok(objects)
}

fn families() -> Result<[(Family, Variants); 2], Error> {
    let [first, second] = Family::BOTH;
    Ok([(first, ipvs_rules(first)?), (second, ipvs_rules(second)?)])
}

fn remove_chains(family: Family, rules: Variants, removed: &mut Removed, errors: &mut Vec<Error>) {
    let keep = |rules| move |table: &str, chain: &str| !is_unused(rules, table, chain);
    let failed = |source| Error::Nftables { what: "chains of the ipvs mode", family, source };
    match tables::remove_chains(family, keep(rules.nft), entries(rules.nft)).map_err(failed) {
        Ok(outcome) => removed.take(outcome),
        Err(error) => errors.push(error),
    }
    match legacy::remove_chains(family, keep(rules.legacy), entries(rules.legacy)) {
        Ok(outcome) => removed.take(outcome),
        Err(error) => errors.push(error),
    }
}

/// Returns the rules of built-in chains that lead into our IPVS mode only. None if kube-proxy's IPVS mode uses them.
/// The iptables mode has some of the chains, but other rules that lead to them.
fn entries(rules: IpvsRules) -> Entries {
    match rules {
        IpvsRules::KubeProxys => |_| Vec::new(),
        IpvsRules::None | IpvsRules::Ours => |table| mode::own_jumps(table).collect(),
    }
}

/// Returns true if the chain is one of our IPVS mode that kube-proxy does not use.
fn is_unused(rules: IpvsRules, table: &str, chain: &str) -> bool {
    match rules {
        IpvsRules::KubeProxys => table == "mangle" && chain != CANARY,
        // The iptables mode has some of the names.
        IpvsRules::None => mode::uses(table, chain) && !portolan_iptables::is_own(table, chain),
        // kube-proxy runs in nftables mode, which has no such chains, or uses the other variant of iptables.
        IpvsRules::Ours => mode::uses(table, chain),
    }
}

/// Removes virtual servers, the device and ipsets. The rules that refer to them have been removed before.
fn remove_objects(exclude: &[IpNet], is_kube_proxys: bool, removed: &mut Removed) -> Result<(), Error> {
    if is_kube_proxys || !sets::has_marker()? {
        removed.sets = sets::remove_own()?;
        return Ok(());
    }
    // The sets name our virtual servers, so they go last.
    if let Some(gone) = ipvs::remove(exclude)? {
        (removed.virtual_servers, removed.devices) = (gone.virtual_servers, usize::from(gone.device));
    }
    removed.sets = sets::remove()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_that_kube_proxy_uses_stay_in_each_of_its_modes() {
        let all = [
            ("nat", "KUBE-SERVICES"),
            ("nat", "KUBE-LOAD-BALANCER"),
            ("filter", "KUBE-FORWARD"),
            ("filter", "KUBE-IPVS-FILTER"),
            ("filter", "KUBE-FIREWALL"),
            ("mangle", "KUBE-IPVS-OUT-FILTER"),
            ("mangle", "KUBE-PROXY-CANARY"),
            ("filter", "KUBE-IPVS-OUT-FILTER"),
        ];
        let unused = |rules| all.map(|(table, chain)| is_unused(rules, table, chain));
        assert_eq!(unused(IpvsRules::KubeProxys), [false, false, false, false, false, true, false, false]);
        assert_eq!(
            unused(IpvsRules::None),
            [false, true, false, true, false, true, false, true],
            "the iptables mode"
        );
        assert_eq!(
            unused(IpvsRules::Ours),
            [true, true, true, true, false, true, false, true],
            "the nftables mode"
        );
    }
}
