//! Tracks the objects with faults, including objects that are ignored as a whole.

use std::collections::HashMap;

use super::record::fault_digest;
use crate::object::{Fault, Kind, ObjectKey};

/// Objects with faults, by kind and key. Objects without faults have no entry.
#[derive(Debug, Clone, Default)]
pub(super) struct FaultyObjects(HashMap<Kind, HashMap<ObjectKey, Faulty>>);

#[derive(Debug, Clone, Copy)]
struct Faulty {
    digest: u32,
    /// The list in which the object was last seen.
    generation: u32,
}

impl FaultyObjects {
    /// Stores the current faults of an object. Returns true if there are faults and they differ from the former ones.
    pub(super) fn note(&mut self, kind: Kind, key: &ObjectKey, generation: u32, faults: &[Fault]) -> bool {
        if faults.is_empty() {
            self.forget(kind, key);
            return false;
        }
        let digest = fault_digest(faults);
        let of_kind = self.0.entry(kind).or_default();
        let before = of_kind.insert(key.clone(), Faulty { digest, generation });
        before.is_none_or(|before| before.digest != digest)
    }

    /// Removes an object.
    pub(super) fn forget(&mut self, kind: Kind, key: &ObjectKey) {
        if let Some(of_kind) = self.0.get_mut(&kind) {
            of_kind.remove(key);
        }
    }

    /// Ends a list: removes the objects of its kind that were not seen in it.
    pub(super) fn end_list(&mut self, kind: Kind, generation: u32) {
        if let Some(of_kind) = self.0.get_mut(&kind) {
            of_kind.retain(|_, faulty| faulty.generation == generation);
        }
    }

    /// Returns the number of objects of a kind.
    pub(super) fn count(&self, kind: Kind) -> usize {
        self.0.get(&kind).map_or(0, HashMap::len)
    }
}
