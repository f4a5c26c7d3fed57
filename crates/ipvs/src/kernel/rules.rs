//! Removes rules over netlink, where iptables is a front end of nftables. Only root may run the programs of iptables, so an agent
//! without root uses this.

use std::collections::BTreeSet;

use portolan_iptables::netlink::{commit, jump, retry_on_change, wire_family};
use portolan_sock::ATTEMPTS;
use portolan_wire::nftables::{NftablesEvent, request};

use super::Kernel;
use crate::Error;
use crate::rules::{Going, listed_tables, uses};

impl Kernel {
    /// Removes the chains of this mode and the rules that lead to them. Returns the chains that stay without rules, because rules of
    /// other programs lead to them. The removal of kube-proxy's leftovers may take the same chains at the same time, so this
    /// looks again after a failure.
    pub(crate) fn remove_rules(&mut self) -> Result<BTreeSet<String>, Error> {
        let mut held = BTreeSet::new();
        for table in listed_tables() {
            let mut outcome = self.remove_from(table);
            for _ in 1..ATTEMPTS {
                if outcome.is_ok() {
                    break;
                }
                outcome = self.remove_from(table);
            }
            held.extend(outcome.map_err(|source| Error::Chains { table, source })?);
        }
        Ok(held)
    }

    /// Removes what is in one table. The rules by which packets enter go first, so that what is left for a moment has no effect.
    fn remove_from(&mut self, table: &str) -> Result<BTreeSet<String>, portolan_engine::Error> {
        let Going { entries, chains, held } = self.going(table)?;
        let family = wire_family(self.family);
        if !entries.is_empty() {
            commit(&mut self.netfilter, |transaction| {
                for (from, rule) in &entries {
                    transaction.delete_rule(family, table, from, *rule);
                }
            })?;
        }
        if !chains.is_empty() {
            commit(&mut self.netfilter, |transaction| {
                for chain in &chains {
                    transaction.flush_chain(family, table, chain);
                }
            })?;
        }
        if chains.len() > held.len() {
            commit(&mut self.netfilter, |transaction| {
                for chain in chains.difference(&held) {
                    transaction.delete_chain(family, table, chain);
                }
            })?;
        }
        Ok(held)
    }

    fn going(&mut self, table: &str) -> Result<Going, portolan_engine::Error> {
        let family = wire_family(self.family);
        retry_on_change(|| {
            let (mut chains, mut jumps) = (BTreeSet::new(), Vec::new());
            self.netfilter.dump(&mut request::chains(family), |frame| {
                if let NftablesEvent::NewChain(chain) = NftablesEvent::decode(frame)?
                    && (&*chain.table, chain.family) == (table, family)
                {
                    chains.insert(chain.name);
                }
                Ok(())
            })?;
            // The kernel has no such table, or nothing of this mode is in it.
            if !chains.iter().any(|chain| uses(table, chain)) {
                return Ok(Going::default());
            }
            self.netfilter.dump(&mut request::rules(family, table, None), |frame| {
                if let NftablesEvent::NewRule(rule) = NftablesEvent::decode(frame)?
                    && (&*rule.table, rule.family) == (table, family)
                {
                    jumps.extend(jump(rule));
                }
                Ok(())
            })?;
            Ok(Going::of(table, chains, jumps))
        })
    }
}
