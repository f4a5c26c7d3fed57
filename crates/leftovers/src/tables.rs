//! kube-proxy's tables and chains in the nftables ruleset, over netlink.

use portolan_model::Family;
use portolan_sock::{Protocol, Socket, SocketError};
use portolan_wire::nftables::{Data, Expr, Family as WireFamily, NftablesEvent, Rule, Verdict, request};

use super::chains::{Entries, FIREWALL, KUBELETS, Plan, RemovedChains, TABLES, keep_firewall, plan};
use super::firewall;
use super::found::{Found, Held, Kind, Object};
use portolan_engine::Error;
use portolan_iptables::Variant;
use portolan_iptables::netlink::{commit, jump, retry_on_change, wire_family};
use portolan_ipvs::Jump as Entry;

/// The table of kube-proxy's nftables mode.
pub(super) const KUBE_PROXY: &str = "kube-proxy";
/// `NFT_TABLE_F_OWNER`: only the process that made the table may change it.
const OWNED: u32 = 2;
/// Chains in one transaction: few enough for any socket buffer.
const CHAINS: usize = 512;

/// Removes the table of the nftables mode. Returns true if it existed.
pub(super) fn remove_table(family: Family) -> Result<bool, Error> {
    let mut socket = Socket::open(Protocol::Netfilter)?;
    portolan_nftables::remove_table(&mut socket, wire_family(family), KUBE_PROXY)
}

/// Removes the chains of the iptables and IPVS modes, with the rules that lead to them. The first transaction removes
/// the rules by which packets enter them, so that the chains that remain for a moment have no effect. Chains for
/// which `keep` (called with table and chain) returns true stay. Of the rules that lead to these, those of `entries`
/// are removed.
pub(super) fn remove_chains(
    family: Family,
    keep: impl Fn(&str, &str) -> bool,
    entries: Entries,
) -> Result<RemovedChains, Error> {
    let mut socket = Socket::open(Protocol::Netfilter)?;
    let mut outcome = RemovedChains::default();
    for table in TABLES {
        let plan = retry_on_change(|| read(&mut socket, family, table, &keep, &entries(table)))?;
        if !plan.is_empty() {
            remove(&mut socket, wire_family(family), table, &plan)?;
        }
        outcome.add(plan);
    }
    Ok(outcome)
}

/// Lists what [`remove_chains`] would remove.
pub(super) fn find_chains(
    family: Family,
    keep: impl Fn(&str, &str) -> bool,
    entries: Entries,
    found: &mut Found,
) -> Result<(), Error> {
    let mut socket = Socket::open(Protocol::Netfilter)?;
    for table in TABLES {
        let plan = retry_on_change(|| read(&mut socket, family, table, &keep, &entries(table)))?;
        plan.list(Variant::Nft, family, table, found);
    }
    Ok(())
}

/// Lists the tables with these names. A table that a process owns cannot be removed by others.
pub(super) fn find_tables(family: Family, names: &[&str], found: &mut Found) -> Result<(), Error> {
    let mut socket = Socket::open(Protocol::Netfilter)?;
    let tables = retry_on_change(|| {
        let mut tables = Vec::new();
        socket.dump(&mut request::tables(wire_family(family)), |frame| {
            match NftablesEvent::decode(frame)? {
                NftablesEvent::NewTable(table)
                    if table.family == wire_family(family) && names.contains(&&*table.name) =>
                {
                    tables.push(table);
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(tables)
    })?;
    for table in tables {
        let object = Object::new(Kind::Table, Some(family), table.name);
        if table.flags & OWNED == 0 {
            found.objects.push(object);
        } else {
            let reason = "a running process owns it (flag owner): end that process".to_owned();
            found.held.push(Held { object, reason });
        }
    }
    Ok(())
}

/// Returns true if a rule leads from one chain of a table to another.
pub(super) fn leads(family: Family, table: &str, from: &str, to: &str) -> Result<bool, Error> {
    let mut socket = Socket::open(Protocol::Netfilter)?;
    retry_on_change(|| {
        let mut found = false;
        socket.dump(&mut request::rules(wire_family(family), table, Some(from)), |frame| {
            if let NftablesEvent::NewRule(rule) = NftablesEvent::decode(frame)?
                && rule.table == table
            {
                found |= jump(rule).is_some_and(|jump| (&*jump.from, &*jump.to) == (from, to));
            }
            Ok(())
        })?;
        Ok(found)
    })
}

/// Returns true if kubelet has left its chains where iptables is a front end of nftables, in either family.
pub(super) fn has_chains_of_kubelet() -> Result<bool, Error> {
    let mut socket = Socket::open(Protocol::Netfilter)?;
    let mut found = false;
    for family in Family::BOTH {
        found |= retry_on_change(|| {
            let mut found = false;
            socket.dump(&mut request::chains(wire_family(family)), |frame| {
                if let NftablesEvent::NewChain(chain) = NftablesEvent::decode(frame)? {
                    found |= TABLES.contains(&&*chain.table) && KUBELETS.contains(&&*chain.name);
                }
                Ok(())
            })?;
            Ok(found)
        })?;
    }
    Ok(found)
}

fn remove(socket: &mut Socket, family: WireFamily, table: &str, plan: &Plan<u64>) -> Result<(), Error> {
    let chains: Vec<&String> = plan.chains.iter().collect();
    if !plan.rules.is_empty() {
        commit(socket, |transaction| {
            for jump in &plan.rules {
                transaction.delete_rule(family, table, &jump.from, jump.rule);
            }
        })?;
    }
    for chains in chains.chunks(CHAINS) {
        commit(socket, |transaction| {
            for chain in chains {
                transaction.flush_chain(family, table, chain);
            }
        })?;
    }
    for chains in chains.chunks(CHAINS) {
        commit(socket, |transaction| {
            for chain in chains {
                transaction.delete_chain(family, table, chain);
            }
        })?;
    }
    Ok(())
}

fn read(
    socket: &mut Socket,
    of: Family,
    table: &str,
    keep: &dyn Fn(&str, &str) -> bool,
    entries: &[&Entry],
) -> Result<Plan<u64>, SocketError> {
    let family = wire_family(of);
    let (mut chains, mut jumps, mut is_shared) = (Vec::new(), Vec::new(), false);
    let mut unused = Vec::new();
    socket.dump(&mut request::chains(family), |frame| {
        match NftablesEvent::decode(frame)? {
            NftablesEvent::NewChain(chain) if chain.table == table && chain.family == family => {
                chains.push(chain.name);
            }
            _ => {}
        }
        Ok(())
    })?;
    let has_entered = |chain: &String| entries.iter().any(|entry| entry.to == chain);
    let has_entered = chains.iter().any(has_entered);
    let is_kept = keep(table, FIREWALL);
    let kept = keep_firewall(&mut chains, table, is_kept, false);
    chains.retain(|chain| !keep(table, chain));
    if !has_entered && !chains.iter().any(|chain| chain.starts_with("KUBE-")) {
        return Ok(Plan { firewall: kept, ..plan(table, std::iter::empty(), jumps) });
    }
    socket.dump(&mut request::rules(family, table, None), |frame| {
        match NftablesEvent::decode(frame)? {
            NftablesEvent::NewRule(rule) if rule.table == table && rule.family == family => {
                is_shared |= rule.chain == FIREWALL && !firewall::is_ours(of, &rule);
                let is_unused = entries.iter().any(|entry| is_entry(entry, &rule));
                let jump = jump(rule);
                unused.extend(jump.clone().filter(|_| is_unused));
                jumps.extend(jump);
            }
            _ => {}
        }
        Ok(())
    })?;
    let firewall = kept.or_else(|| keep_firewall(&mut chains, table, false, is_shared));
    Ok(Plan { firewall, ..plan(table, chains.into_iter(), jumps).and(unused) })
}

/// Returns true if the rule is what iptables makes of `entry`: a comment, a counter and the jump, and nothing more.
fn is_entry(entry: &Entry, rule: &Rule) -> bool {
    let comment = [entry.comment.as_bytes(), b"\0"].concat();
    let is_part = |expression: &Expr| match expression {
        Expr::Counter(_) => true,
        Expr::Immediate(immediate) => {
            matches!(&immediate.data, Data::Verdict(Verdict::Jump(to)) if to == entry.to)
        }
        Expr::Other { name, bytes } => {
            name == firewall::MODULE && bytes.windows(comment.len()).any(|part| part == comment)
        }
        _ => false,
    };
    let is_commented = rule.expressions.iter().any(|expression| matches!(expression, Expr::Other { .. }));
    rule.chain == entry.from && is_commented && rule.expressions.iter().all(is_part)
}
