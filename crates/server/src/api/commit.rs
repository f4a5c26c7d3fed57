//! Carrying out a write. It is decided under the write lock and handed to the store, which gives it its place in the
//! order; the lock is free again while the store makes it durable. Where other servers write to the same store, one of
//! them may have been faster: then the write is decided anew, from what is there now.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use portolan_ipam::{Claims, ServiceSpec};

use super::{Api, Effect, Outcome};
use crate::{
    allocate::Ledger,
    error::ApiError,
    store::{CommitError, Committed, StoredObject, Transaction},
};

/// How long a write goes on being decided anew. Clients that wait longer than a minute give up (the default of
/// kube-apiserver's `--request-timeout`).
const DEADLINE: Duration = Duration::from_secs(30);
/// Conflicts after which nothing is waited for: what was in the way is read anew, which takes a moment, too.
const FREE_CONFLICTS: u32 = 2;
/// The longest pauses after the next conflict, and after any.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// What a write comes to.
#[derive(Debug)]
pub(crate) enum Decision {
    /// Nothing is to be stored.
    Done(Outcome),
    /// This is.
    Write(Write),
}

/// What is to be stored.
#[derive(Debug)]
pub(crate) struct Write {
    /// The steps; the last one is about the object itself.
    pub(crate) transaction: Transaction,
    /// What becomes of the object.
    pub(crate) effect: Effect,
    /// The object that goes, in a deletion.
    pub(crate) removed: Option<Arc<StoredObject>>,
    /// Remarks for the client.
    pub(crate) warnings: Vec<String>,
    /// What changes hands.
    pub(crate) exchange: Exchange,
}

/// What a write takes and gives back.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    /// What is new.
    pub(super) take: Claims,
    /// What is recorded as the object's already, but the stored one has not.
    pub(super) find: Claims,
    /// What is free afterwards.
    pub(super) release: Claims,
    /// The spec as the client wrote it.
    pub(super) asked: Box<ServiceSpec>,
}

/// A write under way; whatever becomes of it, the ledger is told.
struct UnderWay<'a> {
    api: &'a Api,
    take: Claims,
}

impl Api {
    /// Decides and stores until the store has no objection. `decide` must not depend on what it decided before.
    pub(crate) async fn write(
        &self,
        mut decide: impl FnMut(&mut Ledger) -> Result<Decision, ApiError>,
    ) -> Result<Outcome, ApiError> {
        let start = Instant::now();
        let (mut is_fresh, mut conflicts) = (false, 0_u32);
        loop {
            let seen = self.store.revision();
            let decided = self.decide_and_submit(&mut decide);
            let (commit, under_way, rest) = match decided {
                Ok(Submitted::Done(outcome)) => return Ok(outcome),
                Ok(Submitted::Write(commit, under_way, rest)) => (commit, under_way, rest),
                // It may have been refused for something that is no longer true.
                Err(error) if !is_fresh => {
                    is_fresh = true;
                    if self.store.refresh().await? == seen {
                        return Err(error);
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            let result = commit.await;
            drop(under_way);
            match result {
                Ok(committed) => {
                    self.settle(&rest.exchange, start.elapsed());
                    return outcome_of(committed, *rest);
                }
                Err(CommitError::Conflict { .. }) if start.elapsed() < DEADLINE => {
                    conflicts = conflicts.saturating_add(1);
                    wait(pause(conflicts, fastrand::f64())).await;
                    self.store.refresh().await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn decide_and_submit(
        &self,
        decide: &mut impl FnMut(&mut Ledger) -> Result<Decision, ApiError>,
    ) -> Result<Submitted<'_>, ApiError> {
        let mut ledger = self.write_lock();
        ledger.follow(&*self.store);
        let write = match decide(&mut ledger)? {
            Decision::Done(outcome) => return Ok(Submitted::Done(outcome)),
            Decision::Write(write) => write,
        };
        let Write { transaction, effect, removed, warnings, exchange } = write;
        ledger.depart(&exchange.take);
        let commit = self.store.commit(transaction);
        // It takes the lock when it is dropped.
        drop(ledger);
        let under_way = UnderWay { api: self, take: exchange.take.clone() };
        let rest = Box::new(Rest { effect, removed, warnings, exchange });
        Ok(Submitted::Write(commit, under_way, rest))
    }

    fn settle(&self, exchange: &Exchange, took: Duration) {
        let Exchange { take, release, asked, .. } = exchange;
        if !take.is_empty() || !release.is_empty() {
            let mut ledger = self.write_lock();
            ledger.retire(&*self.store, release);
            ledger.count_taken(take, asked, took);
        }
    }
}

/// Waits, where there is a runtime to wait by: [`Blocking`](super::Blocking) calls need none.
async fn wait(pause: Duration) {
    if !pause.is_zero() && tokio::runtime::Handle::try_current().is_ok() {
        tokio::time::sleep(pause).await;
    }
}

/// What to wait after so many conflicts, so that those who write the same do not go on disturbing each other: a part of
/// what doubles each time, by a number between 0 and 1.
fn pause(conflicts: u32, random: f64) -> Duration {
    let Some(beyond) = conflicts.checked_sub(FREE_CONFLICTS + 1) else { return Duration::ZERO };
    let longest = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(beyond)).min(LONGEST_PAUSE);
    longest.mul_f64(random.clamp(0.0, 1.0))
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.take.is_empty() {
            self.api.write_lock().arrive(&*self.api.store, &self.take);
        }
    }
}

enum Submitted<'a> {
    Done(Outcome),
    Write(BoxFuture<'static, Result<Committed, CommitError>>, UnderWay<'a>, Box<Rest>),
}

/// What is left of a [`Write`] when its transaction is with the store.
struct Rest {
    effect: Effect,
    removed: Option<Arc<StoredObject>>,
    warnings: Vec<String>,
    exchange: Exchange,
}

fn outcome_of(committed: Committed, rest: Rest) -> Result<Outcome, ApiError> {
    let Committed { revision, objects } = committed;
    let Rest { effect, removed, warnings, .. } = rest;
    if let Some(removed) = removed {
        return Ok(Outcome { object: removed.body_at(revision), revision, effect, warnings });
    }
    let Some(stored) = objects.last() else {
        return Err(CommitError::Unknown("the store did not return the object".to_owned()).into());
    };
    Ok(Outcome { object: stored.body().clone(), revision: stored.revision(), effect, warnings })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        let longest: Vec<u128> = (0..12).map(|conflicts| pause(conflicts, 1.0).as_millis()).collect();
        assert_eq!(longest, [0, 0, 0, 2, 4, 8, 16, 32, 64, 128, 250, 250]);
        assert_eq!(pause(u32::MAX, 1.0), LONGEST_PAUSE);
        assert_eq!((pause(4, 0.0), pause(4, 0.5)), (Duration::ZERO, FIRST_PAUSE));
    }
}
