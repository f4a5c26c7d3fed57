//! Which objects have parts that cannot be used, also those that are left out as a whole.

use std::collections::HashMap;

use super::record::fault_digest;
use crate::object::{Fault, Kind, ObjectKey};

/// Objects with faults, by kind and name; those without are not in it.
#[derive(Debug, Clone, Default)]
pub(super) struct FaultyObjects(HashMap<(Kind, ObjectKey), Faulty>);

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
        let before = self.0.insert((kind, key.clone()), Faulty { digest, generation });
        before.is_none_or(|before| before.digest != digest)
    }

    /// The object is gone.
    pub(super) fn forget(&mut self, kind: Kind, key: &ObjectKey) {
        if !self.0.is_empty() {
            self.0.remove(&(kind, key.clone()));
        }
    }

    /// A list is complete: whatever of its kind it did not show is gone.
    pub(super) fn end_list(&mut self, kind: Kind, generation: u32) {
        self.0.retain(|(of, _), faulty| *of != kind || faulty.generation == generation);
    }

    /// Number of objects of a kind.
    pub(super) fn count(&self, kind: Kind) -> usize {
        self.0.keys().filter(|(of, _)| *of == kind).count()
    }
}
