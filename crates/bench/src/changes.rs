//! Measures changes from outside: from the write in the API server to the first connection that succeeds.
//!
//! The clock starts before the write, not at its response: the watch may deliver the change before the writer gets its
//! response, and then the result would depend on the order in which two threads are scheduled.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::proxy::Proxy;
use crate::stage::{self, Stage};
use crate::statistics::Sample;
use crate::workload::Size;

/// Maximum time of a change.
const CHANGE_WITHIN: Duration = Duration::from_secs(120);
/// Pause between two attempts to connect, which leaves the processor to other threads.
const PAUSE: Duration = Duration::from_micros(20);
/// The same for [`at_once`]. The change takes a thousand times as long, and needs both processors.
const MEDIUM_PAUSE: Duration = Duration::from_millis(1);
/// Pause before each change. The work of the previous change is done by then, and every thread waits.
const SHORT_PAUSE: Duration = Duration::from_millis(20);
/// Timeout of a connection while there may be no rules yet. Its packets are lost then, and their repetition is slow.
const ATTEMPT: Duration = Duration::from_millis(5);
/// Longer than the default minSyncPeriod of a second.
const LONG_PAUSE: Duration = Duration::from_millis(1_200);

/// Measures single changes, one after the other. A Service's only endpoint moves from a pod that refuses connections to
/// one that accepts them.
pub(crate) fn single(stage: &Stage, count: usize) -> anyhow::Result<Sample> {
    in_client(stage, || (0..count).map(|_| one(stage, SHORT_PAUSE)).collect())
}

/// Measures single changes, each after a pause that is longer than the default minSyncPeriod.
pub(crate) fn after_pauses(stage: &Stage, count: usize) -> anyhow::Result<Sample> {
    in_client(stage, || (0..count).map(|_| one(stage, LONG_PAUSE)).collect())
}

/// The cost of a burst.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Burst {
    /// Processor time of the proxy.
    pub(crate) processor: Duration,
    /// Time from the first write until the last change is effective.
    pub(crate) duration: Duration,
}

/// Tries once to connect to the moving Service. Returns the time at which its endpoint accepted the connection.
pub(crate) fn first_connection(stage: &Stage) -> anyhow::Result<Option<Instant>> {
    let accepted = in_client(stage, || {
        let Ok(stream) = TcpStream::connect_timeout(&stage::MOVING_VIP, ATTEMPT) else { return Ok(None) };
        let at = Instant::now();
        stage::close(&stream)?;
        Ok(Some(at))
    })?;
    if accepted.is_none() {
        thread::sleep(PAUSE);
    }
    stage.near.drain();
    Ok(accepted)
}

/// Writes endpoint changes as fast as the API server accepts them, with the moving Service's change last.
/// `processor_time` returns the processor time that the proxy has used.
pub(crate) fn burst(
    stage: &Stage,
    processor_time: &(impl Fn() -> anyhow::Result<Duration> + Sync),
    size: Size,
    first: usize,
    count: usize,
) -> anyhow::Result<Burst> {
    in_client(stage, || {
        settle(stage)?;
        let changes: Vec<_> = (first..first.saturating_add(count)).map(|round| size.change(round)).collect();
        let (before, started) = (processor_time()?, Instant::now());
        changes.into_iter().try_for_each(|change| stage.apply(change))?;
        stage.apply(stage.moving(true))?;
        until(stage, true)?;
        let duration = started.elapsed();
        // Work after a commit (metrics, the release of memory) is part of its cost.
        thread::sleep(LONG_PAUSE);
        Ok(Burst { processor: processor_time()?.saturating_sub(before), duration })
    })
}

/// Writes `count` endpoint changes while the proxy is stopped, with the moving Service's change last. Returns the time from
/// when the proxy goes on until the last change is effective. So all changes come at once, as in a rolling update of everything.
pub(crate) fn at_once(
    stage: &Stage,
    proxy: &Proxy,
    size: Size,
    first: usize,
    count: usize,
) -> anyhow::Result<Duration> {
    in_client(stage, || {
        settle(stage)?;
        let changes: Vec<_> = (first..first.saturating_add(count)).map(|round| size.change(round)).collect();
        proxy.pause()?;
        changes.into_iter().try_for_each(|change| stage.apply(change))?;
        stage.apply(stage.moving(true))?;
        let started = Instant::now();
        proxy.go_on()?;
        until_after(stage, true, MEDIUM_PAUSE)?;
        Ok(started.elapsed())
    })
}

fn one(stage: &Stage, pause: Duration) -> anyhow::Result<Duration> {
    settle(stage)?;
    thread::sleep(pause);
    let change = stage.moving(true);
    let sent = Instant::now();
    stage.apply(change)?;
    until(stage, true)?;
    Ok(sent.elapsed())
}

/// Moves the moving Service's endpoint to the pod that refuses connections, and waits until they are refused.
fn settle(stage: &Stage) -> anyhow::Result<()> {
    stage.apply(stage.moving(false))?;
    until(stage, false)
}

/// Connects until a connection succeeds, or until one is refused.
fn until(stage: &Stage, works: bool) -> anyhow::Result<()> {
    until_after(stage, works, PAUSE)
}

/// Does the same with this pause between two attempts.
fn until_after(stage: &Stage, works: bool, pause: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + CHANGE_WITHIN;
    while connects(stage)? != works {
        ensure!(Instant::now() < deadline, "a change had no effect within {CHANGE_WITHIN:?}");
        thread::sleep(pause);
    }
    Ok(())
}

/// Returns true if the moving Service's endpoint accepts a connection, false if it refuses.
fn connects(stage: &Stage) -> anyhow::Result<bool> {
    match TcpStream::connect(stage::MOVING_VIP) {
        Ok(stream) => {
            stage::close(&stream)?;
            stage.near.drain();
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(false),
        Err(error) => Err(error).context("connect through the VIP"),
    }
}

fn in_client<T: Send>(stage: &Stage, work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    stage.client().context("the client pod")?.run(work)?
}
