//! Leader election with leases, as Kubernetes' components do it: a candidate takes a lease that has no holder or whose
//! holder has stopped, and renews it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use portolan_testkit::{HttpClient, eventually};
use serde::Deserialize;

use super::{ELECTIONS, LEASES, Metadata, RENEWED_EVERY, Soak, version};
use crate::site::PATIENCE;

/// Renewals after which a holder gives up its lease at the latest.
const MOST_RENEWALS: u64 = 3000;
/// Terms that a lease has at least, so that a short run has some, too.
const LEAST_TERMS: u64 = 4;
/// The lease whose first holder stops without giving it up, like a component on a node that hangs.
const HANGS_FIRST: usize = 0;
/// One of so many later holders does so, too.
const HANGS: u64 = 10;
/// Time after which a candidate looks at the lease again.
const LOOKS_AGAIN: Duration = Duration::from_millis(10);
/// Time after which a lease that is not renewed has expired. A holder that was only slow then loses it.
const EXPIRES: Duration = Duration::from_secs(2);
/// The lengths of the months of 2026.
const MONTHS: [u64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// Time during which a client held a lease, by the lease's revisions: from the write that took it to the last renewal.
#[derive(Debug, Clone)]
pub(super) struct Term {
    lease: usize,
    holder: usize,
    first: u64,
    last: u64,
    /// True if another candidate took the lease.
    pub(super) is_lost: bool,
}

/// A client that stands for election.
pub(super) struct Candidate<'a> {
    soak: &'a Soak,
    client: HttpClient,
    rng: fastrand::Rng,
    lease: usize,
    own: usize,
    path: String,
}

/// What a candidate reads of a lease.
#[derive(Debug, Deserialize)]
struct Lease<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(borrow)]
    spec: Spec<'a>,
}

#[derive(Debug, Deserialize)]
struct Spec<'a> {
    #[serde(borrow, rename = "holderIdentity")]
    holder: Option<&'a str>,
}

impl<'a> Candidate<'a> {
    pub(super) fn new(soak: &'a Soak, lease: usize, own: usize) -> Self {
        let path = format!("{LEASES}/{}", name_of(lease));
        Self { soak, client: soak.client(), rng: fastrand::Rng::new(), lease, own, path }
    }

    /// Takes the lease whenever it can, until the lease has been renewed often enough.
    pub(super) fn stand(mut self) -> Vec<Term> {
        let mut terms = Vec::new();
        while let Some(version) = self.opportunity() {
            terms.extend(self.lead(version));
        }
        terms
    }

    /// Waits until the lease has no holder, or has expired: its version stands still. Returns the version; `None` once the
    /// lease has been renewed often enough.
    fn opportunity(&mut self) -> Option<u64> {
        let mut seen = (0, Instant::now());
        while !self.soak.is_done(self.lease) {
            // A candidate that has just given up the lease leaves it to the other one.
            std::thread::sleep(LOOKS_AGAIN);
            let answer = self.client.request("GET", &self.path, &[], b"").unwrap();
            let lease: Lease<'_> = serde_json::from_slice(&answer.body).unwrap();
            let version = lease.metadata.version();
            if version != seen.0 {
                seen = (version, Instant::now());
            }
            if lease.spec.holder.is_none() || seen.1.elapsed() >= EXPIRES {
                return Some(version);
            }
        }
        None
    }

    /// Takes the lease, renews it some times, and gives it up, as a component does that ends. Returns `None` if the other
    /// candidate was faster.
    fn lead(&mut self, version: u64) -> Option<Term> {
        let (soak, lease) = (self.soak, self.lease);
        let renewals = &soak.renewals[lease];
        let is_first = renewals.load(Ordering::SeqCst) == 0;
        let first = self.write(version, true, renewals.load(Ordering::SeqCst))?;
        let mut term = Term { lease, holder: self.own, first, last: first, is_lost: true };
        for _ in 0..self.rng.u64(1..=longest_term(soak)) {
            if soak.is_done(lease) {
                break;
            }
            let Some(written) = self.write(term.last, true, renewals.load(Ordering::SeqCst) + 1) else {
                return Some(term);
            };
            renewals.fetch_add(1, Ordering::SeqCst);
            term.last = written;
        }
        let hangs = (is_first && lease == HANGS_FIRST) || self.rng.u64(..HANGS) == 0;
        if hangs && !soak.is_done(lease) {
            self.hang(term.last);
            return Some(term);
        }
        term.is_lost = self.write(term.last, false, renewals.load(Ordering::SeqCst)).is_none();
        Some(term)
    }

    /// Stops until the other candidate has taken the lease, and then goes on as if nothing had happened: the next renewal
    /// is refused.
    fn hang(&mut self, last: u64) {
        let soak = self.soak;
        let taken = eventually(PATIENCE, "the end of a lease", || {
            let answer = self.client.request("GET", &self.path, &[], b"").unwrap();
            soak.has_failed() || version(&answer.body) != last
        });
        taken.unwrap();
        let renewals = soak.renewals[self.lease].load(Ordering::SeqCst);
        let late = self.write(last, true, renewals + 1);
        assert!(late.is_none() || soak.has_failed(), "a lost lease was renewed: {late:?} after {last}");
    }

    /// Writes the lease as it is after so many renewals. Returns its new version; `None` if the lease has changed since
    /// `version`, on which an update is based.
    fn write(&mut self, version: u64, is_held: bool, renewals: u64) -> Option<u64> {
        let holder =
            if is_held { format!(r#""holderIdentity":"candidate-{}","#, self.own) } else { String::new() };
        let body = format!(
            r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{{"name":"{}","resourceVersion":"{version}"}},"spec":{{{holder}"leaseDurationSeconds":15,"renewTime":"{}"}}}}"#,
            name_of(self.lease),
            time(RENEWED_EVERY * renewals)
        );
        match self.soak.write(&mut self.client, "PUT", &self.path, &body) {
            Ok(written) => {
                assert!(written > version, "{}: {written} after {version}", self.path);
                Some(written)
            }
            Err(409) => None,
            Err(status) => panic!("{}: {status}", self.path),
        }
    }
}

/// No two terms of a lease overlap.
pub(super) fn one_leader_at_a_time(terms: &[Term]) {
    for lease in 0..ELECTIONS {
        let mut own: Vec<&Term> = terms.iter().filter(|term| term.lease == lease).collect();
        assert!(!own.is_empty(), "lease {lease} had no holder");
        own.sort_unstable_by_key(|term| term.first);
        for pair in own.windows(2) {
            assert!(
                pair[0].last < pair[1].first,
                "two holders: {pair:?} (candidates {} and {})",
                pair[0].holder,
                pair[1].holder
            );
        }
    }
}

pub(super) fn name_of(lease: usize) -> String {
    format!("component-{lease}")
}

/// Returns the renewals after which a holder gives up at the latest.
fn longest_term(soak: &Soak) -> u64 {
    (soak.target() / LEAST_TERMS).clamp(1, MOST_RENEWALS)
}

/// Returns the time of the cluster's clock as text. The clock begins on the second of January, 2026.
fn time(seconds: u64) -> String {
    let (mut day, mut month) = (2 + seconds / 86_400, 1);
    for length in MONTHS {
        if day <= length {
            break;
        }
        day -= length;
        month += 1;
    }
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("2026-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.000000Z")
}

#[test]
fn the_clock_of_the_cluster_has_dates() {
    for (seconds, text) in [
        (0, "2026-01-02T00:00:00.000000Z"),
        (86_400 + 3600 + 60 + 2, "2026-01-03T01:01:02.000000Z"),
        (14 * 86_400, "2026-01-16T00:00:00.000000Z"),
        (30 * 86_400, "2026-02-01T00:00:00.000000Z"),
    ] {
        assert_eq!(time(seconds), text);
    }
}
