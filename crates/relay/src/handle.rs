//! The way to talk to a running relay.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portolan_model::{Change, Family};
use rustix::event::{EventfdFlags, eventfd};

use crate::destination::{Destinations, Translations};
use crate::listener::{self, Error};
use crate::options::{Counters, Options};
use crate::relay::Relay;

/// What a relay is told.
#[derive(Debug)]
pub(crate) enum Command {
    /// The table changed.
    Apply(Vec<Change>),
    /// Take nothing new in, and end when everything else has, or then.
    Drain(Instant),
    /// End now.
    Stop,
}

/// Talks to a relay, which ends with the last of its handles.
#[derive(Debug, Clone)]
pub struct Handle {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    sender: Sender<Command>,
    wake: Arc<OwnedFd>,
    counters: Arc<Counters>,
    thread: Mutex<Option<JoinHandle<()>>>,
    options: Options,
    over: Arc<AtomicBool>,
    captured_for: Arc<AtomicUsize>,
    predecessors: Mutex<Vec<Handle>>,
}

/// As long as it lives, traffic is captured for a relay.
#[derive(Debug)]
pub struct Capturing {
    count: Arc<AtomicUsize>,
}

impl Drop for Capturing {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Opens the listeners in the network namespace of this thread, and starts the relay's own. Nothing is known of Services
/// yet. What is captured must come [untouched](crate::Arrival::Untouched).
pub fn spawn(families: &[Family], options: Options) -> Result<Handle, Error> {
    spawn_with(families, options, None)
}

/// The same, with one who knows what translated datagrams were for.
pub fn spawn_with(
    families: &[Family],
    options: Options,
    translations: Option<Box<dyn Translations>>,
) -> Result<Handle, Error> {
    let listeners = listener::open(families, &options)?;
    let destinations = Destinations::new(options.arrival, translations);
    let start = |errno: rustix::io::Errno| Error::Start(errno.into());
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(start)?);
    let counters = Arc::new(Counters::default());
    let (sender, commands) = channel();
    let relay =
        Relay::new(listeners, options.clone(), destinations, counters.clone(), commands, wake.clone())
            .map_err(start)?;
    let over = Arc::new(AtomicBool::new(false));
    let run = {
        let (over, counters) = (over.clone(), counters.clone());
        move || {
            relay.run();
            counters.end();
            over.store(true, Ordering::Release);
        }
    };
    let thread = std::thread::Builder::new().name("relay".into()).spawn(run).map_err(Error::Start)?;
    let thread = Mutex::new(Some(thread));
    Ok(Handle {
        inner: Arc::new(Inner {
            sender,
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
    /// Hands changes over. Whatever is captured from here on meets them.
    pub fn apply(&self, changes: Vec<Change>) {
        let mut predecessors = self.inner.predecessors.lock().unwrap_or_else(PoisonError::into_inner);
        predecessors.retain(|relay| !relay.is_over());
        for relay in predecessors.iter() {
            relay.inner.send(Command::Apply(changes.clone()));
        }
        self.inner.send(Command::Apply(changes));
    }

    /// Names relays that share its listeners until they have ended: what is captured for this one may come to them, so that
    /// they hear of changes as well.
    pub fn follow(&self, predecessors: impl IntoIterator<Item = Self>) {
        self.inner.predecessors.lock().unwrap_or_else(PoisonError::into_inner).extend(predecessors);
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// The same, for longer than the relay.
    pub fn shared_counters(&self) -> Arc<Counters> {
        self.inner.counters.clone()
    }

    /// Whether the relay still works. It ends by itself only where the kernel does not let it wait for its sockets.
    pub fn is_running(&self) -> bool {
        let thread = self.inner.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Says that traffic is captured for the relay from now on.
    pub fn capturing(&self) -> Capturing {
        let count = self.inner.captured_for.clone();
        count.fetch_add(1, Ordering::AcqRel);
        Capturing { count }
    }

    /// Whether traffic is captured for it.
    pub fn is_captured_for(&self) -> bool {
        self.inner.captured_for.load(Ordering::Acquire) > 0
    }

    /// What it was started with.
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Whether it has ended, with every connection that it had.
    pub fn is_over(&self) -> bool {
        self.inner.over.load(Ordering::Acquire)
    }

    /// Closes the listeners, waits until every connection has ended, at most for `at_most`, and ends the relay.
    pub fn drain(&self, at_most: Duration) {
        self.inner.send(Command::Drain(Instant::now() + at_most));
        self.inner.join();
    }
}

impl Inner {
    /// A relay that has ended has no use for commands.
    fn send(&self, command: Command) {
        let _ = self.sender.send(command);
        // The counter of an eventfd is full only when the relay is about to read it anyway.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It logs by itself what went wrong.
            let _ = thread.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.send(Command::Stop);
        self.join();
    }
}
