//! Carrying out a write. It is decided under the write lock and handed to the store, which gives it its place in the
//! order; the lock is free again while the store makes it durable. Where other servers write to the same store, one of
//! them may have been faster: then the write is decided anew, from what is there now.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Api, Effect, Outcome};
use crate::{
    allocate::Allocator,
    error::ApiError,
    kinds::service::claims::Claims,
    store::{CommitError, Committed, StoredObject, Transaction},
};

/// How long a write goes on being decided anew. Clients that wait longer than a minute give up (the default of
/// kube-apiserver's `--request-timeout`).
const DEADLINE: Duration = Duration::from_secs(30);

/// What a write comes to.
#[derive(Debug)]
pub(super) enum Decision {
    /// Nothing is to be stored.
    Done(Outcome),
    /// This is.
    Write(Write),
}

/// What is to be stored.
#[derive(Debug)]
pub(super) struct Write {
    /// The steps; the last one is about the object itself.
    pub(super) transaction: Transaction,
    /// What becomes of the object.
    pub(super) effect: Effect,
    /// The object that goes, in a deletion.
    pub(super) removed: Option<Arc<StoredObject>>,
    /// Remarks for the client.
    pub(super) warnings: Vec<String>,
    /// What changes hands.
    pub(super) exchange: Exchange,
}

/// Addresses and ports that a write takes and gives back.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    /// The Service that does.
    pub(super) owner: String,
    /// What it held before.
    pub(super) before: Claims,
    /// What it holds after.
    pub(super) after: Claims,
}

impl Api {
    /// Decides and stores until the store has no objection. `decide` must not depend on what it decided before.
    pub(super) async fn write(
        &self,
        mut decide: impl FnMut(&mut dyn Allocator) -> Result<Decision, ApiError>,
    ) -> Result<Outcome, ApiError> {
        let start = Instant::now();
        loop {
            let (commit, effect, removed, warnings, exchange) = {
                let mut allocator = self.write_lock();
                match decide(&mut **allocator)? {
                    Decision::Done(outcome) => return Ok(outcome),
                    Decision::Write(write) => {
                        let commit = self.store.commit(write.transaction);
                        (commit, write.effect, write.removed, write.warnings, write.exchange)
                    }
                }
            };
            let result = commit.await;
            exchange.settle(result.is_ok(), &mut **self.write_lock());
            match result {
                Ok(committed) => return outcome_of(committed, effect, removed.as_deref(), warnings),
                Err(CommitError::Conflict { .. }) if start.elapsed() < DEADLINE => {
                    self.store.refresh().await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Exchange {
    fn settle(&self, is_done: bool, allocator: &mut dyn Allocator) {
        let (lost, kept) = if is_done { (&self.before, &self.after) } else { (&self.after, &self.before) };
        lost.release_except(kept, allocator, &self.owner);
    }
}

fn outcome_of(
    committed: Committed,
    effect: Effect,
    removed: Option<&StoredObject>,
    warnings: Vec<String>,
) -> Result<Outcome, ApiError> {
    let Committed { revision, objects } = committed;
    if let Some(removed) = removed {
        return Ok(Outcome { object: removed.body_at(revision), revision, effect, warnings });
    }
    let Some(stored) = objects.last() else {
        return Err(CommitError::Unknown("the store did not return the object".to_owned()).into());
    };
    Ok(Outcome { object: stored.body().clone(), revision: stored.revision(), effect, warnings })
}
