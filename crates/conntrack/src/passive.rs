//! Passive health checks: endpoints whose TCP connections fail at connect are set aside for a while.
//!
//! conntrack notifies of each flow that begins and ends. A flow that a reset ends before any answer was refused. A flow that has
//! no answer after [`ANSWER_WITHIN`] failed, too; the kernel is asked for that, for at most [`FOLLOWED`] flows of an endpoint at a
//! time. [`Judge`] decides, [`PassiveThread`] reads and asks.
//!
//! An endpoint is set aside after [`FAILURES`] failures in a row. Each further time the pause is twice as long. After its pause an
//! endpoint is on trial: the first failure sets it aside again, and the first answer ends the trial. Before an endpoint is set
//! aside, the kernel is asked whether the endpoint has answered a flow that began since.

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
/// How many later flows of a failing endpoint are known, so that the kernel can be asked for them.
const LATER: usize = 4;
/// How many endpoints have a record at a time. Further ones are not judged.
pub const RECORDS_MAX: usize = 16_384;

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
    /// The endpoints that have failed, and those of followed flows.
    records: HashMap<SocketAddr, Record>,
}

/// The flows and failures of one endpoint.
#[derive(Debug, Default)]
struct Record {
    /// How many flows are followed.
    followed: u8,
    /// The newest flows that began after a failure, or after the followed ones. An answer to one of them ends the row of failures.
    later: VecDeque<Followed>,
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
        let can_follow = self.followed.len() < FOLLOWED_MAX;
        let Some(record) = self.record(endpoint) else { return };
        let begun = Followed { endpoint, reply: flow.reply, id: flow.id, begun: now };
        let is_followed = can_follow && record.followed < FOLLOWED;
        if !is_followed || record.is_failing() {
            record.add_later(begun);
        }
        if is_followed {
            record.followed += 1;
            self.followed.push_back(begun);
        }
    }

    /// Notes a flow that ended. `ask` asks the kernel for other flows. Returns true if the endpoints that are set aside have
    /// changed.
    pub fn ended(&mut self, flow: &Flow, now: Instant, ask: impl FnMut(&Followed) -> Seen) -> bool {
        let Some(endpoint) = endpoint(flow) else { return false };
        let later =
            self.records.get_mut(&endpoint).and_then(|record| record.take_later(&flow.reply, flow.id));
        if flow.status & (status::SEEN_REPLY | status::ASSURED) != 0 {
            // Only a flow that began after a failure says something about it.
            return later.is_some_and(|later| self.answered(&later));
        }
        flow.tcp_state == Some(tcp_state::CLOSE) && self.failed(endpoint, Failure::Refused, (now, now), ask)
    }

    /// Returns the next flow that should have been answered by now. Its outcome goes to [`judged`](Self::judged).
    pub fn next_due(&mut self, now: Instant) -> Option<Followed> {
        let is_due = |first: &&Followed| now.saturating_duration_since(first.begun) >= ANSWER_WITHIN;
        self.followed.front().filter(is_due)?;
        let followed = self.followed.pop_front()?;
        if let Some(record) = self.records.get_mut(&followed.endpoint) {
            record.followed = record.followed.saturating_sub(1);
        }
        Some(followed)
    }

    /// Notes the outcome of a followed flow. `ask` asks the kernel for other flows. Returns true if the endpoints that are set
    /// aside have changed.
    pub fn judged(
        &mut self,
        followed: &Followed,
        seen: Seen,
        now: Instant,
        ask: impl FnMut(&Followed) -> Seen,
    ) -> bool {
        match seen {
            Seen::Answer => self.answered(followed),
            Seen::NoAnswer => {
                if let Some(record) = self.records.get_mut(&followed.endpoint) {
                    record.take_later(&followed.reply, followed.id);
                }
                self.failed(followed.endpoint, Failure::NoAnswer, (followed.begun, now), ask)
            }
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
        self.records.retain(|_, record| record.followed > 0 || record.is_failing());
        is_changed
    }

    /// Returns true if something happens as time passes.
    pub fn is_waiting(&self) -> bool {
        !self.records.is_empty()
    }

    /// Returns true if further endpoints are not judged, because there are [`RECORDS_MAX`] records.
    pub fn is_full(&self) -> bool {
        self.records.len() >= RECORDS_MAX
    }

    /// Returns the endpoints that are set aside.
    pub fn aside(&self) -> BTreeMap<SocketAddr, SetAside> {
        let aside = |(endpoint, record): (&SocketAddr, &Record)| match record.state {
            State::Aside { how, .. } => Some((*endpoint, how)),
            _ => None,
        };
        self.records.iter().filter_map(aside).collect()
    }

    /// Returns the record of an endpoint, a new one if there is room.
    fn record(&mut self, endpoint: SocketAddr) -> Option<&mut Record> {
        if self.is_full() {
            return self.records.get_mut(&endpoint);
        }
        Some(self.records.entry(endpoint).or_default())
    }

    fn answered(&mut self, followed: &Followed) -> bool {
        self.records.get_mut(&followed.endpoint).is_some_and(|record| record.answered(followed.begun))
    }

    /// Notes a failure at the first of two times; the second one is the present.
    fn failed(
        &mut self,
        endpoint: SocketAddr,
        failure: Failure,
        (at, now): (Instant, Instant),
        mut ask: impl FnMut(&Followed) -> Seen,
    ) -> bool {
        let Some(record) = self.record(endpoint) else { return false };
        record.forget(now);
        // Connections to it are older than the rules.
        if matches!(record.state, State::Aside { .. }) {
            return false;
        }
        record.failures.push(at);
        if !record.has_enough_failures() {
            return false;
        }
        let newest =
            record.later.iter().rev().find(|later| ask(later) == Seen::Answer).map(|later| later.begun);
        if let Some(begun) = newest {
            record.answered(begun);
        }
        if !record.has_enough_failures() {
            return false;
        }
        record.set_aside(failure, now);
        true
    }
}

impl Record {
    /// Returns true if there is more to remember than followed flows.
    fn is_failing(&self) -> bool {
        !self.failures.is_empty() || !matches!(self.state, State::InUse)
    }

    fn has_enough_failures(&self) -> bool {
        let enough = if matches!(self.state, State::OnTrial { .. }) { 1 } else { FAILURES };
        self.failures.len() >= enough
    }

    fn add_later(&mut self, flow: Followed) {
        if self.later.len() >= LATER {
            self.later.pop_front();
        }
        self.later.push_back(flow);
    }

    fn take_later(&mut self, reply: &Tuple, id: Option<u32>) -> Option<Followed> {
        let at = self.later.iter().position(|later| later.reply == *reply && later.id == id)?;
        self.later.remove(at)
    }

    /// An answer shows that the endpoint was sound when the flow began. Later failures count all the same. An endpoint that is
    /// set aside gets connections, too, if its Service has no other one. Returns true if it is not set aside any more.
    fn answered(&mut self, begun: Instant) -> bool {
        self.failures.retain(|failure| *failure > begun);
        self.later.retain(|later| later.begun > begun);
        let (is_aside, since) = match self.state {
            State::InUse => return false,
            State::Aside { since, .. } => (true, since),
            State::OnTrial { since } => (false, since),
        };
        let is_newer = begun >= since;
        if is_newer {
            (self.state, self.pauses) = (State::InUse, 0);
        }
        is_newer && is_aside
    }

    fn set_aside(&mut self, failure: Failure, now: Instant) {
        let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(self.pauses)).min(LONGEST_PAUSE);
        self.pauses = self.pauses.saturating_add(1);
        self.failures.clear();
        self.later.clear();
        self.state = State::Aside { since: now, until: now + pause, how: SetAside { failure, pause } };
    }

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
