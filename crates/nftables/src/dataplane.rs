//! The data plane of the nftables mode, and of capturing in the userspace mode: one socket, one table in one family.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::time::Instant;

use portolan_model::Settings;
use portolan_sock::{CommitError, Protocol, Socket, SocketError};
use portolan_wire::nftables::Transaction;

use super::changeset::Changeset;
use super::class::{Balance, Class};
use super::connections;
use super::departure::{self, TableRemoval};
use super::drift::OwnTable;
use super::early::Early;
use super::element::Set;
use super::encode;
use super::layout::{Layout, Listeners, Target};
use super::load::Pieces;
use super::planner::{Plan, Planner};
use super::preview;
use super::readback::{self, Large, SavedElements, View};
use super::reading::Reading;
use super::refusal::{log_refusals, unsupported};
use super::resync::{Difference, foreign_chains};
use super::skeleton;
use portolan_engine::dataplane::{
    About, Collection, Commit, Dataplane, Error, Meanwhile, Removal, TRANSIT_TIME, Takeover, Undisturbed,
};
use portolan_engine::drift::{Own, generation as generation_of};
use portolan_engine::table::{Changes, Table};

/// Sequence numbers reserved for one transaction: the most messages that it may have.
const SEQUENCE_ROOM: u32 = 1 << 24;

/// Services of one family as nftables set elements.
#[derive(Debug)]
pub struct Nftables {
    socket: Socket,
    /// What the kernel has.
    planner: Planner,
    /// The endpoint chains that are in the kernel.
    made: HashSet<Balance>,
    /// The optional sets that are in the kernel.
    optional_sets: BTreeSet<Set>,
    /// True if the chains that check source ranges are in the kernel.
    checks_source_ranges: bool,
    /// Chains to be deleted: no rule or element leads to them.
    garbage: Vec<String>,
    departure: TableRemoval,
    /// What the first comparison takes over, instead of reading the table itself.
    reading: Option<Reading>,
    /// Where the elements are from the end of a run until the next start.
    saved: Option<SavedElements>,
    /// True if no other program has committed while this process filled a new table. Otherwise the table may differ from what the
    /// process knows, and is not saved.
    is_certain: bool,
    /// Number of transactions of this process in the kernel.
    transactions: u32,
    /// Number of elements from which a set is read by key.
    pub(super) large: u32,
}

impl Nftables {
    /// Opens a socket in the network namespace of this thread. Changes nothing.
    pub fn open(settings: Settings) -> Result<Self, Error> {
        Ok(Self {
            socket: Socket::open(Protocol::Netfilter)?,
            planner: Planner::new(settings),
            made: HashSet::new(),
            optional_sets: BTreeSet::new(),
            checks_source_ranges: false,
            garbage: Vec::new(),
            departure: TableRemoval::default(),
            reading: None,
            saved: None,
            is_certain: false,
            transactions: 0,
            large: readback::LARGE,
        })
    }

    /// Does the same as [`Self::open`] for a table that sends packets to listeners instead of translating them.
    pub fn open_capture(settings: Settings, capture: Listeners) -> Result<Self, Error> {
        let mut this = Self::open(settings)?;
        this.planner.target = Target::Relay(capture);
        Ok(this)
    }

    /// Takes over a reading of this family's table, which began before. The first comparison uses it.
    #[must_use]
    pub fn with_reading(self, reading: Option<Reading>) -> Self {
        Self { reading, ..self }
    }

    /// Uses the elements of the last run, and writes those of this run when it ends.
    #[must_use]
    pub fn with_saved(self, saved: Option<SavedElements>) -> Self {
        Self { saved, ..self }
    }

    /// Checks that this kernel supports everything needed, with a transaction that creates all objects and deletes
    /// them again before it takes effect. Does nothing if our table exists. Tries again if other programs change the ruleset
    /// meanwhile, and returns [`Error::Contended`] if they never pause.
    pub fn probe(&mut self) -> Result<(), Error> {
        readback::undisturbed(self.mode(), || self.try_objects())
    }

    fn try_objects(&mut self) -> Result<(), Error> {
        let place = self.planner.layout().place();
        if readback::table(&mut self.socket, place)?.is_some() {
            return Ok(());
        }
        let mut transaction = self.begin(None);
        let layout = Layout { has_source_ranges: true, ..self.planner.layout() };
        encode::skeleton(&mut transaction, layout);
        encode::base_chains(&mut transaction, layout);
        encode::new_set(&mut transaction, place, Set::Affinity);
        for affinity in [None, Some(10_800)] {
            let balance = Balance { local: false, backends: 2, affinity };
            let class = Class::ExternalLocal(balance, 1);
            class.balances().for_each(|balance| encode::balance(&mut transaction, layout, balance));
            encode::class(&mut transaction, layout, 1 + u16::from(affinity.is_some()), class);
        }
        for body in connections::chains_of(layout) {
            encode::chain(&mut transaction, place, &body);
        }
        transaction.delete_table(place.wire(), place.table);
        let batch = transaction.finish().map_err(SocketError::from)?;
        match self.socket.commit(&batch) {
            Err(CommitError::Refused(refusals)) => {
                Err(unsupported(self.planner.target.kind(), &batch, &refusals))
            }
            other => Ok(other?),
        }
    }

    /// Returns what [`Dataplane::compare`] would write for a table, as lines in the words of nft, in the order of writing.
    /// Empty if the kernel has everything. Changes nothing.
    pub fn preview(&mut self, table: &Table) -> Result<Vec<String>, Error> {
        let target = self.planner.target;
        let place = target.kind().place(table.family());
        let mut view = readback::undisturbed(self.mode(), || Ok(readback::read(&mut self.socket, place)?))?;
        Ok(preview::lines(table, target, &mut view))
    }

    /// Returns our table, for [`DriftWatch`](portolan_engine::drift::DriftWatch).
    pub fn own(&self) -> Own {
        let place = self.planner.layout().place();
        Own::new(place.family, OwnTable { name: place.table, port: self.socket.port() })
    }

    const fn mode(&self) -> &'static str {
        self.planner.target.kind().mode
    }

    fn begin(&mut self, generation: Option<u32>) -> Transaction {
        Transaction::begin(self.socket.next_sequence(SEQUENCE_ROOM), generation)
    }

    fn commit_plan(&mut self, plan: Plan) -> Result<Commit, Error> {
        let mut commit = self.commit_first(&plan)?;
        commit.add(&self.commit_alone(&plan.elements)?);
        commit.add(&self.commit_alone(&plan.later)?);
        let layout = self.planner.layout();
        commit.messages.extend(preview::first_of_plan(layout, &plan));
        commit.refused = plan.refused;
        Ok(commit)
    }

    /// Commits the objects of a plan, and the elements that come first.
    fn commit_first(&mut self, plan: &Plan) -> Result<Commit, Error> {
        let settings = self.planner.settings.clone();
        let Layout { target, has_source_ranges, .. } = self.planner.layout();
        let layout = Layout { settings: &settings, target, has_source_ranges };
        let mut objects = plan.classes.len();
        let mut transaction = self.begin(None);
        if plan.creates_source_range_check {
            for body in skeleton::source_range_chains(layout) {
                objects += 1;
                encode::chain(&mut transaction, layout.place(), &body);
                self.keep(&body.name);
            }
            self.checks_source_ranges = true;
        }
        if self.planner.needs(Set::Affinity) && self.optional_sets.insert(Set::Affinity) {
            encode::new_set(&mut transaction, layout.place(), Set::Affinity);
        }
        for &(number, class) in &plan.classes {
            for balance in class.balances() {
                if self.made.insert(balance) {
                    objects += 1;
                    encode::balance(&mut transaction, layout, balance);
                    self.keep(&balance.to_string());
                }
            }
            encode::class(&mut transaction, layout, number, class);
            self.keep(&class.to_string());
        }
        Ok(Commit { objects, ..self.write(transaction, &plan.earlier)? })
    }

    /// Commits elements. If a later one of several transactions fails, the kernel has more than it needs: chains that nothing leads
    /// to, source ranges that are not checked, refusals and what is in their place, or endpoints. The comparison that follows a
    /// failure mends it.
    fn commit_alone(&mut self, elements: &Changeset) -> Result<Commit, Error> {
        if elements.is_empty() {
            return Ok(Commit::default());
        }
        let transaction = self.begin(None);
        self.write(transaction, elements)
    }

    /// Commits the transaction with the elements: as one transaction if the send buffer is large enough, else as
    /// several.
    fn write(&mut self, mut transaction: Transaction, elements: &Changeset) -> Result<Commit, Error> {
        let mut commit = Commit { elements: elements.len(), ..Commit::default() };
        if transaction.is_empty() && elements.is_empty() {
            return Ok(commit);
        }
        let place = self.planner.layout().place();
        let counters = self.planner.settings.counters;
        let estimate = transaction.len() + encode::estimate(elements, counters);
        let capacity = self.socket.reserve_send_capacity(estimate)?;
        let mut parts = Vec::new();
        if capacity < estimate {
            parts.push(transaction);
            let socket = &mut self.socket;
            parts.extend(encode::elements_in_parts(place, elements, counters, capacity, || {
                Transaction::begin(socket.next_sequence(SEQUENCE_ROOM), None)
            }));
        } else {
            encode::elements(&mut transaction, place, elements, counters);
            parts.push(transaction);
        }
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let batch = part.finish().map_err(SocketError::from)?;
            let started = Instant::now();
            self.socket.commit(&batch).inspect_err(|error| log_refusals(&batch, error))?;
            commit.kernel += started.elapsed();
            self.transactions = self.transactions.wrapping_add(1);
            commit.bytes += batch.len();
        }
        Ok(commit)
    }

    fn compare_and_write(
        &mut self,
        table: &Table,
        early: &mut Early<'_>,
        has_changed: &mut bool,
    ) -> Result<Commit, Error> {
        let place = self.planner.layout().place();
        let Self { socket, planner, large, reading, saved, .. } = self;
        let large = Large { from: *large, saved: saved.as_ref() };
        let mut pause = |view: &mut View, socket: &mut Socket| early.pause(planner, view, socket);
        let view = match reading.take() {
            Some(reading) => reading.finish(socket, &mut pause),
            None => readback::read_with_pauses(socket, place, large, &mut pause),
        };
        let mut view = early.outcome(view)?;
        let exists = view.table.is_some();
        let adopts = early.adopts();
        let difference = Difference::with_pauses(planner, table, &mut view, adopts, &mut |planner, view| {
            early.pause(planner, view, socket)
        });
        let difference = early.outcome(difference)?;
        *has_changed |= !difference.is_empty();
        let generation = view.generation;
        let mut garbage = foreign_chains(&self.planner, &view);
        garbage.retain(|name| !difference.rebuild && !difference.foreign_base_chains.contains(name));
        let mut optional_sets: BTreeSet<Set> = Set::ALL.into_iter().filter(|set| set.is_optional()).collect();
        optional_sets.retain(|set| {
            let is_there = view.sets.contains_key(set.name()) && !difference.rebuild;
            is_there || self.planner.needs(*set)
        });
        drop(view);
        let before = self.transactions;
        let mut commit = if difference.is_empty() {
            // The kernel checks the generation only if there is something to write.
            if generation_of(&mut self.socket)? != generation {
                return Err(SocketError::Interrupted.into());
            }
            Commit::default()
        } else {
            let mut transaction = self.begin(Some(generation));
            difference.encode(&mut transaction, &self.planner, exists);
            if exists {
                let mut commit = self.write(transaction, &difference.elements)?;
                commit.add(&self.commit_alone(&difference.later)?);
                commit
            } else {
                self.load(table, transaction)?
            }
        };
        let own = self.transactions.wrapping_sub(before);
        let is_own = |now| now == generation.wrapping_add(own);
        self.is_certain = exists || generation_of(&mut self.socket).is_ok_and(is_own);
        commit.messages.extend(preview::first_of_difference(self.planner.layout(), &difference, exists));
        commit.objects = difference.objects();
        commit.refused = difference.plan.refused;
        commit.full = true;
        self.made = self.planner.classes.balances().collect();
        self.optional_sets = optional_sets;
        self.checks_source_ranges = self.planner.has_source_ranges();
        self.garbage = garbage;
        Ok(commit)
    }

    /// Fills a new table piece by piece, so that neither memory nor the time under the kernel's lock grows with the
    /// cluster. The base chains come last: without them the table does nothing, so everything takes effect at once.
    fn load(&mut self, table: &Table, skeleton: Transaction) -> Result<Commit, Error> {
        let mut total = self.write(skeleton, &Changeset::default())?;
        let mut pieces = Pieces::default();
        while let Some(elements) = pieces.next(&self.planner, table) {
            let transaction = self.begin(None);
            total.add(&self.write(transaction, &elements)?);
        }
        let mut transaction = self.begin(None);
        encode::base_chains(&mut transaction, self.planner.layout());
        total.add(&self.write(transaction, &Changeset::default())?);
        Ok(total)
    }

    /// Returns true if there are unused chains or sets.
    fn has_garbage(&self) -> bool {
        !self.garbage.is_empty() || self.unused_sets().next().is_some() || self.has_unused_check()
    }

    /// Returns true if the chains that check source ranges are in the kernel, and no Service port has any.
    const fn has_unused_check(&self) -> bool {
        self.checks_source_ranges && !self.planner.has_source_ranges()
    }

    fn unused_sets(&self) -> impl Iterator<Item = Set> {
        self.optional_sets.iter().copied().filter(|set| !self.planner.needs(*set))
    }

    fn keep(&mut self, chain: &str) {
        self.garbage.retain(|name| name != chain);
    }

    fn detach_idle_classes(&mut self) -> Result<(), Error> {
        let place = self.planner.layout().place();
        let idle = self.planner.classes.take_idle();
        let mut transaction = self.begin(None);
        for &(number, class) in &idle {
            encode::delete_class_element(&mut transaction, place, number);
            self.garbage.push(class.to_string());
        }
        for (_, class) in idle {
            for balance in class.balances() {
                if !self.planner.classes.needs(balance) && self.made.remove(&balance) {
                    self.garbage.push(balance.to_string());
                }
            }
        }
        self.write(transaction, &Changeset::default())?;
        Ok(())
    }

    fn delete_garbage(&mut self) -> Result<(), Error> {
        let place = self.planner.layout().place();
        let mut transaction = self.begin(None);
        if self.has_unused_check() {
            let chains = skeleton::source_range_chains(self.planner.layout());
            self.garbage.extend(chains.into_iter().map(|body| body.name));
            self.checks_source_ranges = false;
        }
        for chain in &self.garbage {
            transaction.flush_chain(place.wire(), place.table, chain);
        }
        for chain in &self.garbage {
            transaction.delete_chain(place.wire(), place.table, chain);
        }
        let unused: Vec<Set> = self.unused_sets().collect();
        for set in &unused {
            transaction.delete_set(place.wire(), place.table, set.name());
            self.optional_sets.remove(set);
        }
        self.write(transaction, &Changeset::default())?;
        self.garbage.clear();
        Ok(())
    }

    /// Removes the table at once, without packets in transit being waited for.
    fn remove_table(&mut self) -> Result<(), Error> {
        let place = self.planner.layout().place();
        departure::remove(&mut self.socket, place.wire(), place.table).map(|_| ())
    }
}

impl Dataplane for Nftables {
    fn about(&self) -> About {
        About { starts_from_table: true, ..About::of(self.mode()) }
    }

    fn apply(&mut self, _table: &Table, changes: &Changes) -> Result<Commit, Error> {
        let plan = self.planner.plan(&changes.forwardings);
        self.commit_plan(plan)
    }

    fn compare(&mut self, table: &Table, changes: &Changes) -> Result<Commit, Error> {
        self.compare_and_follow(table, changes, &mut Undisturbed)
    }

    fn compare_and_follow(
        &mut self,
        table: &Table,
        changes: &Changes,
        meanwhile: &mut dyn Meanwhile,
    ) -> Result<Commit, Error> {
        self.planner.configure(table.settings());
        self.planner.follow(&changes.forwardings);
        let mut early = Early::new(meanwhile, self.planner.placed.is_empty());
        let mut table = Cow::Borrowed(table);
        let mut has_changed = !changes.is_empty();
        let outcome = readback::undisturbed(self.mode(), || {
            let outcome = self.compare_and_write(&table, &mut early, &mut has_changed);
            // The next attempt finds in the table what arrived during this one.
            let given = early.end_attempt(&mut self.planner);
            has_changed |= !given.is_empty();
            if outcome.is_err() && !given.is_empty() {
                table.to_mut().take(given, []);
            }
            outcome
        });
        outcome.map_err(|error| match error {
            Error::Contended { mode, attempts, .. } => {
                Error::Contended { mode, attempts, is_unchanged: !has_changed }
            }
            error => error,
        })
    }

    fn collect(&mut self) -> Result<Collection, Error> {
        let is_more = if self.garbage.is_empty() && self.planner.classes.any_idle() {
            self.detach_idle_classes()?;
            true
        } else if self.has_garbage() {
            self.delete_garbage()?;
            self.planner.classes.any_idle()
        } else {
            false
        };
        Ok(if is_more { Collection::Continues } else { Collection::Done })
    }

    fn leave(&mut self, table: &Table, generation: u32) {
        let Some(saved) = self.saved.as_ref().filter(|_| self.is_certain) else { return };
        let (place, planner) = (self.planner.layout().place(), &self.planner);
        let is_current = generation_of(&mut self.socket).is_ok_and(|now| now == generation);
        if !is_current {
            tracing::debug!(family = %place.family, "other programs have committed; the elements are not saved");
            return;
        }
        let written = saved.write(place, generation, planner.settings.counters, |write| {
            let mut elements =
                table.iter().flat_map(|(name, forwarding)| planner.elements_of(name, &forwarding));
            elements.try_for_each(|element| write(&element))
        });
        if let Err(error) = written {
            let family = place.family;
            tracing::debug!(%family, %error, "the elements are not saved; the next start reads them from the kernel");
        }
    }

    fn remove_part(&mut self, _takeover: &Takeover<'_>) -> Result<Removal, Error> {
        let place = self.planner.layout().place();
        let leads_in = self.planner.target.kind().leads_in;
        if !self.departure.advance(&mut self.socket, place, leads_in)? {
            return Ok(Removal::Continues(TRANSIT_TIME));
        }
        self.remove_table()?;
        self.departure = TableRemoval::default();
        Ok(Removal::Done)
    }
}

#[cfg(test)]
mod tests;
