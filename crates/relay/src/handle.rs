//! The handle of a running relay.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portolan_model::{Change, Family};
use rustix::event::{EventfdFlags, eventfd};

use crate::commands::{Commands, SnapshotRequest};
use crate::destination::{Destinations, Translations};
use crate::listener::{self, Error};
use crate::options::{Counters, RelayOptions};
use crate::relay::Relay;
use crate::table::Relayed;

/// How many requests for a snapshot wait at most. A further one replaces the oldest.
const SNAPSHOTS_MAX: usize = 16;

/// A handle of a relay. The relay ends when its last handle is dropped.
#[derive(Debug, Clone)]
pub struct Handle {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    commands: Arc<Mutex<Commands>>,
    wake: Arc<OwnedFd>,
    counters: Arc<Counters>,
    thread: Mutex<Option<JoinHandle<()>>>,
    options: RelayOptions,
    over: Arc<AtomicBool>,
    captured_for: Arc<AtomicUsize>,
    predecessors: Mutex<Vec<Handle>>,
}

/// Marks a relay as one that traffic is captured for, until it is dropped.
#[derive(Debug)]
pub struct Capturing {
    count: Arc<AtomicUsize>,
}

/// Marks the relay as ended when its thread ends, also by a panic.
struct End {
    over: Arc<AtomicBool>,
    counters: Arc<Counters>,
    commands: Arc<Mutex<Commands>>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.counters.end();
        self.over.store(true, Ordering::Release);
        // A request that is put after this finds that the relay is over.
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).snapshots.clear();
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Opens the listeners in the network namespace of this thread, and starts the relay's thread. The table of a
/// family is empty until the first [`Handle::apply`] of it; what arrives before waits. Packets must be captured by
/// `tproxy`.
pub fn spawn(families: &[Family], options: RelayOptions) -> Result<Handle, Error> {
    spawn_with(families, options, None)
}

/// Like [`spawn`], for any way to capture, with a lookup of the destinations of translated datagrams.
pub fn spawn_with(
    families: &[Family],
    options: RelayOptions,
    translations: Option<Box<dyn Translations>>,
) -> Result<Handle, Error> {
    let listeners = listener::open(families, &options)?;
    let destinations = Destinations::new(options.capture, translations);
    let start = |errno: rustix::io::Errno| Error::Start(errno.into());
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(start)?);
    let counters = Arc::new(Counters::default());
    let commands = Arc::<Mutex<Commands>>::default();
    let relay = Relay::new(
        listeners,
        options.clone(),
        destinations,
        counters.clone(),
        commands.clone(),
        wake.clone(),
    )
    .map_err(start)?;
    let over = Arc::new(AtomicBool::new(false));
    let run = {
        let end = End { over: over.clone(), counters: counters.clone(), commands: commands.clone() };
        move || {
            relay.run();
            drop(end);
        }
    };
    let thread = std::thread::Builder::new().name("relay".into()).spawn(run).map_err(Error::Start)?;
    let thread = Mutex::new(Some(thread));
    Ok(Handle {
        inner: Arc::new(Inner {
            commands,
            wake,
            counters,
            thread,
            options,
            over,
            captured_for: Arc::default(),
            predecessors: Mutex::default(),
        }),
    })
}

impl Handle {
    /// Sends changes to the relay. Connections that are captured after this call are handled by them. With the first call
    /// for a family, which may have no changes, the relay begins to accept in that family: it may share its listeners with a relay that drains, so
    /// connections and datagrams of that one's Services may have arrived already.
    pub fn apply(&self, family: Family, changes: Vec<Change>) {
        let mut predecessors = self.inner.predecessors.lock().unwrap_or_else(PoisonError::into_inner);
        predecessors.retain(|relay| !relay.is_over());
        for relay in predecessors.iter() {
            relay.inner.apply(family, changes.iter().cloned());
        }
        self.inner.apply(family, changes);
    }

    /// Adds relays that share this relay's listeners until they have ended. They may receive connections that are
    /// captured for this relay, so changes are sent to them as well.
    pub fn follow(&self, predecessors: impl IntoIterator<Item = Self>) {
        self.inner.predecessors.lock().unwrap_or_else(PoisonError::into_inner).extend(predecessors);
    }

    /// Returns the Service ports of a family that the relay has, in any order, with all changes applied that were sent
    /// before. Waits for the relay's thread, which does not wait for anything. `None` if the relay has ended, or if too
    /// many others ask at the same time.
    pub fn snapshot(&self, family: Family) -> Option<Vec<Relayed>> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.inner.command(|commands| {
            if !self.is_over() {
                if commands.snapshots.len() >= SNAPSHOTS_MAX {
                    commands.snapshots.pop_front();
                }
                commands.snapshots.push_back(SnapshotRequest { family, reply });
            }
        });
        answer.recv().ok()
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// Returns the counters, for use after the relay has ended.
    pub fn shared_counters(&self) -> Arc<Counters> {
        self.inner.counters.clone()
    }

    /// Returns true if the relay's thread runs. Without a command it ends only if the kernel does not let it wait for its
    /// sockets.
    pub fn is_running(&self) -> bool {
        let thread = self.inner.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Marks the relay as one that traffic is captured for, until the returned value is dropped.
    pub fn capturing(&self) -> Capturing {
        let count = self.inner.captured_for.clone();
        count.fetch_add(1, Ordering::AcqRel);
        Capturing { count }
    }

    /// Returns true if traffic is captured for the relay.
    pub fn is_captured_for(&self) -> bool {
        self.inner.captured_for.load(Ordering::Acquire) > 0
    }

    /// Returns the options that the relay was started with.
    pub fn options(&self) -> &RelayOptions {
        &self.inner.options
    }

    /// Returns true if the relay has ended, with all of its connections.
    pub fn is_over(&self) -> bool {
        self.inner.over.load(Ordering::Acquire)
    }

    /// Closes the listeners after a second, in which it still accepts connections, waits until every connection has ended
    /// and late answers to datagrams have had their time, at most for `at_most`, and ends the relay.
    pub fn drain(&self, at_most: Duration) {
        self.inner.command(|commands| commands.drain = Some(Instant::now() + at_most));
        self.inner.join();
    }
}

impl Inner {
    fn apply(&self, family: Family, changes: impl IntoIterator<Item = Change>) {
        self.command(|commands| {
            *commands.has_table.get_mut(family) = true;
            commands.changes.get_mut(family).extend(changes);
        });
    }

    /// Adds to the commands. A relay that has ended ignores them.
    fn command(&self, merge: impl FnOnce(&mut Commands)) {
        merge(&mut self.commands.lock().unwrap_or_else(PoisonError::into_inner));
        // The write fails only if the eventfd's counter is full, and then the relay is about to read it.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the thread has been logged already.
            let _ = thread.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.command(|commands| commands.stop = true);
        self.join();
    }
}
