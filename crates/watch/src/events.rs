//! Events: what an operator should see with `kubectl describe`.
//!
//! [`Recorder::event`] never waits; a [`Poster`] sends what it was given, as `events.k8s.io/v1` objects, with
//! upstream's ways (client-go, `tools/events`): an event that comes again within six minutes is counted in a
//! series and not posted anew, and an API server that cannot be reached is tried twelve times.

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

/// Events that may wait; of more the oldest are dropped.
const QUEUE: usize = 256;

/// Takes events. Cheap to clone, usable from any thread, never blocks.
#[derive(Debug, Clone)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<VecDeque<Happened>>,
    wake: Notify,
    /// Events that wait or are being posted.
    pending: watch::Sender<usize>,
    lost: AtomicU64,
    client: Mutex<Client>,
}

/// `kube::Client` does not say what it is.
struct Client(kube::Client);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

/// An event and its time.
#[derive(Debug)]
struct Happened {
    note: EventNote,
    at: SystemTime,
}

impl Recorder {
    /// A recorder and the other end, which has to run for anything to be sent. The client is to come from
    /// [`connect`](crate::connect), which keeps to the time that an answer may take. `host_name` is the system's: it
    /// makes the events' `reportingInstance`.
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

    /// Records an event that happens now.
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

    /// Another way to the API server from now on.
    pub fn use_client(&self, client: kube::Client) {
        *self.0.client.lock().unwrap_or_else(PoisonError::into_inner) = Client(client);
    }

    /// Events that were not posted: too many at once, refused, or given up.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// Returns when nothing waits to be posted any more. To be bounded in time by the caller, who is about to
    /// exit.
    pub async fn flushed(&self) {
        // The sender is part of `self`: this cannot fail.
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
