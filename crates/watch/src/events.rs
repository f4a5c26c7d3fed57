//! Kubernetes Events, which an operator sees with `kubectl describe`.
//!
//! [`Recorder::event`] never waits. A [`Poster`] sends the recorded events as `events.k8s.io/v1` objects with
//! client-go's rules (`tools/events`): an event that repeats within six minutes is counted in a series instead of
//! posted again, and an event that cannot be delivered is tried twelve times.

mod note;
mod poster;
mod series;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tokio::sync::{Notify, watch};

pub use self::note::{EventNote, EventType, Regarding};
pub use self::poster::Poster;

/// Maximum number of queued events. If there are more, the oldest are dropped.
const QUEUE: usize = 256;

/// Records events. Cheap to clone, usable from any thread, never blocks.
#[derive(Debug, Clone)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<VecDeque<Happened>>,
    wake: Notify,
    /// Number of events that are queued or being posted.
    pending: watch::Sender<usize>,
    lost: AtomicU64,
    client: Mutex<Client>,
}

/// A wrapper, because `kube::Client` does not implement `Debug`.
struct Client(kube::Client);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

/// An event and the time at which it happened.
#[derive(Debug)]
struct Happened {
    note: EventNote,
    at: SystemTime,
}

impl Recorder {
    /// Creates a recorder and its poster, which has to run for events to be sent. The client must come from
    /// [`connect`](crate::connect), which enforces the maximum time for an answer. `host_name` is the system's; it
    /// becomes part of the events' `reportingInstance`.
    pub fn new(client: kube::Client, host_name: &str) -> (Self, Poster) {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: Notify::new(),
            pending: watch::Sender::new(0),
            lost: AtomicU64::new(0),
            client: Mutex::new(Client(client)),
        });
        (Self(Arc::clone(&shared)), Poster::new(host_name, shared))
    }

    /// Records an event with the current time.
    pub fn event(&self, note: EventNote) {
        let happened = Happened { note, at: SystemTime::now() };
        let mut queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() < QUEUE {
            self.0.pending.send_modify(|pending| *pending = pending.saturating_add(1));
        } else {
            queue.pop_front();
            self.0.lost.fetch_add(1, Ordering::Relaxed);
        }
        queue.push_back(happened);
        drop(queue);
        self.0.wake.notify_one();
    }

    /// Replaces the client for all further requests.
    pub fn use_client(&self, client: kube::Client) {
        *self.0.client.lock().unwrap_or_else(PoisonError::into_inner) = Client(client);
    }

    /// Returns the number of events that were not posted: dropped because of too many, refused, or given up.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// Waits until all recorded events have been posted or given up. A caller that is about to exit sets its own
    /// time limit.
    pub async fn flushed(&self) {
        // `wait_for` fails only without a sender, and `self` has it.
        let _ = self.0.pending.subscribe().wait_for(|pending| *pending == 0).await;
    }
}

impl Shared {
    fn client(&self) -> kube::Client {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    async fn next(&self) -> Happened {
        loop {
            let happened = self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            if let Some(happened) = happened {
                return happened;
            }
            self.wake.notified().await;
        }
    }

    fn done(&self) {
        self.pending.send_modify(|pending| *pending = pending.saturating_sub(1));
    }

    fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }
}
