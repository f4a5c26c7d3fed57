//! Time in which a client or a responder of this process did not run, because the machine was paused or has too much to do. An
//! answer may be late for this reason alone, so deadlines are moved by that time.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often a responder that has nothing to do shows that it runs.
pub(crate) const PULSE: Duration = Duration::from_millis(50);
/// A thread that runs this much later than it should has not had a processor.
const LATE: Duration = Duration::from_millis(100);

/// The responders of this process.
static RESPONDERS: Mutex<Vec<Weak<Pulse>>> = Mutex::new(Vec::new());

/// When a responder last had answered everything.
#[derive(Debug)]
pub(crate) struct Pulse(Mutex<Instant>);

impl Pulse {
    /// Adds a responder. It counts until this is dropped.
    pub(crate) fn start() -> Arc<Self> {
        let pulse = Arc::new(Self(Mutex::new(Instant::now())));
        let mut responders = RESPONDERS.lock().unwrap_or_else(PoisonError::into_inner);
        responders.retain(|responder| responder.strong_count() > 0);
        responders.push(Arc::downgrade(&pulse));
        pulse
    }

    /// Notes that the responder runs and has answered what had arrived. To be called at least once in each [`PULSE`].
    pub(crate) fn beat(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn silence(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// The pauses of one client's thread and of all responders.
#[derive(Debug)]
pub(crate) struct Pauses {
    /// When the thread last was known to run.
    last: Instant,
    /// The part of the responders' present silence that has been reported.
    reported: Duration,
}

impl Pauses {
    pub(crate) fn new() -> Self {
        Self { last: Instant::now(), reported: Duration::ZERO }
    }

    /// Notes that the thread runs.
    pub(crate) fn runs(&mut self) {
        self.last = Instant::now();
    }

    /// Returns by how much deadlines have to be moved since the last call. `wait` is the longest time that the thread wanted
    /// to sleep meanwhile.
    pub(crate) fn passed(&mut self, wait: Duration) -> Duration {
        let late = over(self.last.elapsed(), wait);
        self.runs();
        late.max(self.new_silence(longest_silence()))
    }

    /// Returns the part of the responders' silence that has not been reported.
    fn new_silence(&mut self, silence: Duration) -> Duration {
        let silence = over(silence, PULSE);
        silence.saturating_sub(std::mem::replace(&mut self.reported, silence))
    }
}

/// Returns how much later than expected something was; zero if that is usual.
fn over(passed: Duration, expected: Duration) -> Duration {
    Some(passed.saturating_sub(expected)).filter(|late| *late >= LATE).unwrap_or_default()
}

fn longest_silence() -> Duration {
    let responders = RESPONDERS.lock().unwrap_or_else(PoisonError::into_inner);
    responders.iter().filter_map(Weak::upgrade).map(|responder| responder.silence()).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn only_a_long_pause_counts() {
        assert_eq!(over(ms(1099), ms(1000)), ms(0));
        assert_eq!(over(ms(1100), ms(1000)), ms(100));
        assert_eq!(over(ms(500), Duration::MAX), ms(0));
    }

    #[test]
    fn silence_of_responders_is_reported_once() {
        let mut pauses = Pauses::new();
        let silences = [10, 149, 250, 1050, 20, 650].map(|silence| pauses.new_silence(ms(silence)));
        assert_eq!(silences, [0, 0, 200, 800, 0, 600].map(ms));
    }

    #[test]
    fn a_responder_counts_until_it_has_ended() {
        let count = |pulse: &Weak<Pulse>| {
            let responders = RESPONDERS.lock().unwrap();
            responders.iter().filter(|responder| responder.ptr_eq(pulse)).count()
        };
        let pulse = Pulse::start();
        let known = Arc::downgrade(&pulse);
        assert_eq!(count(&known), 1);
        drop(pulse);
        let another = Pulse::start();
        assert_eq!((count(&known), count(&Arc::downgrade(&another))), (0, 1));
    }
}
