//! What a loss of power leaves of a folder: what was synced, and of all other writes any part.

use fastrand::Rng;

use super::{
    super::super::journal::{Event, What},
    writes::{self, Change, Fate},
};

/// The files of a folder on the disk, as far as they matter.
#[derive(Debug, Default)]
pub(super) struct Platter {
    files: Vec<Content>,
    /// The file that has the name of the store's file for certain.
    named: Option<usize>,
    /// The file that has been given the name since.
    renamed: Option<usize>,
    /// The file that was created last.
    created: Option<usize>,
}

#[derive(Debug, Default, Clone)]
struct Content {
    /// What is on the disk.
    synced: Vec<u8>,
    /// What was written since, and may be.
    pending: Vec<Change>,
}

/// What is found after the power is back.
#[derive(Debug)]
pub(super) struct Left {
    /// The store's file.
    pub(super) file: Option<Vec<u8>>,
    /// The file that was to take its place.
    pub(super) new: Option<Vec<u8>>,
}

impl Platter {
    /// Applies an event.
    pub(super) fn apply(&mut self, event: &Event, dice: &mut Rng) {
        if self.files.len() <= event.file {
            self.files.resize_with(event.file + 1, Content::default);
        }
        let content = &mut self.files[event.file];
        match &event.what {
            What::Opened(bytes) => {
                if self.named.is_none() && self.renamed.is_none() {
                    (self.named, content.synced) = (Some(event.file), bytes.clone());
                }
            }
            What::Created => self.created = Some(event.file),
            What::Wrote(offset, bytes) => {
                content.pending.push(Change::Bytes(position(*offset), bytes.clone()));
            }
            What::Length(length) => content.pending.push(Change::Length(position(*length))),
            What::Synced => content.sync(),
            What::SyncFailed => {
                let synced = content.left(dice);
                *content = Content { synced, pending: Vec::new() };
            }
            What::Renamed => self.renamed = Some(event.file),
            What::FolderSynced => self.named = self.renamed.take().or(self.named),
        }
    }

    /// Returns what a loss of power leaves now.
    pub(super) fn left(&self, dice: &mut Rng) -> Left {
        let is_renamed = self.renamed.is_some() && dice.bool();
        let named = if is_renamed { self.renamed } else { self.named };
        let new = self.created.filter(|_| self.named != self.created && !is_renamed && dice.bool());
        let mut content = |file: usize| self.files[file].left(dice);
        Left { file: named.map(&mut content), new: new.map(&mut content) }
    }
}

impl Content {
    /// Returns what a loss of power leaves of the content.
    fn left(&self, dice: &mut Rng) -> Vec<u8> {
        if self.pending.is_empty() {
            return self.synced.clone();
        }
        let pending: Vec<&Change> = self.pending.iter().collect();
        writes::after(self.synced.clone(), &pending, Fate::any_of_all(pending.len(), dice), dice)
    }

    /// Everything that was written is on the disk.
    fn sync(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            change.apply(&mut self.synced);
        }
    }
}

fn position(in_file: u64) -> usize {
    usize::try_from(in_file).unwrap()
}
