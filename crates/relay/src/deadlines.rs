//! Deadlines with a few fixed lengths: a queue for each length keeps them in order.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A queue for each length. A deadline cannot be cancelled: the caller ignores one that has become stale.
#[derive(Debug)]
pub struct Deadlines<T> {
    queues: Vec<(Duration, VecDeque<(Instant, T)>)>,
}

impl<T> Default for Deadlines<T> {
    fn default() -> Self {
        Self { queues: Vec::new() }
    }
}

impl<T> Deadlines<T> {
    /// Sets a deadline and returns its time.
    pub fn set(&mut self, after: Duration, what: T, now: Instant) -> Instant {
        let at = now + after;
        match self.queues.iter_mut().find(|(length, _)| *length == after) {
            Some((_, queue)) => queue.push_back((at, what)),
            None => self.queues.push((after, VecDeque::from([(at, what)]))),
        }
        at
    }

    /// Returns the earliest deadline.
    pub fn next(&self) -> Option<Instant> {
        self.queues.iter().filter_map(|(_, queue)| queue.front()).map(|(at, _)| *at).min()
    }

    /// Removes and returns one deadline that has passed.
    pub fn take_due(&mut self, now: Instant) -> Option<T> {
        let (_, queue) =
            self.queues.iter_mut().find(|(_, queue)| queue.front().is_some_and(|(at, _)| *at <= now))?;
        queue.pop_front().map(|(_, what)| what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_deadlines_are_taken() {
        let (mut deadlines, start) = (Deadlines::default(), Instant::now());
        let (short, long) = (Duration::from_millis(250), Duration::from_secs(1));
        deadlines.set(long, 'l', start);
        deadlines.set(short, 's', start);
        deadlines.set(short, 't', start + short);
        assert_eq!(deadlines.next(), Some(start + short));
        assert_eq!(deadlines.take_due(start), None);
        assert_eq!(deadlines.take_due(start + short), Some('s'));
        assert_eq!(deadlines.take_due(start + short), None);
        let mut rest: Vec<char> = std::iter::from_fn(|| deadlines.take_due(start + long)).collect();
        rest.sort_unstable();
        assert_eq!(rest, ['l', 't']);
        assert_eq!(deadlines.next(), None);
    }
}
