//! A data plane that records its calls, fails on demand, and holds its owner to the guarantees of the trait.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use portolan_model::{Forwarding, ServicePortName};

use crate::dataplane::{
    About, Collection, Commit, Condition, Dataplane, Error, Meanwhile, Removal, Takeover, Undisturbed,
};
use crate::table::{Changes, Table};

/// A call of the data plane. A changed Service port is given by its name, a health-check node port by its Service and the
/// new port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Call {
    Apply(Vec<String>),
    Compare(Vec<String>),
    /// Changes that arrived during a comparison.
    Follow(Vec<String>),
    Check,
    Collect,
    /// With the generation of the ruleset.
    Leave(u32),
    Remove(Duration),
}

#[derive(Debug, Default)]
struct Shared {
    calls: Vec<Call>,
    /// How many of the next calls fail.
    failures: usize,
    /// How many of the next comparisons other programs disturb.
    disturbed: usize,
    /// What the data plane was last given.
    known: BTreeMap<Arc<ServicePortName>, Arc<Forwarding>>,
    ports: BTreeMap<(Arc<str>, Arc<str>), u16>,
    is_in_sync: bool,
    is_removed: bool,
    /// True from a part of the removal on, until the removal is suspended or ends.
    is_removing: bool,
    /// Elements that the next comparisons write.
    writes: usize,
    /// The rules were removed by another program, without a notification.
    condition: Option<Condition>,
    /// The wait after each part of a removal but the last, from the last to the first.
    waits: Vec<Duration>,
    /// How many collections are not the last.
    garbage: usize,
    /// The next call of `apply` sends to the first, and waits for the second.
    held: Option<(Sender<()>, Receiver<()>)>,
    /// What happens during the next comparison, step by step. After each step, the data plane takes what has arrived.
    during: Vec<During>,
    /// Number of calls that were given a table.
    tables: usize,
    /// How many of the next arrivals are left to the comparison.
    left: usize,
}

struct During(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for During {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("During")
    }
}

#[derive(Debug, Clone)]
pub(super) struct Recorder {
    about: About,
    shared: Arc<Mutex<Shared>>,
}

impl Recorder {
    pub(super) fn at(place: &'static str) -> Self {
        Self { about: About { mode: "test", place, ..About::of("test") }, shared: Arc::default() }
    }

    /// The kernel does not notify of its changes.
    pub(super) fn without_notifications(mut self) -> Self {
        self.about.is_notified = false;
        self
    }

    /// Its first comparison goes through the table.
    pub(super) fn starting_from_table(mut self) -> Self {
        self.about.starts_from_table = true;
        self
    }

    /// Its removal has these waits between its parts.
    pub(super) fn waiting(self, waits: &[Duration]) -> Self {
        self.lock().waits = waits.iter().rev().copied().collect();
        self
    }

    /// Returns true if a part of its removal may run in another thread.
    pub(super) fn is_removing(&self) -> bool {
        self.lock().is_removing
    }

    pub(super) fn boxed(&self) -> Box<Self> {
        Box::new(self.clone())
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    /// Returns the calls since the last time.
    pub(super) fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.lock().calls)
    }

    pub(super) fn fails(&self, times: usize) {
        self.lock().failures = times;
    }

    pub(super) fn is_disturbed(&self, times: usize) {
        self.lock().disturbed = times;
    }

    pub(super) fn has_garbage(&self, collections: usize) {
        self.lock().garbage = collections;
    }

    /// Holds the next call of `apply`, without a lock. The first channel receives when it has begun; it ends when the second
    /// one is sent to or dropped.
    pub(super) fn hold_apply(&self) -> (Receiver<()>, Sender<()>) {
        let ((entry, begun), (release, released)) = (mpsc::channel(), mpsc::channel());
        self.lock().held = Some((entry, released));
        (begun, release)
    }

    /// Adds a step of the next comparison, after which the data plane takes what has arrived.
    pub(super) fn during_comparison(&self, step: impl FnOnce() + Send + 'static) {
        self.lock().during.push(During(Box::new(step)));
    }

    /// The next arrivals are left to the comparison.
    pub(super) fn leaves(&self, arrivals: usize) {
        self.lock().left = arrivals;
    }

    /// The next check finds this.
    pub(super) fn is_found(&self, condition: Condition) {
        self.lock().condition = Some(condition);
    }

    pub(super) fn writes(&self, elements: usize) {
        self.lock().writes = elements;
    }

    /// Returns the names of the Service ports that the data plane was last given.
    pub(super) fn known(&self) -> Vec<String> {
        self.lock().known.keys().map(ToString::to_string).collect()
    }

    /// Returns the numbers of parts removed.
    pub(super) fn removed_parts(&self) -> usize {
        self.calls().iter().filter(|call| matches!(call, Call::Remove(_))).count()
    }

    pub(super) fn is_removed(&self) -> bool {
        self.lock().is_removed
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap()
    }

    fn call(&self, call: Call) -> Result<(), Error> {
        let mut shared = self.lock();
        // A check that fails says nothing about the rules.
        let matters = call != Call::Check;
        if matches!(call, Call::Compare(_)) && shared.disturbed > 0 {
            shared.disturbed -= 1;
            let is_unchanged = call == Call::Compare(Vec::new()) && shared.is_in_sync;
            shared.is_in_sync &= is_unchanged;
            shared.calls.push(call);
            return Err(Error::Contended { mode: "test", attempts: 1, is_unchanged });
        }
        shared.calls.push(call);
        if shared.failures > 0 {
            shared.failures -= 1;
            shared.is_in_sync &= !matters;
            return Err(Error::Contended { mode: "test", attempts: 1, is_unchanged: false });
        }
        Ok(())
    }

    /// Takes the changes, and checks that they lead from the last table to this one.
    fn given(&self, table: &Table, changes: &Changes) {
        let wanted: BTreeMap<_, _> = table.iter().map(|(name, new)| (name.clone(), new)).collect();
        let earlier = {
            let mut shared = self.lock();
            shared.tables += 1;
            shared.tables - 1
        };
        if earlier == 0 && self.about.starts_from_table {
            assert!(changes.is_empty(), "the table has everything");
            self.lock().known.clone_from(&wanted);
            return;
        }
        self.take(changes);
        let shared = self.lock();
        assert_eq!(shared.known, wanted, "the table");
        assert!(shared.ports.values().copied().eq(table.health_check_ports()), "the health-check node ports");
    }

    /// Takes the changes, and checks that they are exact.
    fn take(&self, changes: &Changes) {
        let mut shared = self.lock();
        assert!(!shared.is_removed, "it is called after its removal");
        for change in &changes.forwardings {
            let old = match &change.new {
                Some(new) => shared.known.insert(change.name.clone(), new.clone()),
                None => shared.known.remove(&change.name),
            };
            assert_eq!(old, change.old, "the former state of {}", change.name);
        }
        for check in &changes.health_checks {
            let key = (check.namespace.clone(), check.service.clone());
            let old = match check.new {
                Some(new) => shared.ports.insert(key, new),
                None => shared.ports.remove(&key),
            };
            assert_eq!(old, check.old, "the former port of {}", check.service);
        }
    }
}

fn names(changes: &Changes) -> Vec<String> {
    let checks = changes.health_checks.iter();
    let checks = checks.map(|check| format!("{} {:?}", check.service, check.new));
    changes.forwardings.iter().map(|change| change.name.to_string()).chain(checks).collect()
}

impl Dataplane for Recorder {
    fn about(&self) -> About {
        self.about
    }

    fn apply(&mut self, table: &Table, changes: &Changes) -> Result<Commit, Error> {
        let held = self.lock().held.take();
        if let Some((entry, released)) = held {
            // A test that has failed has dropped its ends.
            let _ = entry.send(());
            let _ = released.recv();
        }
        assert!(self.lock().is_in_sync, "changes are applied only in sync");
        self.given(table, changes);
        self.call(Call::Apply(names(changes))).map(|()| Commit::default())
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
        self.given(table, changes);
        let steps = std::mem::take(&mut self.lock().during);
        let mut arrived = Vec::new();
        for During(step) in steps {
            step();
            let Some(changes) = meanwhile.arrived() else { continue };
            self.take(&changes);
            arrived.push(Call::Follow(names(&changes)));
            let mut shared = self.lock();
            if shared.left == 0 {
                drop(shared);
                meanwhile.written(Commit::default());
            } else {
                shared.left -= 1;
            }
        }
        let outcome = self.call(Call::Compare(names(changes)));
        self.lock().calls.extend(arrived);
        outcome?;
        let mut shared = self.lock();
        shared.is_in_sync = true;
        Ok(Commit { full: true, elements: shared.writes, ..Commit::default() })
    }

    fn check(&mut self, _table: &Table) -> Result<Condition, Error> {
        assert!(self.lock().is_in_sync, "it is checked only in sync");
        self.call(Call::Check)?;
        Ok(self.lock().condition.take().unwrap_or(Condition::Intact))
    }

    fn collect(&mut self) -> Result<Collection, Error> {
        assert!(self.lock().is_in_sync, "it is collected only in sync");
        self.call(Call::Collect)?;
        let mut shared = self.lock();
        shared.garbage = shared.garbage.saturating_sub(1);
        Ok(if shared.garbage > 0 { Collection::Continues } else { Collection::Done })
    }

    fn leave(&mut self, table: &Table, generation: u32) {
        let mut shared = self.lock();
        assert!(shared.is_in_sync, "only in sync");
        assert_eq!(table.len(), shared.known.len(), "with what it was last given");
        shared.calls.push(Call::Leave(generation));
    }

    fn remove_part(&mut self, takeover: &Takeover<'_>) -> Result<Removal, Error> {
        self.call(Call::Remove(takeover.elapsed))?;
        let mut shared = self.lock();
        assert!(!shared.is_removed, "it is removed already");
        shared.is_removed = shared.waits.is_empty();
        shared.is_removing = !shared.is_removed;
        Ok(shared.waits.pop().map_or(Removal::Done, Removal::Continues))
    }

    fn suspend_removal(&mut self) {
        self.lock().is_removing = false;
    }
}
