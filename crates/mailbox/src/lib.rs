//! A channel whose messages are merged into one value until the receiver takes it.
//!
//! The value is made so that merging coalesces: the memory that waits is bounded by the state that the messages are about,
//! however long the receiver is busy.

mod latest;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub use latest::Latest;

/// Makes a channel. It is closed when its last sender is dropped.
pub fn mailbox<T: Default>() -> (Sender<T>, Receiver<T>) {
    let state = State { value: None, senders: 1 };
    let shared = Arc::new(Shared { state: Mutex::new(state), wake: Condvar::new() });
    (Sender { shared: shared.clone() }, Receiver { shared })
}

/// Puts messages in.
#[derive(Debug)]
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

/// Takes out everything that was put in since the last time.
#[derive(Debug)]
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
}

/// What a receiver finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<T> {
    /// Everything that was put in.
    Value(T),
    /// Nothing was put in before the deadline.
    Late,
    /// Nothing is there, and every sender was dropped.
    Closed,
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    wake: Condvar,
}

#[derive(Debug)]
struct State<T> {
    value: Option<T>,
    senders: usize,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Default> Sender<T> {
    /// Merges a message into what waits. `merge` runs under the lock that the receiver needs, so it must be short.
    /// Returns what `merge` returns, so that what it replaced is dropped without the lock.
    pub fn put<R>(&self, merge: impl FnOnce(&mut T) -> R) -> R {
        let replaced = merge(self.shared.lock().value.get_or_insert_default());
        self.shared.wake.notify_one();
        replaced
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        let mut state = self.shared.lock();
        state.senders = state.senders.saturating_add(1);
        drop(state);
        Self { shared: self.shared.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.senders = state.senders.saturating_sub(1);
        drop(state);
        self.shared.wake.notify_one();
    }
}

impl<T> Receiver<T> {
    /// Takes what was put in; waits for it until the deadline, or without end if there is none.
    pub fn take_before(&self, deadline: Option<Instant>) -> Received<T> {
        let mut state = self.shared.lock();
        loop {
            if let Some(value) = state.value.take() {
                return Received::Value(value);
            }
            if state.senders == 0 {
                return Received::Closed;
            }
            state = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => self.shared.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return Received::Late,
                Some(left) => {
                    self.shared.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Takes what was put in, if anything, without waiting.
    pub fn take(&self) -> Option<T> {
        self.shared.lock().value.take()
    }

    /// Takes a part of what was put in. The rest stays. Returns `None` if nothing was put in. `part` runs under the lock that
    /// the senders need, so it must be short.
    pub fn take_part<R>(&self, part: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.shared.lock().value.as_mut().map(part)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn messages_are_merged_until_they_are_taken() {
        let (sender, receiver) = mailbox::<Vec<u8>>();
        let other = sender.clone();
        sender.put(|all| all.push(1));
        other.put(|all| all.push(2));
        assert_eq!(receiver.take_before(None), Received::Value(vec![1, 2]));
        assert_eq!(receiver.take(), None);
        assert_eq!(receiver.take_part(Vec::pop), None);
        assert_eq!(receiver.take_before(Some(Instant::now())), Received::Late);
        sender.put(|all| all.extend([3, 4]));
        assert_eq!(receiver.take_part(Vec::pop), Some(Some(4)));
        assert_eq!(receiver.take(), Some(vec![3]));
    }

    #[test]
    fn a_receiver_is_woken_by_a_message_and_by_the_last_sender() {
        let (sender, receiver) = mailbox::<u8>();
        let waiting = std::thread::spawn(move || {
            let first = receiver.take_before(None);
            (first, receiver.take_before(None))
        });
        sender.put(|sum| *sum += 7);
        drop(sender);
        assert_eq!(waiting.join().unwrap(), (Received::Value(7), Received::Closed));
    }

    #[test]
    fn what_was_put_in_is_taken_before_the_channel_is_closed() {
        let (sender, receiver) = mailbox::<u8>();
        sender.put(|sum| *sum += 1);
        drop(sender);
        let deadline = Instant::now() + Duration::from_secs(60);
        assert_eq!(receiver.take_before(Some(deadline)), Received::Value(1));
        assert_eq!(receiver.take_before(Some(deadline)), Received::Closed);
    }
}
