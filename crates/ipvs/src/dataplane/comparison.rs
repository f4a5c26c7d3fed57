//! Compares everything in the kernel with the desired state and writes the differences, until nothing more can be
//! written.

use std::collections::{BTreeMap, BTreeSet};

use portolan_model::IpvsScheduler;

use super::Ipvs;
use crate::Error;
use crate::difference::{Difference, WriteSettings};
use crate::draining::UptimeSecs;
use crate::frontend::{Config, Key};
use crate::owners::Owners;
use crate::refusal::{self, Refused};
use crate::set::Set;
use portolan_engine::dataplane::{Commit, Condition};
use portolan_engine::table::Table;

/// What a comparison reads before it compares virtual servers.
pub(crate) struct Read {
    /// The owners of the virtual servers.
    pub(crate) owners: Owners,
    pub(crate) difference: Difference,
    /// The sets that are missing.
    pub(crate) missing: Vec<Set>,
}

impl Ipvs {
    /// Reads everything back and writes the differences. If the kernel refuses an object, does so a second time, and
    /// only reports what the kernel refuses then. Services whose scheduler the kernel lacks get the default one.
    pub(super) fn load(&mut self, table: &Table) -> Result<Commit, Error> {
        self.desired.restore_left_out(table);
        let outcome = self.load_what_fits(table);
        if !matches!(outcome, Err(Error::Refused { .. })) {
            return outcome;
        }
        self.is_second_attempt = true;
        let outcome = self.load_what_fits(table);
        self.is_second_attempt = false;
        outcome
    }

    /// Leaves out Service ports that do not fit into a set. If some members of a Service port were missing, it would
    /// be open to clients that the missing ones exclude.
    fn load_what_fits(&mut self, table: &Table) -> Result<Commit, Error> {
        // Service ports that the first attempt left out are left out in the second, too.
        let mut full = if self.is_second_attempt { self.refusals.full().clone() } else { BTreeSet::new() };
        let outcome = loop {
            match self.load_with_schedulers(table) {
                Err(error @ Error::Full { .. }) => {
                    let overflow = std::mem::take(&mut self.overflow);
                    full.extend(overflow.iter().filter_map(Refused::set));
                    let without_room = refusal::owners(&overflow, &self.desired, table).into_keys();
                    self.refusals.log_full(&overflow);
                    if !self.desired.leave_out(without_room, &full, table) {
                        break Err(error);
                    }
                }
                outcome => break outcome,
            }
        };
        self.refusals.set_full(full);
        outcome
    }

    fn load_with_schedulers(&mut self, table: &Table) -> Result<Commit, Error> {
        for _ in IpvsScheduler::ALL {
            match self.load_once(table) {
                Err(Error::Scheduler { scheduler })
                    if scheduler != self.options.scheduler && !self.missing.contains(&scheduler) =>
                {
                    tracing::warn!(%scheduler, "the kernel does not have an IPVS scheduler that Services ask for");
                    self.missing.push(scheduler);
                }
                outcome => return outcome,
            }
        }
        self.load_once(table)
    }

    fn load_once(&mut self, table: &Table) -> Result<Commit, Error> {
        self.kernel.set_timeouts(self.options.timeouts)?;
        self.device = self.kernel.ensure_device()?;
        let Read { owners, mut difference, missing } = self.read(table)?;
        for set in missing {
            if set == Set::Own {
                self.create_own(&owners, &mut difference)?;
            } else {
                self.kernel.create(set)?;
            }
            self.written.objects(1);
        }
        match self.kernel.enlarge_own() {
            Ok(is_new) => self.written.objects(is_new.into()),
            // It can be used as it is, up to the number of members that it takes.
            Err(error) => tracing::warn!(%error, "the ipset of virtual servers stays small"),
        }
        let found = self.compare_servers(&mut difference)?;
        difference.remove_stale(found, &owners);
        let present = self.present_rules()?;
        let mut commit = self.write(&difference, Some(&present), table)?;
        commit.full = true;
        self.draining.clear();
        self.note_draining(&difference);
        Ok(commit)
    }

    /// Creates the set of our virtual servers, with those that kube-proxy has left: if this attempt fails, the next one knows them
    /// by the set only. Those that are not needed leave it at the end, after the virtual servers themselves.
    fn create_own(&mut self, owners: &Owners, difference: &mut Difference) -> Result<(), Error> {
        self.kernel.create_own(owners.adopted.iter().map(Key::member))?;
        let adopted = owners.adopted.iter().map(|key| (Set::Own, key.member()));
        difference.remove.extend(adopted.filter(|member| !self.desired.has_member(member)));
        Ok(())
    }

    /// Compares virtual servers and their real servers. Returns the virtual servers that the table does not need:
    /// those of other programs, and stale ones of ours.
    pub(crate) fn compare_servers(
        &mut self,
        difference: &mut Difference,
    ) -> Result<BTreeMap<Key, Option<Config>>, Error> {
        let mut found = self.kernel.virtual_servers()?;
        // Not by `manner`, which would borrow all of `self` while the kernel is read.
        let manner = WriteSettings {
            default: self.options.scheduler,
            missing: self.missing.as_slice(),
            drained_by: UptimeSecs::now().after(self.options.drain),
        };
        let servers: Vec<Key> = self.desired.servers().map(|(key, _)| *key).collect();
        for key in servers {
            let present = match found.remove(&key) {
                Some(config) => Some(self.kernel.present(&key, config)?),
                None => None,
            };
            difference.server(key, present.as_ref(), self.desired.server(&key), manner);
        }
        Ok(found)
    }

    /// Reads addresses and sets, and compares them. Writes nothing.
    pub(crate) fn read(&mut self, table: &Table) -> Result<Read, Error> {
        // Later changes of addresses are noticed by their events.
        self.kernel.addresses_changed(self.device)?;
        let addresses = self.kernel.addresses(self.device)?;
        self.desired.set_node_addresses(addresses.node.iter().copied().collect(), table);
        // The owners are read before the set of our virtual servers is created or gets new members.
        let mut owners = self.kernel.owners(&self.options.exclude)?;
        self.desired.set_foreign(std::mem::take(&mut owners.foreign), table);
        let mut difference = Difference::default();
        difference.addresses(&addresses, &self.desired);
        let excludes = |address| self.options.excludes(address) && !owners.noted.contains(&address);
        difference.unbind.retain(|address| !excludes(*address));
        let mut missing = Vec::new();
        for set in Set::ALL {
            let found = self.kernel.members(set)?;
            missing.extend(found.is_none().then_some(set));
            difference.members(set, &found.unwrap_or_default(), &self.desired);
        }
        Ok(Read { owners, difference, missing })
    }

    /// Returns whether the kernel has everything except for what it refuses.
    pub(super) fn condition(&mut self, table: &Table) -> Result<Condition, Error> {
        let Some(found) = self.found_intact()? else { return Ok(Condition::Changed) };
        // If a program has removed its virtual server, a Service may have one there.
        let is_free = self.desired.blocking(table).iter().any(|key| !found.contains(key));
        let is_outdated = is_free || self.node_changed()? || self.has_new_scheduler()?;
        Ok(if is_outdated { Condition::Outdated } else { Condition::Intact })
    }

    /// Returns the virtual servers of other programs if the kernel has everything that was written. Does not look at what that
    /// depends on.
    fn found_intact(&mut self) -> Result<Option<BTreeSet<Key>>, Error> {
        if self.kernel.device()? != Some(self.device) {
            return Ok(None);
        }
        let mut difference = Difference::default();
        let addresses = self.kernel.addresses(self.device)?;
        difference.addresses(&addresses, &self.desired);
        difference.unbind.retain(|address| !self.options.excludes(*address));
        for set in Set::ALL {
            let Some(found) = self.kernel.members(set)? else { return Ok(None) };
            difference.members(set, &found, &self.desired);
        }
        let found = self.compare_servers(&mut difference)?;
        let is_intact =
            difference.len() == self.refusals.count() && self.rules.are_in(&self.present_rules()?);
        Ok(is_intact.then(|| found.into_keys().collect()))
    }

    /// Returns true if the kernel has a scheduler that it lacked before.
    pub(super) fn has_new_scheduler(&mut self) -> Result<bool, Error> {
        let mut missing = Vec::new();
        for scheduler in &self.missing {
            if !self.kernel.has_scheduler(*scheduler)? {
                missing.push(*scheduler);
            }
        }
        let has_new_scheduler = missing != self.missing;
        self.missing = missing;
        Ok(has_new_scheduler)
    }
}
