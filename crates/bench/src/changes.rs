//! Changes, seen from outside: from the write in the API server to the first connection that works.
//!
//! The clock starts before the write, not at its answer: the watch may be told before the writer is, and then
//! the order in which two threads get a processor would decide what is measured.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::proxy::Proxy;
use crate::stage::{self, Stage};
use crate::statistics::Sample;
use crate::workload::Size;

/// How long any change may take.
const CHANGE_WITHIN: Duration = Duration::from_secs(30);
/// Between two attempts to connect: leaves the processor to the others.
const PAUSE: Duration = Duration::from_micros(20);
/// Before each change: what the one before left to do is done, and every thread waits.
const SHORT_PAUSE: Duration = Duration::from_millis(20);
/// Longer than the default minSyncPeriod of a second.
const LONG_PAUSE: Duration = Duration::from_millis(1_200);

/// Times single changes, one after the other: a Service whose only endpoint was at a pod that refuses
/// connections gets one that accepts them.
pub(crate) fn single(stage: &Stage, count: usize) -> anyhow::Result<Sample> {
    in_client(stage, || (0..count).map(|_| one(stage, SHORT_PAUSE)).collect())
}

/// The same with a pause before each that is longer than the default minSyncPeriod.
pub(crate) fn after_pauses(stage: &Stage, count: usize) -> anyhow::Result<Sample> {
    in_client(stage, || (0..count).map(|_| one(stage, LONG_PAUSE)).collect())
}

/// What a burst cost.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Burst {
    /// Processor time of the proxy.
    pub(crate) processor: Duration,
    /// From the first write to the last change in effect.
    pub(crate) duration: Duration,
}

/// Sends endpoint changes as quickly as the API server takes them, the moving Service's last.
pub(crate) fn burst(
    stage: &Stage,
    proxy: &Proxy,
    size: Size,
    first: usize,
    count: usize,
) -> anyhow::Result<Burst> {
    in_client(stage, || {
        settle(stage)?;
        let changes: Vec<_> = (first..first.saturating_add(count)).map(|round| size.change(round)).collect();
        let (before, started) = (proxy.processor_time()?, Instant::now());
        changes.into_iter().try_for_each(|change| stage.apply(change))?;
        stage.apply(stage.moving(true))?;
        until(stage, true)?;
        let duration = started.elapsed();
        // What follows a commit (metrics, the release of memory) is part of its cost.
        thread::sleep(LONG_PAUSE);
        Ok(Burst { processor: proxy.processor_time()?.saturating_sub(before), duration })
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

/// Lets the moving Service's endpoint be at the pod that refuses.
fn settle(stage: &Stage) -> anyhow::Result<()> {
    stage.apply(stage.moving(false))?;
    until(stage, false)
}

/// Connects until it works, or until it does not.
fn until(stage: &Stage, works: bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + CHANGE_WITHIN;
    while connects(stage)? != works {
        ensure!(Instant::now() < deadline, "a change had no effect within {CHANGE_WITHIN:?}");
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Whether the moving Service's endpoint accepts a connection, or refuses it.
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
