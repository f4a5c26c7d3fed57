//! What the engine holds and has done, at one moment.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use portolan_model::Family;

use super::Step;
use super::state::State;
use crate::dataplane::{Commit, Error};
use crate::table::Table;

/// How many commits, and how many failures, a lane remembers.
const KEPT: usize = 8;

/// What one family's lane holds. It is cheap: the table is shared with the engine until either changes.
#[derive(Debug, Clone)]
pub struct FamilySnapshot {
    /// The family.
    pub family: Family,
    /// The mode of the active data plane.
    pub mode: &'static str,
    /// The place of the active data plane.
    pub place: &'static str,
    /// The wanted state.
    pub table: Table,
    /// Whether the kernel has it.
    pub state: State,
    /// Number of Service ports with a change that waits for the next commit.
    pub pending: usize,
    /// The last commits, the oldest first.
    pub commits: Vec<Attempt>,
    /// The last failures, the oldest first.
    pub failures: Vec<Attempt>,
    /// The mode of the data plane that is to replace the active one.
    pub successor: Option<&'static str>,
    /// The places of replaced data planes whose rules are being removed.
    pub retired: Vec<&'static str>,
}

/// One attempt at a commit or a collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The mode of the data plane.
    pub mode: &'static str,
    /// What was done.
    pub step: Step,
    /// When it ended.
    pub at: Instant,
    /// How long it took.
    pub duration: Duration,
    /// True if everything was compared.
    pub full: bool,
    /// The numbers of elements and of other objects written, or the error.
    pub outcome: Result<(usize, usize), String>,
}

impl Attempt {
    pub(super) fn new(
        (mode, step): (&'static str, Step),
        at: Instant,
        duration: Duration,
        full: bool,
        outcome: &Result<Commit, Error>,
    ) -> Self {
        let outcome = match outcome {
            Ok(commit) => Ok((commit.elements, commit.objects)),
            Err(error) => Err(error.to_string()),
        };
        Self { mode, step, at, duration, full, outcome }
    }
}

/// Adds an attempt in place of the oldest one.
pub(super) fn keep(attempts: &mut VecDeque<Attempt>, attempt: Attempt) {
    if attempts.len() >= KEPT {
        attempts.pop_front();
    }
    attempts.push_back(attempt);
}
