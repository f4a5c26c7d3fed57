//! What a handle asks of the relay's thread.

use std::collections::VecDeque;
use std::sync::mpsc;
use std::time::Instant;

use portolan_model::catalog::PerFamily;
use portolan_model::{Coalesced, Family};

use crate::table::Relayed;

/// What the relay has to do. Commands are merged until its thread takes them, so that they take memory for each Service port
/// and not for each change.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    /// Changes of the table.
    pub(crate) changes: PerFamily<Coalesced>,
    /// True for families of which changes have been sent, possibly none: their table is known.
    pub(crate) has_table: PerFamily<bool>,
    /// Accept nothing new, and end with the last connection, or at this time.
    pub(crate) drain: Option<Instant>,
    /// End at once.
    pub(crate) stop: bool,
    /// Requests for the Service ports of a family.
    pub(crate) snapshots: VecDeque<SnapshotRequest>,
}

/// A request for the Service ports of a family. Dropped if the relay ends before it answers.
#[derive(Debug)]
pub(crate) struct SnapshotRequest {
    pub(crate) family: Family,
    /// Has room for the answer, so that the relay does not wait.
    pub(crate) reply: mpsc::SyncSender<Vec<Relayed>>,
}
