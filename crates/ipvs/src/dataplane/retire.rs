//! The retirement of this mode on a node: first its rules, then each virtual server when its connections have ended,
//! then the rest. It starts a moment after another mode has become active, when the packets that entered this mode
//! have passed.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use portolan_model::Family;

use super::Ipvs;
use crate::Error;
use crate::frontend::Key;
use crate::rules;
use crate::set::Set;
use portolan_engine::dataplane::{Claims, Removal, TRANSIT_TIME, Takeover};

/// The time between two checks for connections.
const PAUSE: Duration = Duration::from_secs(1);
/// How often sets may be found in use before the removal goes on without them. There are at most a hundred attempts in a
/// second, and a busy node may take seconds to release a set.
const PATIENCE: u32 = 2000;

/// The progress of a retirement: another mode is active, and connections of this one drain.
#[derive(Debug)]
pub(super) struct Retiring {
    /// True once the packets that had entered this mode have passed.
    has_waited: bool,
    /// True until the rules are removed. Chains that stay for other programs have none.
    has_rules: bool,
    /// Sets to be removed before the virtual servers. Each removal takes the kernel some time.
    sets: VecDeque<Set>,
    /// How often a set may still be found in use. A rule of another program may refer to one for good.
    patience: u32,
}

impl Default for Retiring {
    fn default() -> Self {
        let sets = Set::ALL.into_iter().filter(|set| *set != Set::Own).collect();
        Self { has_waited: false, has_rules: true, sets, patience: PATIENCE }
    }
}

impl Ipvs {
    /// Carries out the next step of the retirement; after the time to drain, removes all virtual servers.
    pub(super) fn retire_step(
        &mut self,
        retiring: &mut Retiring,
        takeover: &Takeover<'_>,
    ) -> Result<Removal, Error> {
        if !retiring.has_waited {
            retiring.has_waited = true;
            return Ok(Removal::Continues(TRANSIT_TIME));
        }
        if retiring.has_rules {
            self.remove_rules(takeover.kept)?;
            retiring.has_rules = false;
        } else if let Some(set) = retiring.sets.pop_front() {
            // The kernel releases a set a moment after the rule that referred to it is removed.
            if !self.kernel.destroy(set)? {
                if retiring.patience > 0 {
                    retiring.patience = retiring.patience.saturating_sub(1);
                    retiring.sets.push_back(set);
                } else {
                    let name = set.name(self.desired.settings().family);
                    tracing::warn!(set = name, "a rule of another program refers to this ipset, which stays");
                }
            }
        } else if self.remove_servers(takeover.elapsed >= self.options.drain)? {
            return Ok(Removal::Continues(PAUSE));
        } else {
            let family = self.desired.settings().family;
            tracing::info!(%family, "the last connection has ended, and no virtual server is left");
            return Ok(Removal::Done);
        }
        Ok(Removal::Continues(Duration::ZERO))
    }

    /// Returns the chains that this mode uses.
    pub(super) fn claims(&self) -> Claims {
        let family = self.desired.settings().family;
        Claims { place: self.programs.variant().place(), family, uses: rules::uses }
    }

    /// Removes the rules, once. Chains that rules of other programs lead to stay without rules, and are not waited for:
    /// those rules may be there for good, and an empty chain refers to no ipset.
    fn remove_rules(&self, kept: Option<Claims>) -> Result<(), Error> {
        let kept = kept.filter(|kept| kept.are_where(&self.claims()));
        let is_kept = |table: &str, chain: &str| kept.is_some_and(|kept| (kept.uses)(table, chain));
        let present = self.present_rules()?;
        self.restore(&present.removal(is_kept))?;
        for chain in present.staying(is_kept) {
            tracing::warn!(chain, "a rule of another program leads to this chain, which stays without rules");
        }
        Ok(())
    }

    /// Removes virtual servers without connections, or all of them, and the addresses that no virtual server uses.
    /// Returns true if virtual servers remain.
    fn remove_servers(&mut self, all: bool) -> Result<bool, Error> {
        let (mut left, mut gone) = (BTreeSet::new(), BTreeSet::new());
        let owners = self.kernel.owners(&self.options.exclude)?;
        for key in owners.own {
            let has_connections = !all
                && self.kernel.real_servers(&key)?.iter().any(|real| real.active > 0 || real.inactive > 0);
            if has_connections {
                left.insert(key);
            } else {
                gone.insert(key);
            }
        }
        self.kernel.remove_virtual_servers(&gone)?;
        self.remove_addresses(&left, &owners.noted)?;
        if left.is_empty() {
            // The set names our virtual servers and addresses, so it goes last: after a failure, the next attempt
            // needs it.
            self.kernel.destroy(Set::Own)?;
            self.remove_device()?;
        }
        Ok(!left.is_empty())
    }

    fn remove_addresses(&mut self, left: &BTreeSet<Key>, noted: &BTreeSet<IpAddr>) -> Result<(), Error> {
        let Some(device) = self.kernel.device()? else { return Ok(()) };
        let used: BTreeSet<IpAddr> = left.iter().map(|key| key.address).collect();
        let addresses = self.kernel.addresses(device)?;
        let unused: Vec<IpAddr> = addresses
            .device
            .difference(&addresses.staying)
            .filter(|address| !used.contains(address))
            .filter(|address| noted.contains(address) || !self.options.excludes(**address))
            .copied()
            .collect();
        self.kernel.remove_addresses(device, &unused)
    }

    /// Removes the device once neither family has virtual servers of ours. Those of node ports need no address on it,
    /// but a restart and a clean-up look for them only where the device exists.
    fn remove_device(&mut self) -> Result<(), Error> {
        for family in Family::BOTH {
            if self.kernel.has_set(Set::Own, family)? {
                return Ok(());
            }
        }
        self.kernel.remove_device()
    }
}
