//! Why the store cannot write, for `/readyz` and the log.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of different reasons that are logged until a write succeeds again. Further ones differ only in
/// details.
const MAX_LOGGED: usize = 16;

/// The reason why writes fail, and which reasons have been logged.
#[derive(Debug, Default)]
pub(crate) struct Trouble(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Why the last write failed; `None` if it succeeded.
    reason: Option<String>,
    /// The reasons logged since writes began to fail.
    logged: Vec<String>,
}

impl Trouble {
    /// Notes that a write failed. Returns true if the reason is to be logged; a repeated reason is not.
    pub(crate) fn set(&self, reason: &str) -> bool {
        let state = &mut *self.lock();
        state.reason = Some(reason.to_owned());
        let is_new = state.logged.len() < MAX_LOGGED && !state.logged.iter().any(|logged| logged == reason);
        if is_new {
            state.logged.push(reason.to_owned());
        }
        is_new
    }

    /// Notes that a write succeeded. Returns true if writes failed before.
    pub(crate) fn clear(&self) -> bool {
        let state = &mut *self.lock();
        state.logged.clear();
        state.reason.take().is_some()
    }

    /// Returns why the last write failed; `None` if it succeeded.
    pub(crate) fn reason(&self) -> Option<String> {
        self.lock().reason.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reasons that have been logged.
    #[cfg(test)]
    pub(crate) fn logged(&self) -> Vec<String> {
        self.lock().logged.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_logged_once_until_a_write_succeeds() {
        let trouble = Trouble::default();
        assert!(!trouble.clear());
        assert!(trouble.set("a") && trouble.set("b"));
        assert!(!trouble.set("a") && !trouble.set("b"));
        assert_eq!(trouble.reason().as_deref(), Some("b"));
        assert!(trouble.clear());
        assert_eq!(trouble.reason(), None);
        assert!(trouble.set("a"));
        assert_eq!((0..100).filter(|number| trouble.set(&number.to_string())).count(), MAX_LOGGED - 1);
    }
}
