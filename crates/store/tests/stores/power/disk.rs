//! What a loss of power leaves of a recorded folder.
//!
//! This is the model of the file system: ext4 with its default options, or a file system that keeps less.
//!
//! - A sync that has returned covers the writes that had returned when it began. They are there. Of a sync that has not
//!   returned nothing is known.
//! - Two writes to one file at the same time are not known here: [`recording`](super::recording) refuses them.
//! - Of later writes any part may be there: the kernel writes pages when it likes, and the disk takes them in any order, a
//!   sector at a time. So each sector is as it was at some moment since the sync. It never has a later write without an
//!   earlier one to the same sector. What is missing of a file reads as zeros.
//! - The length of a file is metadata. It may be older or newer than the sectors. What was cut off does not come back when
//!   the file grows again.
//! - Names change in the order of the calls, because ext4 writes one journal. So some number of the first changes is there.
//!   The sync of a folder covers the changes of names in it, `fsync` of a file those of its own names, and `fdatasync`
//!   of a file its creation. As the order is kept, they also cover all changes before.
//! - A call that has begun and has not returned may have been carried out in any part.

use std::collections::{BTreeMap, HashSet};

use fastrand::Rng;

use super::{
    recording::{Names, Recording, Sync, What, give, paths},
    tree::Tree,
};

/// Bytes that a disk writes as a whole. etcd relies on it, too: `minSectorSize` in its `wal/decoder.go`.
const SECTOR: usize = 512;

/// The files after a loss of power, and what was chosen, for messages.
#[derive(Debug)]
pub struct Left {
    pub tree: Tree,
    pub story: String,
}

/// Which writes since the last sync survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Nothing,
    Everything,
    /// Each write by itself.
    Some,
    /// All but one.
    AllButOne(usize),
    /// Those before one, and any sectors of that one.
    First(usize),
    /// Each sector of each write by itself.
    Sectors,
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
        writes[..covered].iter().for_each(|write| write.what.apply(&mut content));
        let pending: Vec<&What> = writes[covered..].iter().map(|write| &write.what).collect();
        if let (Some(dice), false) = (dice, pending.is_empty()) {
            let fate = Fate::any(pending.len(), dice);
            tell(format!("{fate:?} of {} writes", pending.len()));
            content = after(content, &pending, fate, dice);
        }
        Some(content)
    }
}

impl Fate {
    fn any(writes: usize, dice: &mut Rng) -> Self {
        match dice.usize(..6) {
            0 => Self::Nothing,
            1 => Self::Everything,
            2 => Self::Some,
            3 => Self::AllButOne(dice.usize(..writes)),
            4 => Self::First(dice.usize(..writes)),
            _ => Self::Sectors,
        }
    }

    /// Returns how many of the first writes decide about the length.
    fn lengths(self, writes: usize, dice: &mut Rng) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Everything | Self::AllButOne(_) => writes,
            Self::First(last) => last + usize::from(dice.bool()),
            Self::Some | Self::Sectors => dice.usize(..=writes),
        }
    }

    /// Returns true if any sector of a write may survive by itself, or the write as a whole.
    fn keeps(self, write: usize, dice: &mut Rng) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything | Self::Sectors => true,
            Self::Some => dice.bool(),
            Self::AllButOne(lost) => write != lost,
            Self::First(last) => write <= last,
        }
    }

    fn is_torn(self, write: usize) -> bool {
        self == Self::Sectors || self == Self::First(write)
    }
}

/// Returns the content of a file that had `synced`, and then got writes that no sync covers.
fn after(synced: Vec<u8>, pending: &[&What], fate: Fate, dice: &mut Rng) -> Vec<u8> {
    let lengths = fate.lengths(pending.len(), dice);
    let length = pending[..lengths].iter().fold(synced.len(), |length, what| what.length(length));
    let mut sectors = vec![Vec::new(); pending.len()];
    for (sector, number) in survivors(synced.len(), pending, lengths, fate, dice) {
        sectors[number].push(sector);
    }
    let (mut left, mut now) = (synced.clone(), synced);
    for (what, sectors) in pending.iter().zip(sectors) {
        what.apply(&mut now);
        for sector in sectors {
            let (begin, end) = (sector * SECTOR, (sector + 1) * SECTOR);
            left.resize(left.len().max(end), 0);
            left[begin..end].fill(0);
            let there = now.get(begin..end.min(now.len())).unwrap_or_default();
            left[begin..begin + there.len()].copy_from_slice(there);
        }
    }
    left.resize(length, 0);
    left
}

/// Returns for each sector that is not left as it was synced the number of the write after which it is as it is left.
/// The first `lengths` writes have changed the length on the disk.
fn survivors(
    mut length: usize,
    pending: &[&What],
    lengths: usize,
    fate: Fate,
    dice: &mut Rng,
) -> BTreeMap<usize, usize> {
    let mut survivors = BTreeMap::new();
    // From this sector on, nothing reached the disk: the file had been cut there, but not on the disk.
    let mut beyond = usize::MAX;
    for (number, what) in pending.iter().enumerate() {
        let before = length;
        length = what.length(before);
        match what {
            What::Bytes(offset, bytes) if !bytes.is_empty() && fate.keeps(number, dice) => {
                let sectors = offset / SECTOR..(offset + bytes.len()).div_ceil(SECTOR);
                for sector in sectors.take_while(|sector| *sector < beyond) {
                    if !fate.is_torn(number) || dice.bool() {
                        survivors.insert(sector, number);
                    }
                }
            }
            What::Length(cut) if *cut < before && number < lengths => {
                survivors.extend((cut / SECTOR..before.div_ceil(SECTOR)).map(|sector| (sector, number)));
            }
            What::Length(cut) if *cut < before => beyond = beyond.min(cut.div_ceil(SECTOR)),
            _ => {}
        }
    }
    survivors
}

#[cfg(test)]
mod tests;
