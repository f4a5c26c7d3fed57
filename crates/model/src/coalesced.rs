//! Changes that are pending, coalesced by Service port.

use std::collections::HashMap;
use std::sync::Arc;

use crate::{Change, ServicePortName};

/// Changes with one entry for each Service port: the latest.
#[derive(Debug, Default)]
pub struct Coalesced {
    changes: Vec<Change>,
    places: HashMap<Arc<ServicePortName>, usize>,
}

impl Coalesced {
    /// Returns true if no change is pending.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Adds changes. Of two changes of one Service port, the merged one leads from the older state to the newer one.
    pub fn extend(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            let known = self.places.get(&change.name).and_then(|&place| self.changes.get_mut(place));
            if let Some(earlier) = known {
                earlier.new = change.new;
            } else {
                self.places.insert(change.name.clone(), self.changes.len());
                self.changes.push(change);
            }
        }
    }

    /// The changes, in the order in which their Service ports first changed.
    pub fn iter(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter()
    }

    /// Removes and returns all changes.
    pub fn take(&mut self) -> Vec<Change> {
        // The memory goes, too: after a first load it is large.
        self.places = HashMap::new();
        std::mem::take(&mut self.changes)
    }
}
