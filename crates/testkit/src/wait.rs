//! Waits for a condition with a deadline, instead of sleeping for a fixed time.

use std::thread;
use std::time::{Duration, Instant};

use crate::TestkitError;

const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// Waits until `condition` holds. After `within`, returns an error that names `what`.
///
/// The condition is checked once more after the deadline, so that a slow machine does not fail a test that has
/// succeeded.
pub fn eventually(
    within: Duration,
    what: &str,
    mut condition: impl FnMut() -> bool,
) -> Result<(), TestkitError> {
    eventually_some(within, what, || condition().then_some(()))
}

/// Waits until `attempt` returns a value, and returns it. After `within`, returns an error that names `what`.
pub fn eventually_some<T>(
    within: Duration,
    what: &str,
    mut attempt: impl FnMut() -> Option<T>,
) -> Result<T, TestkitError> {
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let late = start.elapsed() >= within;
        if let Some(value) = attempt() {
            return Ok(value);
        }
        if late {
            return Err(TestkitError::Deadline { what: what.to_owned(), waited: start.elapsed() });
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_value_of_the_first_success() {
        let mut calls = 0;
        let value = eventually_some(Duration::from_secs(5), "third call", || {
            calls += 1;
            (calls == 3).then_some(calls)
        });
        assert_eq!(value.unwrap(), 3);
    }

    #[test]
    fn the_error_names_the_condition() {
        let error = eventually(Duration::from_millis(5), "the impossible", || false).unwrap_err();
        assert!(error.to_string().starts_with("the impossible did not happen within"), "{error}");
    }
}
