//! Carries out a write. The write is decided under the write lock and given to the store, which fixes its place in
//! the order of writes. The lock is free while the store makes the write durable.
//!
//! The store checks the conditions of the transaction; on etcd, etcd itself does. If several servers share the store,
//! another one may have changed an object that the decision depends on. The store then reports a conflict: the server
//! reads the current state, and decides the write again after a random back-off.
//!
//! etcd limits the operations of a transaction. A write that releases more node ports than fit leaves the objects of the rest to
//! [later transactions](super::later).
//!
//! A write that would change nothing needs no transaction. It is answered if the object that it was compared with is
//! published, and is the current one after a refresh. An object that changes all the time may never be both. At the
//! second attempt the store therefore checks the version that was found, and answers when that version is durable.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use portolan_ipam::{Claims, ServiceSpec};
use portolan_schema::Resource;
use portolan_store::{CommitError, Committed, Step, StoredObject, Transaction};

use super::{
    Api, Effect, WriteResult,
    later::{Later, put_off},
};
use crate::{allocate::Ledger, error::ApiError};

/// Time in which a write that meets conflicts is retried. Clients give up after a minute (the default of
/// kube-apiserver's `--request-timeout`).
const DEADLINE: Duration = Duration::from_secs(30);
/// Number of conflicts after which a retry follows without a pause. Reading the current state takes some time
/// already.
const FREE_CONFLICTS: u32 = 2;
/// Upper bounds of the pause: of the first one, and of any.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The result of deciding a write.
#[derive(Debug)]
pub(crate) enum Decision {
    /// Nothing needs to be stored: the outcome is known.
    Done(WriteResult),
    /// The stored object with this key is already as it should be.
    Same(WriteResult, Resource, Box<str>),
    /// A transaction must be stored.
    Write(Write),
}

impl Decision {
    /// Adds warnings before those that there are.
    pub(super) fn with_warnings(mut self, earlier: Vec<String>) -> Self {
        let warnings = match &mut self {
            Self::Done(outcome) | Self::Same(outcome, ..) => &mut outcome.warnings,
            Self::Write(write) => &mut write.warnings,
        };
        warnings.splice(0..0, earlier);
        self
    }
}

/// A transaction to be stored, and what is needed for its outcome.
#[derive(Debug)]
pub(crate) struct Write {
    /// The steps. The last one writes or removes the object itself.
    pub(crate) transaction: Transaction,
    /// The effect on the object.
    pub(crate) effect: Effect,
    /// The removed object, if this is a deletion.
    pub(crate) removed: Option<Arc<StoredObject>>,
    /// Warnings for the client.
    pub(crate) warnings: Vec<String>,
    /// The cluster IPs and node ports that the write takes and releases.
    pub(crate) exchange: Exchange,
}

/// The cluster IPs and node ports that a write takes and releases.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    /// Newly allocated ones.
    pub(super) take: Claims,
    /// Those that are recorded for the Service already, but are not in its stored spec.
    pub(super) find: Box<Claims>,
    /// Those that are released once the write has succeeded.
    pub(super) release: Claims,
    /// The spec as the client wrote it.
    pub(super) asked: Box<ServiceSpec>,
}

/// A write that has been given to the store. When it is dropped, the ledger's claims of the write are settled,
/// whatever its result.
struct InFlightWrite<'a> {
    api: &'a Api,
    take: Claims,
}

impl Api {
    /// Decides a write and commits it, and retries it after conflicts. Each call of `decide` must be independent of
    /// earlier calls.
    pub(crate) async fn write<E: From<ApiError> + From<CommitError>>(
        &self,
        mut decide: impl FnMut(&mut Ledger) -> Result<Decision, E>,
    ) -> Result<WriteResult, E> {
        let start = Instant::now();
        let (mut is_fresh, mut conflicts) = (false, 0_u32);
        loop {
            let seen = self.store.revision();
            let decided = self.decide_and_submit(&mut decide, is_fresh);
            let (commit, under_way, rest) = match decided {
                Ok(Submitted::Same(outcome)) => {
                    // Another server may have changed the object, or its version here may not be durable yet.
                    if self.store.refresh().await? == seen && outcome.revision <= seen {
                        return Ok(outcome);
                    }
                    is_fresh = true;
                    continue;
                }
                Ok(Submitted::Done(outcome)) => return Ok(outcome),
                Ok(Submitted::Write(commit, under_way, rest)) => (commit, under_way, rest),
                // The reason for the refusal may be stale: refresh, and decide once more if anything has changed.
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
                    self.release_later(&rest.later).await;
                    return Ok(outcome_of(committed, *rest)?);
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

    fn decide_and_submit<E>(
        &self,
        decide: &mut impl FnMut(&mut Ledger) -> Result<Decision, E>,
        is_fresh: bool,
    ) -> Result<Submitted<'_>, E> {
        let mut ledger = self.ledger();
        let write = match decide(&mut ledger)? {
            Decision::Done(outcome) => return Ok(Submitted::Done(outcome)),
            Decision::Same(outcome, ..) if !is_fresh => return Ok(Submitted::Same(outcome)),
            Decision::Same(outcome, resource, key) => return Ok(self.confirm(outcome, resource, key)),
            Decision::Write(write) => write,
        };
        let Write { mut transaction, effect, removed, warnings, exchange } = write;
        let later = put_off(&mut transaction, self.store.most_steps());
        ledger.begin_write(&exchange.take);
        let commit = self.store.commit(transaction);
        // Dropping the future locks the ledger again, so the lock must be released first.
        drop(ledger);
        let under_way = InFlightWrite { api: self, take: exchange.take.clone() };
        let rest = Box::new(Rest { same: None, effect, removed, warnings, exchange, later });
        Ok(Submitted::Write(commit, under_way, rest))
    }

    /// Has the store check that the object still has the version of an outcome, unless that version is published: after a
    /// refresh it has then been the current one during the request.
    fn confirm(&self, outcome: WriteResult, resource: Resource, key: Box<str>) -> Submitted<'_> {
        let expected = Some(outcome.revision);
        if self.store.get(resource, &key).map(|stored| stored.revision()) == expected {
            return Submitted::Done(outcome);
        }
        let steps = vec![Step::Require { resource, key, expected }];
        let commit = self.store.commit(Transaction { steps });
        let under_way = InFlightWrite { api: self, take: Claims::default() };
        Submitted::Write(commit, under_way, Box::new(Rest::same(outcome)))
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

/// Sleeps if there is a tokio runtime. [`Blocking`](super::Blocking) calls run without one, and do not pause.
async fn wait(pause: Duration) {
    if !pause.is_zero() && tokio::runtime::Handle::try_current().is_ok() {
        tokio::time::sleep(pause).await;
    }
}

/// Returns the pause after this many conflicts, so that writers of the same objects do not keep disturbing each
/// other. The upper bound doubles with each conflict; `random`, between 0 and 1, selects a part of it.
fn pause(conflicts: u32, random: f64) -> Duration {
    let Some(beyond) = conflicts.checked_sub(FREE_CONFLICTS + 1) else { return Duration::ZERO };
    let longest = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(beyond)).min(LONGEST_PAUSE);
    longest.mul_f64(random.clamp(0.0, 1.0))
}

impl Drop for InFlightWrite<'_> {
    fn drop(&mut self) {
        if !self.take.is_empty() {
            self.api.write_lock().end_write(&*self.api.store, &self.take);
        }
    }
}

enum Submitted<'a> {
    Done(WriteResult),
    /// Nothing has to change, but what was found may not be the current object.
    Same(WriteResult),
    Write(BoxFuture<'static, Result<Committed, CommitError>>, InFlightWrite<'a>, Box<Rest>),
}

/// The parts of a [`Write`] that remain after its transaction was given to the store.
struct Rest {
    /// The outcome, if the transaction changes nothing.
    same: Option<WriteResult>,
    effect: Effect,
    removed: Option<Arc<StoredObject>>,
    warnings: Vec<String>,
    exchange: Exchange,
    later: Later,
}

impl Rest {
    fn same(outcome: WriteResult) -> Self {
        let (effect, removed, warnings, exchange) = (outcome.effect, None, Vec::new(), Exchange::default());
        Self { same: Some(outcome), effect, removed, warnings, exchange, later: Later::default() }
    }
}

fn outcome_of(committed: Committed, rest: Rest) -> Result<WriteResult, ApiError> {
    let Committed { revision, objects } = committed;
    let Rest { same, effect, removed, warnings, .. } = rest;
    if let Some(same) = same {
        return Ok(same);
    }
    if let Some(removed) = removed {
        return Ok(WriteResult { object: removed.body_at(revision), revision, effect, warnings });
    }
    let Some(stored) = objects.last() else {
        return Err(CommitError::Unknown("the store did not return the object".to_owned()).into());
    };
    Ok(WriteResult { object: stored.body().clone(), revision: stored.revision(), effect, warnings })
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
