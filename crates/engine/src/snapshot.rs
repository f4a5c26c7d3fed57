//! What the engine holds and has done, at one moment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_model::{Change, Family, ServicePortName};

use super::history::{Event, Totals};
use super::state::{Reason, State};
use super::{ObjectChanges, Report, Step};
use crate::table::Table;

/// How many Service ports an attempt names.
const NAMES_KEPT: usize = 3;

/// What one family's lane holds. It is cheap: the table is shared with the engine until either changes. If it is kept, the
/// engine's next change copies the whole table.
#[derive(Debug, Clone)]
pub struct FamilySnapshot {
    /// The family.
    pub family: Family,
    /// The mode of the active data plane.
    pub mode: &'static str,
    /// The place of the active data plane.
    pub place: &'static str,
    /// The place of its chains of iptables, see [`Claims::place`](crate::Claims::place). `None` if it has none.
    pub iptables: Option<&'static str>,
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
    /// What an operator may want to know later, the oldest first.
    pub events: Vec<Event>,
    /// What was done since the start of the engine.
    pub totals: Totals,
    /// Changes of the rules by other programs since the start of the engine.
    pub drift: Drift,
    /// The mode of the data plane that is to replace the active one.
    pub successor: Option<&'static str>,
    /// The places of replaced data planes whose rules are being removed.
    pub retired: Vec<&'static str>,
}

/// Changes of the rules by other programs since the start of the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drift {
    /// How often a comparison was due because another program may have changed the rules.
    pub noticed: u64,
    /// How often such a comparison had to write something.
    pub repaired: u64,
    /// When that was last noticed.
    pub last: Option<Instant>,
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
