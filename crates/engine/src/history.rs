//! What a lane has done: the last attempts, the last events, and totals.
//!
//! Everything is bounded. A busy cluster replaces the last commits within minutes; events are what an operator may want
//! to know hours later, so plain commits of changes are none.

use std::collections::VecDeque;
use std::time::Instant;

use super::Step;
use super::attempt::Attempt;
use super::state::Reason;

/// How many successful commits a lane remembers.
pub const COMMITS_KEPT: usize = 60;
/// How many failures a lane remembers.
pub const FAILURES_KEPT: usize = 32;
/// How many events a lane remembers.
pub const EVENTS_KEPT: usize = 32;

/// Attempts and their results since the start of the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Successful commits.
    pub commits: u64,
    /// Failed attempts.
    pub failures: u64,
    /// Changes of Service ports that successful commits wrote.
    pub changed: u64,
}

/// Something that an operator may want to know later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEvent {
    /// What happened.
    pub what: Happening,
    /// The mode of the data plane.
    pub mode: &'static str,
    /// When it happened last.
    pub at: Instant,
    /// How often it happened without another event in between.
    pub times: u64,
}

/// What an [`HistoryEvent`] is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// Everything was compared with the kernel, for this reason.
    Compared(Reason),
    /// A change of the rules by another program was repaired.
    Repaired,
    /// The data plane replaced another one.
    Replaced,
    /// An attempt failed with this error.
    Failed(Step, String),
}

impl Happening {
    /// Returns what an attempt is as an event. `None` for a commit of changes.
    fn of(attempt: &Attempt) -> Option<Self> {
        match (&attempt.outcome, attempt.step, attempt.cause.reason) {
            (Err(error), step, _) => Some(Self::Failed(step, error.clone())),
            (Ok(_), Step::Replacement, _) => Some(Self::Replaced),
            (Ok(_), ..) if attempt.repaired => Some(Self::Repaired),
            (Ok(_), _, Some(reason)) => Some(Self::Compared(reason)),
            (Ok(_), _, None) => None,
        }
    }
}

/// The memory of a lane.
#[derive(Debug, Default)]
pub(super) struct History {
    commits: VecDeque<Attempt>,
    failures: VecDeque<Attempt>,
    events: VecDeque<HistoryEvent>,
    totals: Totals,
}

impl History {
    /// Remembers an attempt. Equal events in a row become one.
    pub(super) fn keep(&mut self, attempt: Attempt) {
        if let Some(what) = Happening::of(&attempt) {
            self.note(HistoryEvent { what, mode: attempt.mode, at: attempt.at, times: 1 });
        }
        let totals = &mut self.totals;
        if attempt.outcome.is_ok() {
            let changed = u64::try_from(attempt.cause.changed).unwrap_or(u64::MAX);
            totals.commits = totals.commits.saturating_add(1);
            totals.changed = totals.changed.saturating_add(changed);
            push(&mut self.commits, attempt, COMMITS_KEPT);
        } else {
            totals.failures = totals.failures.saturating_add(1);
            push(&mut self.failures, attempt, FAILURES_KEPT);
        }
    }

    fn note(&mut self, event: HistoryEvent) {
        match self.events.back_mut() {
            Some(last) if last.what == event.what && last.mode == event.mode => {
                last.at = event.at;
                last.times = last.times.saturating_add(1);
            }
            _ => push(&mut self.events, event, EVENTS_KEPT),
        }
    }

    /// Returns the last successful commits, the oldest first.
    pub(super) fn commits(&self) -> Vec<Attempt> {
        self.commits.iter().cloned().collect()
    }

    /// Returns the last failures, the oldest first.
    pub(super) fn failures(&self) -> Vec<Attempt> {
        self.failures.iter().cloned().collect()
    }

    /// Returns the last events, the oldest first.
    pub(super) fn events(&self) -> Vec<HistoryEvent> {
        self.events.iter().cloned().collect()
    }

    pub(super) const fn totals(&self) -> Totals {
        self.totals
    }
}

/// Adds an element. If there are `most` already, it takes the place of the oldest one.
fn push<T>(list: &mut VecDeque<T>, element: T, most: usize) {
    if list.len() >= most {
        list.pop_front();
    }
    list.push_back(element);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Cause, ObjectChanges, Written};

    fn attempt(at: Instant, reason: Option<Reason>, outcome: Result<Written, String>) -> Attempt {
        Attempt {
            mode: "nftables",
            step: Step::Commit,
            at,
            duration: Duration::from_millis(1),
            full: reason.is_some(),
            repaired: false,
            cause: Cause { reason, changed: 2, first: Vec::new() },
            objects: ObjectChanges::default(),
            outcome,
        }
    }

    #[test]
    fn commits_do_not_displace_events_and_equal_events_become_one() {
        let (mut history, start) = (History::default(), Instant::now());
        let good = || Ok(Written::default());
        history.keep(attempt(start, Some(Reason::Start), good()));
        for second in 0..200 {
            history.keep(attempt(start + Duration::from_secs(second), None, good()));
        }
        let broken = || Err("broken".to_owned());
        for second in 200..203 {
            history.keep(attempt(start + Duration::from_secs(second), Some(Reason::Failure), broken()));
        }
        let repair = attempt(start + Duration::from_secs(203), Some(Reason::Drift), good());
        history.keep(Attempt { repaired: true, ..repair });
        let events: Vec<_> = history.events().into_iter().map(|event| (event.what, event.times)).collect();
        let want = [
            (Happening::Compared(Reason::Start), 1),
            (Happening::Failed(Step::Commit, "broken".into()), 3),
            (Happening::Repaired, 1),
        ];
        assert_eq!(events, want);
        assert_eq!(history.events()[1].at, start + Duration::from_secs(202));
        assert_eq!(history.totals(), Totals { commits: 202, failures: 3, changed: 404 });
        assert_eq!((history.commits().len(), history.failures().len()), (COMMITS_KEPT, 3));
    }

    #[test]
    fn events_are_bounded() {
        let (mut history, start) = (History::default(), Instant::now());
        for number in 0..1_000 {
            history.keep(attempt(start, None, Err(format!("error {number}"))));
        }
        assert_eq!((history.events().len(), history.failures().len()), (EVENTS_KEPT, FAILURES_KEPT));
        assert_eq!(
            history.events().last().unwrap().what,
            Happening::Failed(Step::Commit, "error 999".into())
        );
    }
}
