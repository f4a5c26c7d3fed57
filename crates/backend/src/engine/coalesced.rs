//! Changes that are pending, coalesced by Service port.

use std::collections::HashMap;
use std::sync::Arc;

use portolan_model::{Change, ServicePortName};

/// Changes with one entry for each Service port: the latest.
#[derive(Debug, Default)]
pub(crate) struct Coalesced {
    changes: Vec<Change>,
    places: HashMap<Arc<ServicePortName>, usize>,
}

impl Coalesced {
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub(crate) fn extend(&mut self, changes: Vec<Change>) {
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

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter()
    }

    pub(crate) fn take(&mut self) -> Vec<Change> {
        self.places.clear();
        std::mem::take(&mut self.changes)
    }
}
