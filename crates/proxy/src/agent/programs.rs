//! The search for the iptables programs that new data planes call.
//!
//! Finding them means running them, which may take long. So another thread does it. What needs them asks for a search
//! and is done again when the search has ended.

use std::rc::Rc;

use portolan_model::catalog::PerFamily;
use tokio::sync::Notify;

use super::Agent;
use crate::modes::FoundPrograms;

/// The result of a search, by family.
pub(crate) type Found = PerFamily<Option<FoundPrograms>>;

/// The current search.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// Notified when a search is to begin.
    requests: Rc<Notify>,
    /// A search was asked for and has not ended.
    is_running: bool,
    /// The result of the search that has just ended.
    found: Option<Found>,
}

impl Search {
    /// Returns true if a search was asked for and has not ended.
    pub(super) const fn is_running(&self) -> bool {
        self.is_running
    }

    /// Returns the programs, once for each search. If they are not known, asks for a search and returns `None`.
    pub(super) fn take(&mut self) -> Option<Found> {
        let found = self.found.take();
        if found.is_none() && !self.is_running {
            self.is_running = true;
            self.requests.notify_one();
        }
        found
    }
}

impl Agent {
    /// Returns what is notified when a search is to begin. [`Agent::programs_found`] takes its result.
    pub(crate) fn program_searches(&self) -> Rc<Notify> {
        Rc::clone(&self.search.requests)
    }

    /// Ends a search: continues what has waited for it.
    pub(crate) fn programs_found(&mut self, found: Found) {
        (self.search.is_running, self.search.found) = (false, Some(found));
        if self.running.is_some() {
            self.reconfigure();
        } else {
            self.hand_over();
        }
        // If they are not needed any more, a later search finds those that the node uses then.
        self.search.found = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_is_asked_for_once_and_its_result_is_used_once() {
        let mut search = Search::default();
        assert!(search.take().is_none() && search.is_running());
        assert!(search.take().is_none(), "it is under way");
        (search.is_running, search.found) = (false, Some(Found::default()));
        assert!(search.take().is_some() && !search.is_running);
        assert!(search.take().is_none() && search.is_running, "the next one");
    }
}
