//! One attempt of a lane: what it was for, and its result.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_model::{Change, ServicePortName};

use super::state::Reason;
use super::{ObjectChanges, Report, Step};
use crate::table::Table;

/// How many Service ports an attempt names.
const NAMES_KEPT: usize = 3;

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
    /// True if a change by another program was repaired.
    pub repaired: bool,
    /// What it was for.
    pub cause: Cause,
    /// Number of object changes that it completed. Zero after a failure.
    pub objects: ObjectChanges,
    /// What was written, or the error.
    pub outcome: Result<Written, String>,
}

/// What an attempt was for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cause {
    /// Why everything was compared. `None` if only changes were to be written.
    pub reason: Option<Reason>,
    /// Number of Service ports with a change since the data plane's last call.
    pub changed: usize,
    /// Some of them, in the order of the changes.
    pub first: Vec<Arc<ServicePortName>>,
}

/// What a commit wrote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// Number of elements.
    pub elements: usize,
    /// Number of other objects.
    pub objects: usize,
    /// Bytes sent to the kernel.
    pub bytes: usize,
    /// Time that the kernel took.
    pub kernel: Duration,
}

impl Cause {
    pub(super) fn new(reason: Option<Reason>, changes: &[Change]) -> Self {
        let first = changes.iter().take(NAMES_KEPT).map(|change| change.name.clone()).collect();
        Self { reason, changed: changes.len(), first }
    }

    /// Returns the cause of the first comparison.
    pub(super) fn of_all(reason: Option<Reason>, table: &Table) -> Self {
        let first = table.iter().take(NAMES_KEPT).map(|(name, _)| name.clone()).collect();
        Self { reason, changed: table.len(), first }
    }
}

impl Attempt {
    /// Returns the attempt that a complete report is about. It ended `at` this time.
    pub(super) fn new(report: &Report, at: Instant) -> Self {
        let outcome = match &report.outcome {
            Ok(commit) => Ok(Written {
                elements: commit.elements,
                objects: commit.objects,
                bytes: commit.bytes,
                kernel: commit.kernel,
            }),
            Err(error) => Err(error.to_string()),
        };
        Self {
            mode: report.mode,
            step: report.step,
            at,
            duration: report.duration,
            full: report.full,
            repaired: report.repaired,
            cause: report.cause.clone(),
            objects: report.objects,
            outcome,
        }
    }
}
