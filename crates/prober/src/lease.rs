//! Which of several servers probes: the one that holds a Lease. The time, the answers of the API server and the
//! results of writes go in; the next request comes out.
//!
//! The holder renews the Lease every [`RENEW`]. It stops probing [`DEADLINE`] after it began its last successful
//! renewal. Another server takes over when it has seen one version of the Lease for [`DURATION`]. Every server measures
//! with its own clock, so the clocks need not agree, and every write is conditional on the version that was read. So two
//! servers never hold the Lease at once, and a dead holder is replaced within [`DURATION`], one [`RETRY`] and the time of
//! two requests.

use std::time::Duration;

use serde_json::{Value, json};

use crate::error::WriteError;

#[cfg(test)]
mod tests;

/// Name of the Lease.
pub const NAME: &str = "portolan-prober";
/// Namespace of the Lease.
pub const NAMESPACE: &str = "kube-system";
/// How long a version of the Lease must stay unchanged before another server takes over (`leaseDurationSeconds`).
pub const DURATION: Duration = Duration::from_secs(6);
/// How long the holder probes without a renewal. Less than [`DURATION`], so that writes under way end before another
/// server takes over.
pub const DEADLINE: Duration = Duration::from_secs(4);
/// From one renewal to the next.
pub const RENEW: Duration = Duration::from_secs(2);
/// From one read to the next of a server that does not hold the Lease.
pub const RETRY: Duration = Duration::from_secs(1);
/// From a request that failed to the next.
const AFTER_FAILURE: Duration = Duration::from_millis(500);
/// Longest duration in another server's claim that is respected.
const LONGEST: Duration = Duration::from_secs(60);

/// The Lease as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// `holderIdentity`; empty if the holder has released the Lease.
    pub holder: String,
    /// `leaseDurationSeconds`.
    pub duration: Duration,
    /// `leaseTransitions`.
    pub transitions: u32,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
}

/// A write of the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The new holder; empty to release the Lease.
    pub holder: String,
    /// Number of changes of the holder.
    pub transitions: u32,
    /// True if the holder changes.
    pub is_new: bool,
    /// The version that is replaced. `None`: the Lease is created.
    pub resource_version: Option<String>,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Read the Lease, and pass the answer to [`Election::read`].
    Read,
    /// Write the claim, and pass the result to [`Election::wrote`].
    Write(Claim),
    /// Ask again at this time.
    Wait(Duration),
}

/// One server's part in the election.
#[derive(Debug, Clone)]
pub struct Election {
    identity: String,
    /// True while a request is under way.
    is_busy: bool,
    /// Time of the next request.
    at: Duration,
    /// The claim that the last answer allows.
    claim: Option<Claim>,
    /// The last version of another holder that was read, and when it was read first. The version is empty if the Lease
    /// was deleted.
    seen: Option<(String, Duration)>,
    term: Option<Term>,
}

/// The time for which this server holds the Lease.
#[derive(Debug, Clone)]
struct Term {
    /// When the last successful renewal began.
    renewed: Duration,
    transitions: u32,
    /// The version of the last renewal. `None` if it is unknown, and the Lease must be read.
    resource_version: Option<String>,
}

impl Held {
    /// Reads a Lease object. Absent fields are empty.
    pub fn of(lease: &Value) -> Self {
        let text =
            |pointer: &str| lease.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let number = |pointer: &str| lease.pointer(pointer).and_then(Value::as_u64).unwrap_or_default();
        Self {
            holder: text("/spec/holderIdentity"),
            duration: Duration::from_secs(number("/spec/leaseDurationSeconds")),
            transitions: u32::try_from(number("/spec/leaseTransitions")).unwrap_or(u32::MAX),
            resource_version: text("/metadata/resourceVersion"),
        }
    }
}

impl Claim {
    /// Returns the object to create, at a wall-clock time in the format of `MicroTime`.
    pub fn lease(&self, now: &str) -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": self.spec(now),
        })
    }

    /// Returns the merge patch of the existing object, which fails with a conflict if the object has another version.
    pub fn merge_patch(&self, now: &str) -> Value {
        json!({"metadata": {"resourceVersion": self.resource_version}, "spec": self.spec(now)})
    }

    fn spec(&self, now: &str) -> Value {
        let mut spec = json!({
            "holderIdentity": self.holder, "leaseDurationSeconds": DURATION.as_secs(),
            "leaseTransitions": i32::try_from(self.transitions).unwrap_or(i32::MAX), "renewTime": now,
        });
        if let (true, Some(spec)) = (self.is_new, spec.as_object_mut()) {
            spec.insert("acquireTime".to_owned(), now.into());
        }
        spec
    }
}

impl Election {
    /// Creates the state of a server. The identity must be unique to this run of the process: a Lease with this holder
    /// is taken at once.
    pub fn new(identity: String, now: Duration) -> Self {
        Self { identity, is_busy: false, at: now, claim: None, seen: None, term: None }
    }

    /// Returns true if this server holds the Lease and may probe and write.
    pub fn leads(&self, now: Duration) -> bool {
        self.term.as_ref().is_some_and(|term| now < term.end())
    }

    /// Returns the next step. After [`Step::Read`] and [`Step::Write`] the result must be passed in before the next
    /// request is returned.
    pub fn next(&mut self, now: Duration) -> Step {
        let end = self.term.as_ref().map(Term::end).filter(|end| *end > now).unwrap_or(Duration::MAX);
        if self.is_busy {
            return Step::Wait(end);
        }
        if let Some(claim) = self.claim.take() {
            self.is_busy = true;
            return Step::Write(claim);
        }
        if now < self.at {
            return Step::Wait(self.at.min(end));
        }
        self.is_busy = true;
        let term = self.term.as_ref().filter(|_| self.leads(now));
        let renewal = term.and_then(|term| {
            let resource_version = term.resource_version.clone();
            let (holder, transitions) = (self.identity.clone(), term.transitions);
            resource_version.map(|it| Claim {
                holder,
                transitions,
                is_new: false,
                resource_version: Some(it),
            })
        });
        renewal.map_or(Step::Read, Step::Write)
    }

    /// Applies the answer to a read: the Lease, or `None` if it does not exist.
    pub fn read(&mut self, now: Duration, answer: Result<Option<Held>, WriteError>) {
        self.is_busy = false;
        match answer {
            Err(_) => self.at = now.saturating_add(AFTER_FAILURE),
            Ok(None) => {
                self.term = None;
                // If the Lease was deleted, its holder does not know until its next renewal.
                if self.seen.is_none() || self.is_expired(now, "", DURATION) {
                    self.claim_it(0, None);
                }
            }
            Ok(Some(held)) => self.compare(now, held),
        }
    }

    fn compare(&mut self, now: Duration, held: Held) {
        let version = held.resource_version;
        if held.holder == self.identity {
            // A renewal whose answer was lost, or another client changed the object.
            let (holder, transitions) = (self.identity.clone(), held.transitions);
            self.claim = Some(Claim { holder, transitions, is_new: false, resource_version: Some(version) });
            return;
        }
        self.term = None;
        let next = held.transitions.saturating_add(1);
        if held.holder.is_empty() {
            return self.claim_it(next, Some(version));
        }
        if self.is_expired(now, &version, held.duration.clamp(DURATION, LONGEST)) {
            self.claim_it(next, Some(version));
        }
    }

    /// Returns true if this version has been there for the duration. Otherwise the Lease is read again later.
    fn is_expired(&mut self, now: Duration, version: &str, duration: Duration) -> bool {
        let since = match &self.seen {
            Some((seen, since)) if seen == version => *since,
            _ => now,
        };
        let expiry = since.saturating_add(duration);
        self.seen = Some((version.to_owned(), since));
        self.at = now.saturating_add(RETRY).min(expiry);
        now >= expiry
    }

    fn claim_it(&mut self, transitions: u32, resource_version: Option<String>) {
        let holder = self.identity.clone();
        self.claim = Some(Claim { holder, transitions, is_new: true, resource_version });
    }

    /// Applies the result of a claim whose request began at `begun`: the new resource version, or an error.
    pub fn wrote(
        &mut self,
        claim: &Claim,
        begun: Duration,
        now: Duration,
        result: Result<String, WriteError>,
    ) {
        self.is_busy = false;
        match result {
            Ok(version) => {
                let resource_version = Some(version).filter(|version| !version.is_empty());
                self.term = Some(Term { renewed: begun, transitions: claim.transitions, resource_version });
                self.at = begun.saturating_add(RENEW);
                self.seen = None;
            }
            Err(error) => {
                // The write may have been applied all the same, so the Lease is read before the next one.
                if let Some(term) = &mut self.term {
                    term.resource_version = None;
                }
                let is_conflict = error == WriteError::Conflict && !claim.is_new;
                self.at = if is_conflict { now } else { now.saturating_add(AFTER_FAILURE) };
            }
        }
    }

    /// Returns the claim that releases the Lease, so that another server takes over at once. `None` if this server does
    /// not hold it.
    pub fn release(&mut self) -> Option<Claim> {
        let term = self.term.take()?;
        let resource_version = Some(term.resource_version?);
        Some(Claim { holder: String::new(), transitions: term.transitions, is_new: false, resource_version })
    }
}

impl Term {
    fn end(&self) -> Duration {
        self.renewed.saturating_add(DEADLINE)
    }
}
