//! What a loss of power leaves of a recorded folder.
//!
//! This is the model of the file system: ext4 with its default options, or a file system that keeps less.
//!
//! - A sync that has returned covers the writes that had returned when it began. They are there. Of a sync that has not
//!   returned nothing is known.
//! - Two writes to one file at the same time are not known here: [`recording`](super::recording) refuses them.
//! - Of later writes any part may be there ([`writes`]).
//! - Names change in the order of the calls, because ext4 writes one journal. So some number of the first changes is there.
//!   The sync of a folder covers the changes of names in it, `fsync` of a file those of its own names, and `fdatasync`
//!   of a file its creation. As the order is kept, they also cover all changes before.
//! - A call that has begun and has not returned may have been carried out in any part.

use std::collections::HashSet;

use fastrand::Rng;

use super::{
    recording::{Names, Recording, Sync, give, paths},
    tree::Tree,
    writes::{self, Change, Fate},
};

/// The files after a loss of power, and what was chosen, for messages.
#[derive(Debug)]
pub struct Left {
    pub tree: Tree,
    pub story: String,
}

impl Recording {
    /// Returns what a loss of power leaves that happens at a position of the trace. Without dice, nothing survives that no
    /// sync covers. A disk that only says that it has synced does so from `honest_until` on.
    pub fn left(&self, at: usize, honest_until: usize, mut dice: Option<&mut Rng>) -> Left {
        let synced: Vec<&Sync> = self.syncs.iter().filter(|sync| sync.end <= at.min(honest_until)).collect();
        let (names, mut story) = self.names_left(at, &synced, dice.as_deref_mut());
        let mut tree = Tree::default();
        for (path, node) in paths(&names) {
            let content = self.content_left(node, at, &synced, dice.as_deref_mut(), |fate| {
                story.extend(["; ", &path, ": ", &fate]);
            });
            tree.0.insert(path, content);
        }
        Left { tree, story }
    }

    fn names_left(&self, at: usize, synced: &[&Sync], dice: Option<&mut Rng>) -> (Names, String) {
        let changes: Vec<_> = self.renames.iter().filter(|change| change.begin < at).collect();
        let mut created: HashSet<usize> = self.first.values().copied().collect();
        let mut least = 0;
        for (number, change) in changes.iter().enumerate() {
            let is_covered = |sync: &Sync| {
                let of_it = change.names.iter().any(|(_, node)| *node == Some(sync.node));
                let is_creation = of_it && !created.contains(&sync.node);
                let in_it = change.names.iter().any(|((folder, _), _)| *folder == sync.node);
                change.end <= sync.begin && (in_it || is_creation || of_it && sync.with_metadata)
            };
            if synced.iter().any(|sync| is_covered(sync)) {
                least = number + 1;
            }
            created.extend(change.names.iter().filter_map(|(_, node)| *node));
        }
        let kept = dice.map_or(least, |dice| dice.usize(least..=changes.len()));
        let mut names = self.first.clone();
        changes[..kept].iter().for_each(|change| give(&mut names, &change.names));
        (names, format!("{kept} of {} changes of names, of which {least} were synced", changes.len()))
    }

    /// Returns the content of a file; `None` for a folder.
    fn content_left(
        &self,
        node: usize,
        at: usize,
        synced: &[&Sync],
        dice: Option<&mut Rng>,
        tell: impl FnOnce(String),
    ) -> Option<Vec<u8>> {
        let mut content = self.nodes[node].clone()?;
        let covered_until = synced.iter().filter(|sync| sync.node == node).map(|sync| sync.begin).max();
        let writes: Vec<_> =
            self.writes.iter().filter(|write| write.node == node && write.begin < at).collect();
        let is_covered = |end: usize| covered_until.is_some_and(|until| end <= until);
        // One write returns before the next one begins, so the covered ones come first.
        let covered = writes.iter().take_while(|write| is_covered(write.end)).count();
        writes[..covered].iter().for_each(|write| write.change.apply(&mut content));
        let pending: Vec<&Change> = writes[covered..].iter().map(|write| &write.change).collect();
        if let (Some(dice), false) = (dice, pending.is_empty()) {
            let fate = Fate::any(pending.len(), dice);
            tell(format!("{fate:?} of {} writes", pending.len()));
            content = writes::after(content, &pending, fate, dice);
        }
        Some(content)
    }
}

#[cfg(test)]
mod tests;
