//! The time by which lanes keep their deadlines. Tests replace it.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Returns the current time.
#[derive(Clone)]
pub(super) struct Clock(Arc<dyn Fn() -> Instant + Send + Sync>);

impl Clock {
    /// The time of this machine.
    pub(super) fn system() -> Self {
        Self(Arc::new(Instant::now))
    }

    pub(super) fn now(&self) -> Instant {
        (self.0)()
    }

    /// A time that changes only with the returned handle.
    #[cfg(test)]
    pub(super) fn paused() -> (Self, Hands) {
        let hands = Hands(Arc::new(std::sync::Mutex::new(Instant::now())));
        let read = hands.clone();
        (Self(Arc::new(move || read.now())), hands)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// Sets a paused clock.
#[cfg(test)]
#[derive(Debug, Clone)]
pub(super) struct Hands(Arc<std::sync::Mutex<Instant>>);

#[cfg(test)]
impl Hands {
    pub(super) fn now(&self) -> Instant {
        *self.0.lock().unwrap()
    }

    pub(super) fn advance(&self, by: std::time::Duration) {
        *self.0.lock().unwrap() += by;
    }
}
