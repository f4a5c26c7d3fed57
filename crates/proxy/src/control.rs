//! What the running agent answers on its control socket, and below `/debug/portolan/` on the metrics port.
//!
//! - `routes`: the table of paths
//! - `state`, `services`, `snapshot`: the documents, made from what the agent and the engine know
//! - `page`: the web page that shows the documents
//! - `service_metrics`: what the kernel has counted of single Services, as metrics
//! - `rates`: new connections of Services per second, from two readings of these counters
//! - `explain`: the answer about one packet, for which the kernel is read, too
//! - `socket`: the control socket
//!
//! ```text
//!  request ──routes──> Control::ask ──question──> agent, on its own thread ──Facts─┐
//!                      Control::ask_engine ──> engine, after its current commit ───┴──> document, on a thread for blocking work
//! ```
//!
//! What is taken from the engine's tables is selected on the engine's thread, in bounded time. No table is kept: the engine's
//! next change would copy it as a whole.
//!
//! A request about a packet waits at most [`ENGINE_WAIT`] for the engine, others [`SHORT_ENGINE_WAIT`]. It waits for the agent
//! until its present step ends. Only [`AT_ONCE`] are answered at the same time: what is in a document is bounded, and so is the work for documents. Only one answer about a
//! packet at a time reads the kernel, and only one with counters, which waits after that. Answers have no secrets. Only the one about a packet has addresses of clients, those of connections of
//! its flow, and the metrics port does not serve it.

mod explain;
mod page;
mod rates;
pub(crate) mod routes;
mod service_metrics;
mod services;
mod snapshot;
pub(crate) mod socket;
mod state;
#[cfg(test)]
mod testing;

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portolan_engine::{FamilySnapshot, Handle};
use portolan_node::health::{Health, Now};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::agent::Agent;
use crate::modes::RelayCounters;
use state::Lane;

/// How many requests are answered at the same time. More are refused.
const AT_ONCE: usize = 8;
/// How long an answer about a packet waits for the engine, which may be in a commit.
const ENGINE_WAIT: Duration = Duration::from_secs(10);
/// The same for other answers, which the live view and the web page ask for again and again.
const SHORT_ENGINE_WAIT: Duration = Duration::from_secs(2);

/// The place of one answer among [`AT_ONCE`]. It is free again when this is dropped.
struct RequestPermit(#[expect(dead_code, reason = "only its drop matters")] OwnedSemaphorePermit);

/// A question to the agent. It runs on the thread of the watches and must be short.
type Question = Box<dyn FnOnce(&Agent) + Send>;
/// The questions that wait for the agent.
pub(crate) type Questions = mpsc::Receiver<Question>;

/// What answers need. Requests share it.
pub(crate) struct Control {
    questions: mpsc::Sender<Question>,
    at_once: Arc<Semaphore>,
    /// The turn of the answer that reads the kernel.
    reading: Arc<Semaphore>,
    /// What the kernel has counted, shared by requests.
    counts: Arc<services::counters::Shared>,
    /// The reading from which the next rates are measured.
    rates: rates::Last,
    /// One place: a snapshot takes as much memory as the objects.
    one_snapshot: Arc<Semaphore>,
    version: String,
    started: Now,
    health: Arc<Health>,
    relays: RelayCounters,
    /// What the engine answered last, for documents that are made during a long commit.
    last: Mutex<Vec<Lane>>,
}

impl Control {
    /// Creates it. The agent answers the questions ([`answering`]). `version` is the one that the agent reports.
    pub(crate) fn new(version: String, health: Arc<Health>, relays: RelayCounters) -> (Arc<Self>, Questions) {
        let (questions, receiver) = mpsc::channel(AT_ONCE);
        let control = Self {
            questions,
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
            reading: Arc::new(Semaphore::new(1)),
            counts: services::counters::Shared::new(),
            rates: rates::Last::default(),
            one_snapshot: Arc::new(Semaphore::new(1)),
            version,
            started: Now::read(),
            health,
            relays,
            last: Mutex::default(),
        };
        (Arc::new(control), receiver)
    }

    /// Takes a place for one answer. `None` if too many requests are being answered.
    fn place(&self) -> Option<RequestPermit> {
        Arc::clone(&self.at_once).try_acquire_owned().ok().map(RequestPermit)
    }

    /// Asks the agent. The question must be short. `None` while the process ends.
    async fn ask<T: Send + 'static>(&self, question: impl FnOnce(&Agent) -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        // The inner send fails if the client has gone.
        let question: Question = Box::new(move |agent| drop(sender.send(question(agent))));
        self.questions.send(question).await.ok()?;
        receiver.await.ok()
    }

    /// Asks the agent from a thread for blocking work. The question must be short. `None` while the process ends.
    fn ask_and_wait<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Agent) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        let question: Question = Box::new(move |agent| drop(sender.send(question(agent))));
        self.questions.blocking_send(question).ok()?;
        receiver.blocking_recv().ok()
    }

    /// Asks the engine. The question runs on the engine's thread: it must be short. `None` if there is no answer within `wait`.
    async fn ask_engine<T: Send + 'static>(
        engine: &Handle,
        wait: Duration,
        question: impl FnOnce(Vec<FamilySnapshot>) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        // The send fails if the time is over.
        engine.snapshot(move |snapshots| drop(sender.send(question(snapshots))));
        tokio::time::timeout(wait, receiver).await.ok()?.ok()
    }

    /// Returns a time as seconds since the start of the agent.
    fn seconds(&self, at: Now) -> f64 {
        at.monotonic.saturating_duration_since(self.started.monotonic).as_secs_f64()
    }

    fn remember(&self, lanes: &[Lane]) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = lanes.to_vec();
    }

    fn last(&self) -> Vec<Lane> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Lets the agent answer the questions.
pub(crate) async fn answering(agent: &Rc<RefCell<Agent>>, mut questions: Questions) -> Infallible {
    while let Some(question) = questions.recv().await {
        question(&agent.borrow());
    }
    std::future::pending().await
}
