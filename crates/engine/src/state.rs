//! The one state machine: whether the kernel has the wanted state.
//!
//! ```text
//!  Waiting ──start──> Unknown ──comparison succeeds──> InSync
//!                        ^                               │
//!                        └─ failure, drift, settings, ───┘
//!                           the node, periodic comparison,
//!                           verification
//! ```
//!
//! A periodic comparison is put off if other programs change rules without a pause and nothing of ours has changed: the state is
//! in sync again, so that changes are written.

use std::time::Instant;

/// Whether the kernel has the wanted state of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The complete state is not known. Nothing is written.
    Waiting,
    /// The kernel has everything but the changes that wait for the next commit.
    InSync {
        /// When the last comparison ended.
        since: Instant,
    },
    /// Everything is to be compared.
    Unknown {
        /// When the kernel was last known to have everything, or the start.
        since: Instant,
        /// Why.
        reason: Reason,
    },
}

/// Why everything is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The first commit.
    Start,
    /// A commit, a comparison or a collection failed.
    Failure,
    /// Another program changed the rules.
    Drift,
    /// There are new settings.
    Settings,
    /// Something else that the rules depend on has changed, such as the addresses of the node
    /// ([`Condition::Outdated`](crate::Condition::Outdated)).
    Node,
    /// It is time for the periodic comparison.
    Periodic,
    /// The owner wants to know that the kernel has everything ([`Handle::verify`](crate::Handle::verify)).
    Verification,
}

impl Reason {
    /// Returns its name in documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Failure => "failure",
            Self::Drift => "drift",
            Self::Settings => "settings",
            Self::Node => "node",
            Self::Periodic => "periodic",
            Self::Verification => "verification",
        }
    }
}

impl State {
    /// Returns why everything has to be compared, or `None` if nothing has to be.
    pub const fn reason(&self) -> Option<Reason> {
        match self {
            Self::Unknown { reason, .. } => Some(*reason),
            Self::Waiting | Self::InSync { .. } => None,
        }
    }

    /// Returns true before the start.
    pub const fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting)
    }

    /// Returns true if the kernel has everything but waiting changes.
    pub const fn is_in_sync(&self) -> bool {
        matches!(self, Self::InSync { .. })
    }

    pub(super) const fn start(&mut self, now: Instant) {
        if self.is_waiting() {
            *self = Self::Unknown { since: now, reason: Reason::Start };
        }
    }

    pub(super) const fn succeeded(&mut self, full: bool, now: Instant) {
        if full || !self.is_in_sync() {
            *self = Self::InSync { since: now };
        }
    }

    /// After a failure a comparison mends the failure, whatever it was to mend before.
    pub(super) const fn failed(&mut self, now: Instant) {
        let since = if let Self::Unknown { since, .. } = self { *since } else { now };
        *self = Self::Unknown { since, reason: Reason::Failure };
    }

    /// Demands a comparison. Returns false if nothing was written yet or one is due anyway. One that has to be made takes the place
    /// of a periodic one, which may be put off.
    pub(super) const fn doubt(&mut self, reason: Reason, now: Instant) -> bool {
        match self {
            Self::InSync { .. } => *self = Self::Unknown { since: now, reason },
            Self::Unknown { reason: due @ Reason::Periodic, .. }
                if !matches!(reason, Reason::Periodic | Reason::Verification) =>
            {
                *due = reason;
            }
            Self::Waiting | Self::Unknown { .. } => return false,
        }
        true
    }

    /// Gives up a comparison that need not be made.
    pub(super) const fn trust(&mut self, since: Instant) {
        *self = Self::InSync { since };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_first_reason_to_compare_stays_and_a_failure_replaces_it() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let mut state = State::Waiting;
        assert!(!state.doubt(Reason::Drift, now) && state.is_waiting());
        state.start(now);
        state.start(later);
        assert_eq!(state, State::Unknown { since: now, reason: Reason::Start });
        state.failed(later);
        assert_eq!(state, State::Unknown { since: now, reason: Reason::Failure });
        state.succeeded(true, later);
        assert!(state.doubt(Reason::Settings, later) && !state.doubt(Reason::Drift, later));
        assert_eq!(state.reason(), Some(Reason::Settings));
        state.succeeded(true, now);
        assert!(state.doubt(Reason::Periodic, now) && !state.doubt(Reason::Verification, later));
        assert!(state.doubt(Reason::Drift, later) && !state.doubt(Reason::Periodic, later));
        assert_eq!(state, State::Unknown { since: now, reason: Reason::Drift });
        state.succeeded(true, now);
        state.succeeded(false, later);
        assert_eq!(state, State::InSync { since: now }, "since the last comparison");
    }
}
