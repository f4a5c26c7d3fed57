//! The nodes: the agent's own list-and-watch state machine many times in one thread, each with a client of its own.
//!
//! What each node hears goes in. When which node heard of the marker, and when requests were answered, come out. The nodes
//! start with the versions of a list that was read once: a list of each would be the same bytes thousands of times.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context as _, ensure};
use portolan_model::object::Kind;
use portolan_testkit::{Namespace, TestkitError};
use portolan_watch::{ClientSettings, Counts, RequestDone, WatchEvent, Watcher};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use super::marker::Heard;
use crate::statistics::Sample;

/// The collections that a node follows.
pub(super) const KINDS: [Kind; 4] = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];

/// All nodes. They end when dropped.
#[derive(Debug)]
pub(super) struct Fleet {
    seen: Arc<Seen>,
    counts: Vec<Arc<Counts>>,
    nodes: usize,
    thread: i32,
    /// Ends the thread when dropped.
    end: Option<oneshot::Sender<()>>,
    handle: Option<thread::JoinHandle<Result<(), TestkitError>>>,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(handle) = self.handle.take() {
            // A panic of the thread has been printed.
            let _ = handle.join();
        }
    }
}

/// What the nodes have reported.
#[derive(Debug, Default)]
struct Seen {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The change that is waited for, and whether its Service counts, too.
    change: u16,
    both: bool,
    /// When each node heard of it.
    heard: Vec<Instant>,
    /// When each request was answered.
    requests: Vec<Instant>,
    /// Number of requests without an answer. Most are connections that are refused while the server is away.
    unanswered: u64,
}

impl State {
    fn count(&mut self, request: &RequestDone) {
        if request.code.is_some() {
            self.requests.push(Instant::now());
        } else {
            self.unanswered = self.unanswered.saturating_add(1);
        }
    }
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fleet {
    /// Starts `nodes` nodes in the namespace of the server, with these settings in turn. Each watches from these versions on.
    pub(super) fn start(
        namespace: &Namespace,
        nodes: usize,
        settings: Vec<ClientSettings>,
        versions: &[(Kind, Box<str>)],
    ) -> anyhow::Result<Self> {
        let seen = Arc::<Seen>::default();
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        let counted = |settings: ClientSettings| {
            let seen = Arc::clone(&seen);
            let count = move |request: &RequestDone| seen.lock().count(request);
            ClientSettings { on_request: Some(Arc::new(count)), ..settings }
        };
        let settings: Vec<ClientSettings> = settings.into_iter().map(counted).collect();
        let (reports, versions) = (Arc::clone(&seen), versions.to_vec());
        let (end, ended) = oneshot::channel::<()>();
        let handle = namespace.spawn_thread("nodes", move || {
            let started = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(anyhow::Error::from)
                .and_then(|runtime| {
                    let local = LocalSet::new();
                    let counts =
                        runtime.block_on(start_all(&local, nodes, &settings, &versions, &reports))?;
                    Ok((runtime, local, counts))
                });
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            match started {
                Ok((runtime, local, counts)) => {
                    if send.send(Ok((counts, thread))).is_ok() {
                        // An error means that the other half was dropped.
                        let _ = runtime.block_on(local.run_until(ended));
                    }
                }
                Err(error) => drop(send.send(Err(error))),
            }
        })?;
        let (counts, thread) = receive.recv().context("the thread of the nodes has ended")??;
        Ok(Self { seen, counts, nodes, thread, end: Some(end), handle: Some(handle) })
    }

    /// Sets the change of the marker that is waited for: that of the EndpointSlice, and if `both`, that of the Service, too.
    pub(super) fn expect(&self, change: u16, both: bool) {
        let mut state = self.seen.lock();
        (state.change, state.both) = (change, both);
        state.heard.clear();
    }

    /// Waits until all nodes have heard of the change. Returns the time from `since` for each.
    pub(super) fn all_hear(&self, since: Instant, within: Duration) -> anyhow::Result<Sample> {
        let deadline = Instant::now() + within;
        let mut state = self.seen.lock();
        while state.heard.len() < self.nodes {
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(
                !left.is_zero(),
                "only {} of {} nodes heard of a change within {within:?}",
                state.heard.len(),
                self.nodes
            );
            state = self.seen.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state.heard.iter().map(|at| at.saturating_duration_since(since)).collect())
    }

    /// Returns how many requests had no answer.
    pub(super) fn unanswered(&self) -> u64 {
        self.seen.lock().unanswered
    }

    /// Returns the times of the answered requests from `since` on.
    pub(super) fn requests(&self, since: Instant) -> Vec<Instant> {
        self.seen.lock().requests.iter().copied().filter(|at| *at >= since).collect()
    }

    /// Returns how many lists the nodes have begun.
    pub(super) fn lists(&self) -> u64 {
        let of = |counts: &Counts| {
            KINDS.map(|kind| counts.of(kind).lists.load(Ordering::Relaxed)).iter().sum::<u64>()
        };
        self.counts.iter().map(|counts| of(counts)).sum()
    }

    /// Returns the processor time of the nodes together.
    pub(super) fn processor_time(&self) -> anyhow::Result<Duration> {
        let path = format!("/proc/self/task/{}/schedstat", self.thread);
        let text = fs::read_to_string(&path).context(path)?;
        let nanoseconds = text.split_whitespace().next().and_then(|number| number.parse().ok());
        Ok(Duration::from_nanos(nanoseconds.context("no number")?))
    }

    /// Waits until the nodes send no request for `quiet`.
    pub(super) fn settle(&self, quiet: Duration, within: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + within;
        loop {
            let last = self.seen.lock().requests.last().copied();
            let silent = last.map_or(Duration::ZERO, |at| at.elapsed());
            if silent >= quiet {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the nodes still send requests after {within:?}");
            thread::sleep(quiet.saturating_sub(silent));
        }
    }
}

/// Starts all nodes. Each has a client of its own.
async fn start_all(
    local: &LocalSet,
    nodes: usize,
    settings: &[ClientSettings],
    versions: &[(Kind, Box<str>)],
    reports: &Arc<Seen>,
) -> anyhow::Result<Vec<Arc<Counts>>> {
    let mut counts = Vec::with_capacity(nodes);
    for (number, settings) in settings.iter().cycle().take(nodes).enumerate() {
        let client = portolan_watch::connect(settings).await?;
        let watcher = Watcher::new(client, &name(number)).in_protobuf(true).resuming(versions.to_vec());
        counts.push(watcher.counts());
        let (reports, node) = (Arc::clone(reports), Node::default());
        local.spawn_local(watcher.run(move |event| node.hear(&reports, event)));
    }
    Ok(counts)
}

/// What one node has heard.
#[derive(Debug, Default)]
struct Node {
    heard: Cell<Heard>,
    /// The last change that it reported.
    reported: Cell<Option<u16>>,
}

impl Node {
    /// Reports that the node heard of the change that is waited for, once for each change.
    fn hear(&self, seen: &Seen, event: WatchEvent) {
        let WatchEvent::Objects(events) = event else { return };
        let mut heard = self.heard.get();
        for event in &events {
            heard.record(event);
        }
        if self.heard.replace(heard) == heard {
            return;
        }
        let mut state = seen.lock();
        if heard.is_of(state.change, state.both)
            && self.reported.replace(Some(state.change)) != Some(state.change)
        {
            state.heard.push(Instant::now());
            seen.changed.notify_all();
        }
    }
}

fn name(number: usize) -> String {
    format!("node-{number:04}")
}
