//! Writes changes that arrive while everything is compared, before the comparison is complete.
//!
//! What the kernel has of the changed Service ports is read by key and compared with what is wanted of them. The difference is
//! a transaction of its own. The [`View`] notes what was written, so that the comparison that goes on finds it there. A change
//! is left to that comparison if, for example, a chain that it needs has other rules, or the kernel refuses it.
//!
//! ```text
//!  pause ──arrived──> place ──> read by key ──> difference ──> commit ──> View::touched
//!                        └───────────── left ────────────> the comparison
//! ```
//!
//! The kernel refuses a transaction if another program has committed since the view was begun. So the view stays true.

use portolan_engine::dataplane::{Error, Meanwhile};
use portolan_engine::drift::generation;
use portolan_model::Change;
use portolan_sock::{CommitError, Refusal, Socket, SocketError};

use super::planner::Planner;
use super::readback::View;
use super::resync;
use writing::{Writing, Written};

mod writing;

/// Number of attempts at one comparison in which changes are written. After a commit of ours, a commit of another program ends
/// the attempt. So in the attempts after these, changes wait for the end.
const MOST_ATTEMPTS: u32 = 2;

/// The changes that arrive during one comparison.
pub(super) struct Early<'a> {
    meanwhile: &'a mut dyn Meanwhile,
    /// True if the planner takes over the classes of the kernel.
    adopts: bool,
    /// The changes that arrived during this attempt.
    given: Vec<Change>,
    /// Number of attempts that have ended. One without changes has written nothing, so it does not count.
    attempts: u32,
    /// Changes that wait until all frontends have been read: a new Service port needs an id that no frontend leads to.
    deferred: Option<Vec<Change>>,
    /// True if changes are left to the comparison from now on.
    is_off: bool,
    failure: Option<Error>,
}

impl<'a> Early<'a> {
    pub(super) const fn new(meanwhile: &'a mut dyn Meanwhile, adopts: bool) -> Self {
        Self {
            meanwhile,
            adopts,
            given: Vec::new(),
            attempts: 0,
            deferred: None,
            is_off: false,
            failure: None,
        }
    }

    /// Returns true if the planner takes over the classes of the kernel.
    pub(super) const fn adopts(&self) -> bool {
        self.adopts
    }

    /// Ends an attempt at the comparison. Returns the changes that arrived during it: the next attempt has them in its table.
    pub(super) fn end_attempt(&mut self, planner: &mut Planner) -> Vec<Change> {
        planner.follow(&self.deferred.take().unwrap_or_default());
        self.attempts = self.attempts.saturating_add((!self.given.is_empty()).into());
        self.is_off |= self.attempts >= MOST_ATTEMPTS;
        std::mem::take(&mut self.given)
    }

    /// Returns what a step of the comparison returned. If it ended because a commit of changes failed, returns that error.
    pub(super) fn outcome<T>(&mut self, outcome: Result<T, SocketError>) -> Result<T, Error> {
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(outcome?),
        }
    }

    /// Writes the changes that have arrived. If that fails, the comparison has to end.
    pub(super) fn pause(
        &mut self,
        planner: &mut Planner,
        view: &mut View,
        socket: &mut Socket,
    ) -> Result<(), SocketError> {
        if self.is_off || !view.is_usable(|view| resync::has_current_rules(view, planner)) {
            return Ok(());
        }
        let waits = self.deferred.is_some() && !view.has_frontends;
        let Some(changes) = (if waits { None } else { self.deferred.take().or_else(|| self.next(view)) })
        else {
            return Ok(());
        };
        if self.adopts {
            resync::adopt_classes(planner, view);
        }
        match Writing::new(planner, view, socket).write(&changes) {
            Ok(Written::All(commit)) => {
                // If another program has committed meanwhile, the view is out of date. The kernel checks that only if there is
                // something to write.
                let is_current = generation(socket)? == view.generation;
                if is_current || commit.elements > 0 || commit.objects > 0 {
                    self.meanwhile.written(commit);
                }
                if is_current { Ok(()) } else { Err(SocketError::Interrupted) }
            }
            Ok(Written::Later) => {
                self.deferred = Some(changes);
                Ok(())
            }
            Ok(Written::Nothing) => self.leave(view, &changes, None),
            // Nothing of a refused transaction took effect. The comparison finds out what is in its way.
            Err(Error::Commit(CommitError::Refused(refusals))) => {
                self.leave(view, &changes, refusals.first())
            }
            Err(error) => {
                self.failure = Some(error);
                Err(SocketError::Interrupted)
            }
        }
    }

    /// Returns the changes that have arrived.
    fn next(&mut self, view: &mut View) -> Option<Vec<Change>> {
        let changes = self.meanwhile.arrived()?.forwardings;
        self.given.extend(changes.iter().cloned());
        view.arrived.extend(changes.iter().map(|change| (change.name.clone(), change.new.clone())));
        Some(changes)
    }

    /// Leaves changes to the comparison. If it has begun to compare elements, it begins anew: elements that it has found to be
    /// wanted may not be wanted any more.
    fn leave(
        &mut self,
        view: &View,
        changes: &[Change],
        refusal: Option<&Refusal>,
    ) -> Result<(), SocketError> {
        let changes = changes.len();
        tracing::debug!(changes, ?refusal, "changes that arrived are left to the comparison");
        self.is_off |= view.is_placed || refusal.is_some();
        if view.is_placed { Err(SocketError::Interrupted) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
