//! What the agent puts into the history of the last syncs.
//!
//! Recording begins with the first complete state: what led to it is in the state itself, and would crowd out everything
//! else.

use std::time::SystemTime;

use portolan_model::catalog::Applied;
use portolan_model::{Change, Event, Family};
use portolan_recorder::{Drift, Entry};
use portolan_watch::WatchEvent;

use super::Agent;
use crate::recording::{self, Seen};

impl Agent {
    /// Records an entry that is made only if there is a history.
    pub(super) fn record(&self, entry: impl FnOnce() -> Entry) {
        if self.running.is_some() {
            self.recorder.record(recording::moment(SystemTime::now()), entry);
        }
    }

    /// Returns which object an event is about, if that is to be recorded. Follows the lists.
    pub(super) fn see(&mut self, event: &Event) -> Option<Seen> {
        if self.running.is_none() || !self.recorder.is_on() {
            return None;
        }
        if let Some(entry) = self.lists.follow(event) {
            self.record(|| entry);
        }
        Seen::of(event)
    }

    /// Records an object after the Catalog has applied its event.
    pub(super) fn record_object(&mut self, seen: Seen, applied: &Applied) {
        if self.lists.records(seen.kind(), applied.changed) {
            self.record(|| seen.entry(applied, &self.catalog));
        }
    }

    pub(super) fn record_changes(&self, changes: &[Change]) {
        for change in changes {
            self.record(|| recording::of_change(change));
        }
    }

    pub(super) fn record_drift(&self, family: Family) {
        self.record(|| Entry::Drift(Drift { family: family.name().to_owned() }));
    }

    /// Records an event of a watch that is not about objects. Texts of the API server are left out.
    pub(super) fn record_watch(&self, event: &WatchEvent) {
        let (about, text) = match event {
            WatchEvent::Objects(_) | WatchEvent::Heard(_) => return,
            WatchEvent::EmptyListHeld { kind, known } => (
                "watch",
                format!("an empty list of {} is held, since {known} objects are known", kind.name()),
            ),
            WatchEvent::Restarted { kind, relist, delay, .. } => {
                let what = if *relist { "listed again" } else { "watched again" };
                ("watch", format!("{} is {what} after {delay:?}: the log has the reason", kind.name()))
            }
            WatchEvent::Fault { kind, .. } => (
                "object",
                format!("a {} could not be read and was skipped: the log has the reason", kind.name()),
            ),
        };
        self.record(|| recording::note(about, text));
    }

    /// Records the first complete state.
    pub(super) fn record_start(&self) {
        let (services, slices) = (self.catalog.service_count(), self.catalog.slice_count());
        let mode = self.configuration.mode_or_default().name();
        self.record(|| {
            let text = format!("{services} Services and {slices} EndpointSlices are known; mode {mode}");
            recording::note("start", text)
        });
    }
}
