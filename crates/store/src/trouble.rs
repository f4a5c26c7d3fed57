//! What keeps the store from writing, as `/readyz` and the log tell it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Different reasons of one trouble that are told; more differ in details only.
const MOST_TOLD: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Trouble(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Why the last write failed; `None` if it did not.
    reason: Option<String>,
    /// The reasons that have been told since the trouble began.
    told: Vec<String>,
}

impl Trouble {
    /// Writing failed for this reason. Whether that is to be told: not again for each attempt.
    pub(crate) fn set(&self, reason: &str) -> bool {
        let state = &mut *self.lock();
        state.reason = Some(reason.to_owned());
        let is_new = state.told.len() < MOST_TOLD && !state.told.iter().any(|told| told == reason);
        if is_new {
            state.told.push(reason.to_owned());
        }
        is_new
    }

    /// Writing does. Whether it did not before.
    pub(crate) fn clear(&self) -> bool {
        let state = &mut *self.lock();
        state.told.clear();
        state.reason.take().is_some()
    }

    /// Why the last write failed.
    pub(crate) fn reason(&self) -> Option<String> {
        self.lock().reason.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reasons that have been told.
    #[cfg(test)]
    pub(crate) fn told(&self) -> Vec<String> {
        self.lock().told.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_told_once_until_the_trouble_is_over() {
        let trouble = Trouble::default();
        assert!(!trouble.clear());
        assert!(trouble.set("a") && trouble.set("b"));
        assert!(!trouble.set("a") && !trouble.set("b"));
        assert_eq!(trouble.reason().as_deref(), Some("b"));
        assert!(trouble.clear());
        assert_eq!(trouble.reason(), None);
        assert!(trouble.set("a"));
        assert_eq!((0..100).filter(|number| trouble.set(&number.to_string())).count(), MOST_TOLD - 1);
    }
}
