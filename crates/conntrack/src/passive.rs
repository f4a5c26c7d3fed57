//! Passive health checks: endpoints whose TCP connections fail at connect are set aside for a while.
//!
//! conntrack notifies of each flow that begins and ends. A flow that a reset ends before any answer was refused. A flow that has
//! no answer after [`ANSWER_WITHIN`] failed, too; the kernel is asked for that, for at most [`FOLLOWED`] flows of an endpoint at a
//! time. [`Judge`] decides, [`PassiveThread`] reads and asks.
//!
//! An endpoint is set aside after [`FAILURES`] failures in a row. Each further time the pause is twice as long. After its pause an
//! endpoint is on trial: the first failure sets it aside again, and the first answer ends the trial.

mod thread;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portolan_model::Protocol;
use portolan_wire::conntrack::{Flow, Tuple, status, tcp_state};

pub use thread::{PassiveError, PassiveThread};

/// A flow without an answer for this long has failed. By then a client has sent SYN three times.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// How many failures in a row set an endpoint aside.
pub const FAILURES: usize = 3;
/// Failures that are older do not count.
const REMEMBERED: Duration = Duration::from_secs(60);
/// The first pause.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// The longest pause. An endpoint without a connection for this long after a pause is not on trial any more.
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);
/// How many flows of one endpoint are followed at a time.
pub const FOLLOWED: u8 = 3;
/// How many flows are followed at a time.
const FOLLOWED_MAX: usize = 16_384;

/// How connections to an endpoint fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Failure {
    /// The endpoint's host answers with a reset.
    Refused,
    /// Nothing answers.
    NoAnswer,
}

/// An endpoint that is set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetAside {
    /// How its last connection failed.
    pub failure: Failure,
    /// For how long it is set aside.
    pub pause: Duration,
}

/// A flow whose answer is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Followed {
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// The direction of the answers.
    pub reply: Tuple,
    /// The kernel's id.
    pub id: Option<u32>,
    begun: Instant,
}

/// What the kernel says of a followed flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// The endpoint has answered.
    Answer,
    /// It has not.
    NoAnswer,
    /// The flow has ended, so nothing is known.
    Nothing,
}

/// What is known of the endpoints. Pure: the time is an argument.
#[derive(Debug, Default)]
pub struct Judge {
    /// In the order in which they began.
    followed: VecDeque<Followed>,
    /// How many flows are followed, by endpoint.
    counts: HashMap<SocketAddr, u8>,
    /// The endpoints that have failed.
    records: HashMap<SocketAddr, Record>,
}

/// The failures of one endpoint.
#[derive(Debug, Default)]
struct Record {
    /// When connections failed since the last answer or pause.
    failures: Vec<Instant>,
    /// The number of pauses since the last answer.
    pauses: u32,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    InUse,
    Aside {
        since: Instant,
        until: Instant,
        how: SetAside,
    },
    OnTrial {
        since: Instant,
    },
}

impl Judge {
    /// Notes a flow that began, if its destination was translated.
    pub fn begun(&mut self, flow: &Flow, now: Instant) {
        let Some(endpoint) = endpoint(flow) else { return };
        if self.followed.len() >= FOLLOWED_MAX {
            return;
        }
        let count = self.counts.entry(endpoint).or_default();
        if *count < FOLLOWED {
            *count += 1;
            self.followed.push_back(Followed { endpoint, reply: flow.reply, id: flow.id, begun: now });
        }
    }

    /// Notes a flow that ended. Returns true if the endpoints that are set aside have changed.
    pub fn ended(&mut self, flow: &Flow, now: Instant) -> bool {
        let has_answered = flow.status & status::SEEN_REPLY != 0;
        if has_answered || flow.tcp_state != Some(tcp_state::CLOSE) {
            return false;
        }
        endpoint(flow).is_some_and(|endpoint| self.failed(endpoint, Failure::Refused, now))
    }

    /// Returns the next flow that should have been answered by now. Its outcome goes to [`judged`](Self::judged).
    pub fn next_due(&mut self, now: Instant) -> Option<Followed> {
        let is_due = |first: &&Followed| now.saturating_duration_since(first.begun) >= ANSWER_WITHIN;
        self.followed.front().filter(is_due)?;
        let followed = self.followed.pop_front()?;
        if let Some(count) = self.counts.get_mut(&followed.endpoint) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.counts.remove(&followed.endpoint);
            }
        }
        Some(followed)
    }

    /// Notes the outcome of a followed flow. Returns true if the endpoints that are set aside have changed.
    pub fn judged(&mut self, followed: &Followed, seen: Seen, now: Instant) -> bool {
        match seen {
            Seen::Answer => self.answered(followed),
            Seen::NoAnswer => self.failed(followed.endpoint, Failure::NoAnswer, now),
            Seen::Nothing => false,
        }
    }

    /// Ends pauses and forgets what is over. Returns true if the endpoints that are set aside have changed.
    pub fn pass(&mut self, now: Instant) -> bool {
        let mut is_changed = false;
        for record in self.records.values_mut() {
            record.forget(now);
            match record.state {
                State::Aside { until, .. } if until <= now => {
                    record.state = State::OnTrial { since: now };
                    is_changed = true;
                }
                State::OnTrial { since } if now.saturating_duration_since(since) >= LONGEST_PAUSE => {
                    (record.state, record.pauses) = (State::InUse, 0);
                }
                _ => {}
            }
        }
        self.records.retain(|_, record| !record.failures.is_empty() || !matches!(record.state, State::InUse));
        is_changed
    }

    /// Returns true if something happens as time passes.
    pub fn is_waiting(&self) -> bool {
        !self.followed.is_empty() || !self.records.is_empty()
    }

    /// Returns the endpoints that are set aside.
    pub fn aside(&self) -> BTreeMap<SocketAddr, SetAside> {
        let aside = |(endpoint, record): (&SocketAddr, &Record)| match record.state {
            State::Aside { how, .. } => Some((*endpoint, how)),
            _ => None,
        };
        self.records.iter().filter_map(aside).collect()
    }

    /// An answer shows that the endpoint was sound when the flow began. Later failures count all the same. An endpoint that is
    /// set aside gets connections, too, if its Service has no other one.
    fn answered(&mut self, followed: &Followed) -> bool {
        let Some(record) = self.records.get_mut(&followed.endpoint) else { return false };
        record.failures.retain(|failure| *failure > followed.begun);
        let (is_aside, since) = match record.state {
            State::InUse => return false,
            State::Aside { since, .. } => (true, since),
            State::OnTrial { since } => (false, since),
        };
        let is_newer = followed.begun >= since;
        if is_newer {
            (record.state, record.pauses) = (State::InUse, 0);
        }
        is_newer && is_aside
    }

    fn failed(&mut self, endpoint: SocketAddr, failure: Failure, now: Instant) -> bool {
        let record = self.records.entry(endpoint).or_default();
        record.forget(now);
        let enough = match record.state {
            // A connection that is older than the rules.
            State::Aside { .. } => return false,
            State::OnTrial { .. } => 1,
            State::InUse => FAILURES,
        };
        record.failures.push(now);
        if record.failures.len() < enough {
            return false;
        }
        let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(record.pauses)).min(LONGEST_PAUSE);
        record.pauses = record.pauses.saturating_add(1);
        record.failures.clear();
        record.state = State::Aside { since: now, until: now + pause, how: SetAside { failure, pause } };
        true
    }
}

impl Record {
    fn forget(&mut self, now: Instant) {
        self.failures.retain(|failure| now.saturating_duration_since(*failure) < REMEMBERED);
    }
}

/// Returns the endpoint to which the destination of a TCP flow was translated. `None` for other flows.
fn endpoint(flow: &Flow) -> Option<SocketAddr> {
    if flow.original.protocol != Protocol::Tcp.number() {
        return None;
    }
    let asked = SocketAddr::new(flow.original.destination, flow.original.destination_port()?);
    let answers = SocketAddr::new(flow.reply.source, flow.reply.source_port()?);
    (asked != answers).then_some(answers)
}

#[cfg(test)]
mod tests;
