//! UDP flows: which backend gets the datagrams of one client to one destination, and for how long.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::slots::{Slot, Slots};

/// A flow's client address, and the address where its datagrams arrive (the virtual address, if it is not translated).
pub type Key = (SocketAddr, SocketAddr);

/// Queue entries of removed flows that may pile up before the queue is cleaned.
const QUEUE_SLACK: usize = 1024;

/// The id of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowId(pub(crate) Slot);

/// Flows, each with a value. Flows without use for the idle time are removed.
#[derive(Debug)]
pub struct Flows<T> {
    slots: Slots<Flow<T>>,
    ids: HashMap<Key, FlowId>,
    /// Each flow once, with the time of a use, maybe not the latest. Removed flows may have an entry left.
    queue: VecDeque<(FlowId, Instant)>,
    idle: Duration,
}

#[derive(Debug)]
struct Flow<T> {
    key: Key,
    used: Instant,
    value: T,
}

impl<T> Flows<T> {
    /// Creates an empty set of flows. `idle` is the time without use after which a flow is removed.
    pub fn new(idle: Duration) -> Self {
        Self { slots: Slots::default(), ids: HashMap::new(), queue: VecDeque::new(), idle }
    }

    /// Returns the flow of a key.
    pub fn find(&self, key: &Key) -> Option<FlowId> {
        self.ids.get(key).copied()
    }

    /// Adds a flow. The key must have no flow yet.
    pub fn insert(&mut self, key: Key, value: T, now: Instant) -> FlowId {
        let id = FlowId(self.slots.insert(Flow { key, used: now, value }));
        self.ids.insert(key, id);
        self.queue.push_back((id, now));
        id
    }

    /// Returns a flow and records that it is used.
    pub fn using(&mut self, id: FlowId, now: Instant) -> Option<(&Key, &mut T)> {
        let flow = self.slots.get_mut(id.0)?;
        flow.used = now;
        Some((&flow.key, &mut flow.value))
    }

    /// Removes a flow.
    pub fn remove(&mut self, id: FlowId) -> Option<(Key, T)> {
        let flow = self.slots.remove(id.0)?;
        self.ids.remove(&flow.key);
        if self.queue.len() > self.slots.len() * 2 + QUEUE_SLACK {
            let slots = &self.slots;
            self.queue.retain(|(id, _)| slots.get(id.0).is_some());
        }
        Some((flow.key, flow.value))
    }

    /// Removes and returns one flow that has been idle for too long.
    pub fn take_idle(&mut self, now: Instant) -> Option<(Key, T)> {
        while let Some(&(id, since)) = self.queue.front() {
            if since + self.idle > now {
                return None;
            }
            self.queue.pop_front();
            let Some(used) = self.slots.get(id.0).map(|flow| flow.used) else { continue };
            if used + self.idle > now {
                self.queue.push_back((id, used));
            } else {
                return self.remove(id);
            }
        }
        None
    }

    /// Returns when to call [`Self::take_idle`] again.
    pub fn next(&self) -> Option<Instant> {
        self.queue.front().map(|&(_, since)| since + self.idle)
    }

    /// Returns the number of flows.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns true if there are no flows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(30);

    fn key(client: u16) -> Key {
        (([10, 0, 0, 1], client).into(), ([10, 96, 0, 10], 53).into())
    }

    #[test]
    fn a_flow_ends_after_its_last_use() {
        let (mut flows, start) = (Flows::new(IDLE), Instant::now());
        let first = flows.insert(key(1), 'a', start);
        flows.insert(key(2), 'b', start);
        let half = start + IDLE / 2;
        assert_eq!(flows.using(first, half).map(|(_, value)| *value), Some('a'));
        assert_eq!(flows.take_idle(half), None);
        assert_eq!(flows.next(), Some(start + IDLE));
        assert_eq!(flows.take_idle(start + IDLE), Some((key(2), 'b')));
        assert_eq!(flows.take_idle(start + IDLE), None);
        assert_eq!((flows.find(&key(1)), flows.find(&key(2))), (Some(first), None));
        assert_eq!(flows.take_idle(half + IDLE), Some((key(1), 'a')));
        assert_eq!((flows.len(), flows.next()), (0, None));
    }

    #[test]
    fn flows_that_end_early_do_not_pile_up() {
        let (mut flows, start) = (Flows::new(IDLE), Instant::now());
        flows.insert(key(0), 0, start);
        for n in 1..10_000 {
            let id = flows.insert(key(n), n, start);
            flows.remove(id);
        }
        assert!(flows.queue.len() <= QUEUE_SLACK + 3, "{}", flows.queue.len());
        assert_eq!(flows.take_idle(start + IDLE), Some((key(0), 0)));
    }

    #[test]
    fn a_flow_that_was_ended_leaves_nothing() {
        let (mut flows, start) = (Flows::new(IDLE), Instant::now());
        let first = flows.insert(key(1), 'a', start);
        assert_eq!(flows.remove(first), Some((key(1), 'a')));
        flows.insert(key(1), 'b', start);
        assert_eq!(flows.remove(first), None, "a number of before is not the new flow's");
        assert_eq!(flows.take_idle(start + IDLE), Some((key(1), 'b')));
        assert_eq!(flows.take_idle(start + IDLE), None);
    }
}
