//! The endpoints of one Service and IP family, counted by state.

use super::{ServiceEntry, Target};
use crate::check::CheckState;

/// How many endpoints are in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Without a result.
    pub undecided: usize,
    /// Failing.
    pub failing: usize,
    /// Healthy, and held back by slow start.
    pub warming: usize,
    /// Healthy.
    pub passing: usize,
}

/// A group of endpoints.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Group {
    pub(super) counts: Counts,
    /// True if all endpoints are ready because too few are healthy.
    pub(super) is_open: bool,
}

impl Counts {
    pub(super) fn add(&mut self, state: CheckState) {
        let count = self.of(state);
        *count = count.saturating_add(1);
    }

    pub(super) fn remove(&mut self, state: CheckState) {
        let count = self.of(state);
        *count = count.saturating_sub(1);
    }

    pub(super) fn replace(&mut self, old: CheckState, new: CheckState) {
        self.remove(old);
        self.add(new);
    }

    fn of(&mut self, state: CheckState) -> &mut usize {
        match state {
            CheckState::New | CheckState::Unchecked => &mut self.undecided,
            CheckState::Failing => &mut self.failing,
            CheckState::Warming { .. } => &mut self.warming,
            CheckState::Passing => &mut self.passing,
        }
    }

    /// Returns the number of endpoints that answer.
    pub fn healthy(&self) -> usize {
        self.warming.saturating_add(self.passing)
    }

    /// Returns the number of endpoints with a result.
    pub fn decided(&self) -> usize {
        self.failing.saturating_add(self.healthy())
    }

    /// Returns true if slow start must end, because it would hold back all endpoints that answer.
    pub(super) fn must_admit(&self) -> bool {
        self.warming > 0 && self.passing == 0 && self.undecided == 0
    }
}

impl Group {
    /// Decides whether all endpoints are ready. Returns true if that changed. While an endpoint has no result the
    /// decision stays: at a start the first endpoint that fails must not open the group.
    pub(super) fn settle(&mut self, fail_open: Option<u8>) -> bool {
        let (healthy, decided) = (self.counts.healthy(), self.counts.decided());
        let opens = |percentage: u8| {
            healthy < decided
                && healthy.saturating_mul(100) <= decided.saturating_mul(usize::from(percentage))
        };
        let is_open = match fail_open {
            None => false,
            Some(_) if self.counts.undecided > 0 => self.is_open,
            Some(percentage) => opens(percentage),
        };
        std::mem::replace(&mut self.is_open, is_open) != is_open
    }
}

impl ServiceEntry {
    pub(super) fn group(&mut self, is_ipv6: bool) -> &mut Group {
        if is_ipv6 { &mut self.ipv6 } else { &mut self.ipv4 }
    }

    /// Returns the conditions `ready` and `serving` of an endpoint, or `None` if they stay as they are. `serving` is
    /// always the result of the checks; `ready` is also true for endpoints that serve despite it.
    pub(super) fn conditions(&self, target: &Target, is_terminating: bool) -> Option<(bool, bool)> {
        let group = if target.address.is_ipv6() { &self.ipv6 } else { &self.ipv4 };
        let state = target.check.state();
        let (ready, serving) = match state {
            CheckState::Unchecked => return None,
            CheckState::New => (false, false),
            CheckState::Failing => (group.is_open, false),
            CheckState::Warming { .. } => (group.is_open, true),
            CheckState::Passing => (true, true),
        };
        // As the controller of Kubernetes: `ready` of an endpoint that terminates is false, and with
        // publishNotReadyAddresses it is true.
        Some((self.publishes_all || (ready && !is_terminating), serving))
    }
}
