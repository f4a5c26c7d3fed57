//! A data plane that is to replace another, and a data plane that was replaced.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_model::{Change, Coalesced, Family, Forwarding, ServicePortName, Settings};

use super::Work;
use super::retry::Retry;
use crate::dataplane::{Chains, Commit, Dataplane, Error, HealthCheckPort};

/// Number of forwardings passed to a data plane at once.
const CHUNK: usize = 1024;
/// Pause between two pieces of a removal. Pending work is committed first.
const PIECE_PAUSE: Duration = Duration::from_millis(10);

/// Health-check node ports by the namespace and name of their Service.
#[derive(Debug, Default)]
pub(super) struct HealthChecks {
    ports: BTreeMap<(Arc<str>, Arc<str>), u16>,
}

impl HealthChecks {
    pub(super) fn take(&mut self, changed: &[HealthCheckPort]) {
        for check in changed {
            let key = (check.namespace.clone(), check.service.clone());
            match check.port {
                Some(port) => self.ports.insert(key, port),
                None => self.ports.remove(&key),
            };
        }
    }

    fn all(&self) -> Vec<HealthCheckPort> {
        let check = |((namespace, service), port): (&(Arc<str>, Arc<str>), &u16)| HealthCheckPort {
            namespace: namespace.clone(),
            service: service.clone(),
            port: Some(*port),
        };
        self.ports.iter().map(check).collect()
    }
}

/// A data plane that has the same state as the active one, but has not been able to write it yet.
pub(super) struct Successor {
    dataplane: Box<dyn Dataplane + Send>,
    changes: Coalesced,
    due: Instant,
    retry: Retry,
}

impl Successor {
    /// Passes the state of the active data plane to a new one. `table` is the forwarding table of the active one,
    /// `waiting` are the changes that it has not received.
    pub(super) fn new<'a>(
        mut dataplane: Box<dyn Dataplane + Send>,
        family: Family,
        table: impl Iterator<Item = (&'a Arc<ServicePortName>, &'a Arc<Forwarding>)>,
        waiting: &Coalesced,
        health_checks: &HealthChecks,
        now: Instant,
    ) -> Self {
        let mut chunk = Vec::with_capacity(CHUNK);
        for (name, forwarding) in table {
            chunk.push(Change { name: name.clone(), family, old: None, new: Some(forwarding.clone()) });
            if chunk.len() == CHUNK {
                // Before its first comparison a data plane only stores changes.
                let _ = dataplane.apply(&chunk);
                chunk.clear();
            }
        }
        let _ = dataplane.apply(&chunk);
        let _ = dataplane.open_health_check_ports(&health_checks.all());
        let mut changes = Coalesced::default();
        changes.extend(waiting.iter().cloned());
        Self { dataplane, changes, due: now, retry: Retry::default() }
    }

    pub(super) fn mode(&self) -> &'static str {
        self.dataplane.mode()
    }

    pub(super) const fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn queue(&mut self, work: &Work) {
        self.changes.extend(work.changes.clone());
        if !work.health_checks.is_empty() {
            let _ = self.dataplane.open_health_check_ports(&work.health_checks);
        }
    }

    pub(super) fn configure(&mut self, settings: Settings) {
        self.dataplane.configure(settings);
    }

    /// Compares everything and writes the difference. After a failure sets the deadline of the next attempt, at most
    /// `longest_retry` later.
    pub(super) fn commit(&mut self, longest_retry: Duration) -> Result<Commit, Error> {
        let outcome = self.dataplane.compare(&self.changes.take());
        if outcome.is_err() {
            self.due = Instant::now() + self.retry.next(longest_retry);
        }
        outcome
    }

    pub(super) fn into_dataplane(self) -> Box<dyn Dataplane + Send> {
        self.dataplane
    }
}

/// A data plane that is not active any more, and whose rules are to be removed.
pub(super) struct Retired {
    dataplane: Box<dyn Dataplane + Send>,
    due: Instant,
    retry: Retry,
}

impl Retired {
    pub(super) fn new(dataplane: Box<dyn Dataplane + Send>, now: Instant) -> Self {
        Self { dataplane, due: now, retry: Retry::default() }
    }

    pub(super) fn place(&self) -> &'static str {
        self.dataplane.place()
    }

    pub(super) const fn due(&self) -> Instant {
        self.due
    }

    /// Removes a part of the rules. Returns true if nothing is left.
    pub(super) fn retire(&mut self, family: Family, kept: Option<Chains>, longest_retry: Duration) -> bool {
        let place = self.place();
        match self.dataplane.retire(kept) {
            Ok(false) => {
                tracing::info!(%family, place, "nothing of another mode is left here");
                return true;
            }
            Ok(true) => {
                self.retry.succeeded();
                let soonest = Instant::now() + PIECE_PAUSE;
                self.due = self.dataplane.next_attempt().map_or(soonest, |due| due.max(soonest));
            }
            Err(error) => {
                let wait = self.retry.next(longest_retry);
                self.due = Instant::now() + wait;
                tracing::error!(%family, place, %error, ?wait, "rules of another mode cannot be removed; trying again");
            }
        }
        false
    }
}
