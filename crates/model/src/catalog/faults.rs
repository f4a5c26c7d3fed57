//! Which objects have parts that cannot be used, also those that are left out as a whole.

use std::collections::HashMap;

use super::record::fault_digest;
use crate::object::{Fault, Kind, ObjectKey};

/// Objects with faults, by kind and name; those without are not in it.
#[derive(Debug, Clone, Default)]
pub(super) struct FaultyObjects(HashMap<Kind, HashMap<ObjectKey, Faulty>>);

#[derive(Debug, Clone, Copy)]
struct Faulty {
    digest: u32,
    /// The list that showed it last.
    generation: u32,
}

impl FaultyObjects {
    /// Notes the faults of an object as it is now. Says whether they are other ones than before.
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

    /// The object is gone.
    pub(super) fn forget(&mut self, kind: Kind, key: &ObjectKey) {
        if let Some(of_kind) = self.0.get_mut(&kind) {
            of_kind.remove(key);
        }
    }

    /// A list is complete: whatever of its kind it did not show is gone.
    pub(super) fn end_list(&mut self, kind: Kind, generation: u32) {
        if let Some(of_kind) = self.0.get_mut(&kind) {
            of_kind.retain(|_, faulty| faulty.generation == generation);
        }
    }

    /// Number of objects of a kind.
    pub(super) fn count(&self, kind: Kind) -> usize {
        self.0.get(&kind).map_or(0, HashMap::len)
    }
}
