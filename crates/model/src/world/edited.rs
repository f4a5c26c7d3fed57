//! A random world whose objects and edits a Catalog applies.

use super::{Edit, Ranges, Rng, World, random_edit};
use crate::catalog::Changes;
use crate::table::Entry;
use crate::{Catalog, Change, Family};

/// A random world, and the Catalog of node `n1` that applies its edits.
#[derive(Debug)]
pub struct Edited {
    rng: Rng,
    ranges: Ranges,
    world: World,
    catalog: Catalog,
}

impl Edited {
    /// Creates a world of `size` Services. The Catalog has none of them yet.
    pub fn new(seed: u64, size: usize) -> Self {
        let (mut rng, ranges) = (Rng::new(seed), Ranges::example());
        let world = World::random(&mut rng, size, &ranges);
        Self { rng, ranges, world, catalog: Catalog::new("n1") }
    }

    /// Returns the generator of the edits.
    pub const fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Applies every object, and returns what changes.
    pub fn first(&mut self) -> Changes {
        let edits = self.world.edits();
        self.apply(&edits)
    }

    /// Makes random edits, and returns what changes.
    pub fn edit(&mut self, count: usize) -> Changes {
        let edit = |_| random_edit(&mut self.rng, &mut self.world, &self.ranges);
        let edits: Vec<Edit> = (0..count).map(edit).collect();
        self.apply(&edits)
    }

    /// Returns the forwardings of a family as the Catalog has them, in no particular order.
    pub fn entries(&self, family: Family) -> Vec<Entry> {
        self.catalog.forwardings(family).collect()
    }

    /// Returns the forwardings of a family as changes of an empty table.
    pub fn now(&self, family: Family) -> Vec<Change> {
        let change = |(name, new)| Change { name, family, old: None, new: Some(new) };
        self.catalog.forwardings(family).map(change).collect()
    }

    fn apply(&mut self, edits: &[Edit]) -> Changes {
        for edit in edits {
            // All edits of a world can be decoded; a test of this crate reads each of them.
            if let Ok(event) = edit.event() {
                self.catalog.apply(event);
            }
        }
        self.catalog.take_changes()
    }
}
