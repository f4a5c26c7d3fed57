//! Measures how long a change takes, from the API server's response to the first connections that show it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use portolan_testkit::{Namespace, Probe, ProbeResult, TestkitError};

/// Concurrent connections. Enough that each of three backends is most likely among them.
const AT_ONCE: usize = 8;
/// First timeout of a connection before its Service is programmed. Later attempts use a quarter of the elapsed time
/// if that is longer, because a busy machine needs more.
const FIRST_TIMEOUT: Duration = Duration::from_millis(2);
/// Most of it is reserve for a busy machine: the wait ends when the change shows.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);
/// A backend without a connection for this long is unused.
const QUIET: Duration = Duration::from_millis(300);

/// The connections during a change of an object.
pub(super) struct Observed {
    /// From the API server's response until connections showed the change.
    pub(super) delay: Duration,
    pub(super) connections: usize,
    /// Descriptions of the connections that failed.
    pub(super) failures: Vec<String>,
}

/// Changes an object and returns when the API server responded.
pub(super) type Change<'a> = &'a mut dyn FnMut() -> anyhow::Result<Instant>;

/// A batch of concurrent connections.
struct Round {
    ended: Instant,
    backends: BTreeSet<IpAddr>,
    failures: Vec<String>,
}

/// Retries until a first connection succeeds.
pub(super) fn until_reached(namespace: &Namespace, probe: Probe, since: Instant) -> anyhow::Result<Duration> {
    loop {
        let timeout = FIRST_TIMEOUT.max(since.elapsed() / 4);
        if let ProbeResult::Reached(_) = namespace.probe(probe.timeout(timeout))? {
            return Ok(since.elapsed());
        }
        if since.elapsed() > SHOWN_WITHIN {
            bail!("{} was not reached within {SHOWN_WITHIN:?}", probe.destination);
        }
    }
}

/// Makes connections continuously, applies `change`, and goes on until `backend` has its first connection.
pub(super) fn until_used(
    namespace: &Namespace,
    probe: Probe,
    backend: IpAddr,
    change: Change<'_>,
) -> anyhow::Result<Observed> {
    let (rounds, since) = observe(namespace, probe, change, |rounds, _| {
        rounds.last().is_some_and(|round| round.backends.contains(&backend))
    })?;
    let first = rounds.iter().find(|round| round.backends.contains(&backend));
    let first = first.with_context(|| format!("{backend} got no connection within {SHOWN_WITHIN:?}"))?;
    Ok(Observed::new(&rounds, first.ended.saturating_duration_since(since)))
}

/// Makes connections continuously, applies `change`, and goes on until no connection reaches `backend` any more.
pub(super) fn until_avoided(
    namespace: &Namespace,
    probe: Probe,
    backend: IpAddr,
    change: Change<'_>,
) -> anyhow::Result<Observed> {
    let last_use = |rounds: &[Round]| {
        rounds.iter().rev().find(|round| round.backends.contains(&backend)).map(|round| round.ended)
    };
    let (rounds, since) = observe(namespace, probe, change, |rounds, since| {
        since.max(last_use(rounds).unwrap_or(since)).elapsed() > QUIET
    })?;
    let last = last_use(&rounds).with_context(|| format!("{backend} got no connection before"))?;
    if last.elapsed() < QUIET {
        bail!("{backend} still got connections after {SHOWN_WITHIN:?}");
    }
    Ok(Observed::new(&rounds, last.saturating_duration_since(since)))
}

impl Observed {
    fn new(rounds: &[Round], delay: Duration) -> Self {
        let failures = rounds.iter().flat_map(|round| round.failures.iter().cloned()).collect();
        Self { delay, connections: rounds.len() * AT_ONCE, failures }
    }
}

/// Runs rounds from before the change until `enough` returns true or the deadline. Returns the rounds and when the
/// API server responded to the change.
fn observe(
    namespace: &Namespace,
    probe: Probe,
    change: Change<'_>,
    enough: impl Fn(&[Round], Instant) -> bool + Sync,
) -> anyhow::Result<(Vec<Round>, Instant)> {
    let (started, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let changed = std::sync::OnceLock::new();
    thread::scope(|scope| {
        let rounds = scope.spawn(|| {
            let mut rounds = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                rounds.push(round(namespace, probe)?);
                // The first rounds show the state before the change.
                started.store(rounds.len() > 5, Ordering::Relaxed);
                let done = |since: &Instant| since.elapsed() > SHOWN_WITHIN || enough(&rounds, *since);
                if changed.get().is_some_and(done) {
                    break;
                }
            }
            Ok::<_, TestkitError>(rounds)
        });
        while !started.load(Ordering::Relaxed) && !rounds.is_finished() {
            thread::sleep(Duration::from_micros(200));
        }
        let answered = change();
        match &answered {
            Ok(answered) => drop(changed.set(*answered)),
            Err(_) => stop.store(true, Ordering::Relaxed),
        }
        let rounds = rounds.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok((rounds, answered?))
    })
}

fn round(namespace: &Namespace, probe: Probe) -> Result<Round, TestkitError> {
    let results = namespace.probe_many(&[probe; AT_ONCE])?;
    let failed = results.iter().filter(|result| result.backend().is_none());
    let failures = failed.map(|result| format!("a connection failed: {result:?}")).collect();
    let backends = results.iter().filter_map(ProbeResult::backend).map(|backend| backend.ip()).collect();
    Ok(Round { ended: Instant::now(), backends, failures })
}
