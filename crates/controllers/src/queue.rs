//! The work queue of a controller. Each item is in the queue once; a failed item returns after a back-off.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    hash::Hash,
    time::Duration,
};

use tokio::time::Instant;

/// A queue without duplicates. It uses memory only for the items in it, and for the failures of items that have not
/// succeeded since.
#[derive(Debug)]
pub(super) struct Queue<T> {
    ready: VecDeque<T>,
    waiting: HashSet<T>,
    later: BTreeMap<(Instant, u64), T>,
    /// When each delayed item becomes due.
    times: HashMap<T, (Instant, u64)>,
    /// The number of consecutive failures of each item.
    failures: HashMap<T, u32>,
    added: u64,
    first_delay: Duration,
    longest_delay: Duration,
}

impl<T: Clone + Eq + Hash> Queue<T> {
    /// Creates a queue. A failed item returns after `first_delay`, which doubles with each failure up to
    /// `longest_delay`.
    pub(super) fn new(first_delay: Duration, longest_delay: Duration) -> Self {
        Self {
            ready: VecDeque::new(),
            waiting: HashSet::new(),
            later: BTreeMap::new(),
            times: HashMap::new(),
            failures: HashMap::new(),
            added: 0,
            first_delay,
            longest_delay,
        }
    }

    /// Adds an item that is due at once.
    pub(super) fn add(&mut self, thing: T) {
        if self.waiting.insert(thing.clone()) {
            self.ready.push_back(thing);
        }
    }

    /// Adds an item that is due after `delay`, or earlier if it is delayed until then already.
    pub(super) fn add_after(&mut self, thing: T, delay: Duration) {
        self.added = self.added.wrapping_add(1);
        let time = (Instant::now() + delay, self.added);
        match self.times.get(&thing) {
            Some(planned) if *planned <= time => return,
            Some(planned) => self.later.remove(planned),
            None => None,
        };
        self.times.insert(thing.clone(), time);
        self.later.insert(time, thing);
    }

    /// Adds an item that has failed, with back-off.
    pub(super) fn retry(&mut self, thing: T) {
        let failures = self.failures.entry(thing.clone()).or_default();
        let delay = self.first_delay.saturating_mul(1 << (*failures).min(16)).min(self.longest_delay);
        *failures = failures.saturating_add(1);
        self.add_after(thing, delay);
    }

    /// Resets the failures of an item.
    pub(super) fn succeeded(&mut self, thing: &T) {
        self.failures.remove(thing);
    }

    /// Removes and returns the next items, at most `limit`.
    pub(super) fn take(&mut self, limit: usize) -> Vec<T> {
        let now = Instant::now();
        while let Some(entry) = self.later.first_entry().filter(|entry| entry.key().0 <= now) {
            let thing = entry.remove();
            self.times.remove(&thing);
            self.add(thing);
        }
        let count = limit.min(self.ready.len());
        let taken: Vec<T> = self.ready.drain(..count).collect();
        for thing in &taken {
            self.waiting.remove(thing);
        }
        taken
    }

    /// Waits until a delayed item is due; for ever if there is none.
    pub(super) async fn due(&self) {
        match self.later.first_key_value() {
            Some(((due, _), _)) => tokio::time::sleep_until(*due).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> Queue<&'static str> {
        Queue::new(Duration::from_secs(1), Duration::from_secs(3))
    }

    #[tokio::test]
    async fn each_item_is_queued_once() {
        let mut queue = queue();
        for thing in ["a", "b", "a"] {
            queue.add(thing);
        }
        assert_eq!(queue.take(1), ["a"]);
        queue.add("a");
        assert_eq!((queue.take(9), queue.take(9)), (vec!["b", "a"], vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn failed_items_return_with_back_off() {
        let mut queue = queue();
        for seconds in [1, 2, 3, 3] {
            queue.retry("a");
            assert!(queue.take(9).is_empty());
            let before = Instant::now();
            queue.due().await;
            assert_eq!((before.elapsed().as_secs(), queue.take(9)), (seconds, vec!["a"]));
        }
        queue.add_after("a", Duration::from_secs(9));
        queue.add_after("a", Duration::from_secs(5));
        queue.add_after("a", Duration::from_secs(7));
        let before = Instant::now();
        queue.due().await;
        assert_eq!((before.elapsed().as_secs(), queue.take(9)), (5, vec!["a"]));
        assert_eq!((queue.later.len(), queue.times.len()), (0, 0));
        queue.succeeded(&"a");
        queue.retry("a");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(queue.take(9), ["a"]);
    }
}
