//! The state of one endpoint. Results of probes go in; changes of the state come out.

use std::time::Duration;

use crate::annotations::Timing;

#[cfg(test)]
mod tests;

/// What is known about an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckState {
    /// It has never answered, and has no result. It is not ready.
    New,
    /// It has no result, but was served before its checks began. Its conditions stay as they are until a result.
    Unchecked,
    /// It fails.
    Failing,
    /// It is healthy, but becomes ready only at this time, if it stays healthy.
    Warming {
        /// Time from which a probe that passes makes the endpoint ready.
        until: Duration,
    },
    /// It is healthy.
    Passing,
}

impl CheckState {
    /// Returns true if a result has decided.
    pub fn is_decided(self) -> bool {
        !matches!(self, Self::New | Self::Unchecked)
    }

    /// Returns true if the endpoint answers.
    pub fn is_healthy(self) -> bool {
        matches!(self, Self::Warming { .. } | Self::Passing)
    }
}

/// The state of one endpoint, and the results since that speak against it.
///
/// The first result decides. After that, `rise` passes in a row make a failing endpoint healthy, and `fall` failures in
/// a row make a healthy one failing. Fewer in a row never change the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    state: CheckState,
    /// Results in a row that contradict the state.
    against: u32,
}

impl Check {
    /// Starts in a state.
    pub fn new(state: CheckState) -> Self {
        Self { state, against: 0 }
    }

    /// Returns the state.
    pub fn state(&self) -> CheckState {
        self.state
    }

    /// Applies the result of a probe that ended at `now`. Returns true if the state changed.
    pub fn result(&mut self, passed: bool, now: Duration, timing: &Timing) -> bool {
        match (self.state, passed) {
            (CheckState::New, true) => self.enter(healthy(now, timing)),
            // It has been served so far: slow start would be a gap.
            (CheckState::Unchecked, true) => self.enter(CheckState::Passing),
            (CheckState::New | CheckState::Unchecked, false) => self.enter(CheckState::Failing),
            (CheckState::Failing, true) => self.count(timing.rise, healthy(now, timing)),
            (CheckState::Warming { .. } | CheckState::Passing, false) => {
                self.count(timing.fall, CheckState::Failing)
            }
            (CheckState::Warming { until }, true) if now >= until => self.enter(CheckState::Passing),
            (CheckState::Failing, false) | (CheckState::Warming { .. } | CheckState::Passing, true) => {
                self.against = 0;
                false
            }
        }
    }

    /// Ends slow start. Returns true if the state changed.
    pub fn admit(&mut self) -> bool {
        matches!(self.state, CheckState::Warming { .. }) && {
            self.state = CheckState::Passing;
            true
        }
    }

    fn count(&mut self, enough: u32, then: CheckState) -> bool {
        self.against = self.against.saturating_add(1);
        self.against >= enough && self.enter(then)
    }

    fn enter(&mut self, state: CheckState) -> bool {
        *self = Self::new(state);
        true
    }
}

/// Returns the state of an endpoint that has become healthy.
fn healthy(now: Duration, timing: &Timing) -> CheckState {
    if timing.slow_start.is_zero() {
        CheckState::Passing
    } else {
        CheckState::Warming { until: now.saturating_add(timing.slow_start) }
    }
}
