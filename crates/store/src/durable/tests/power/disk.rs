//! What a loss of power leaves of a folder: what was synced, and of all other writes any part.

use super::super::super::journal::{Event, What};

/// Bytes of a sector: a disk may write some sectors of a write and not others.
const SECTOR: usize = 512;

/// A source of random numbers (`SplitMix64`) that a seed repeats.
#[derive(Debug, Clone)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap()
    }

    pub(super) fn coin(&mut self) -> bool {
        self.below(2) == 0
    }
}

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
    pending: Vec<What>,
}

/// What is found after the power is back.
#[derive(Debug)]
pub(super) struct Left {
    /// The store's file.
    pub(super) file: Option<Vec<u8>>,
    /// The file that was to take its place.
    pub(super) new: Option<Vec<u8>>,
}

/// Which of the pending writes survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Nothing,
    Everything,
    /// Each write by itself.
    Some,
    /// All but one.
    AllButOne(usize),
    /// Those before one, and a part of that one.
    First(usize),
    /// Each sector of each write by itself.
    Sectors,
    /// Of each write its first bytes, any number of them.
    Torn,
}

impl Platter {
    /// Applies an event.
    pub(super) fn apply(&mut self, event: &Event, dice: &mut Dice) {
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
            What::Wrote(..) | What::Length(_) => content.pending.push(event.what.clone()),
            What::Synced => {
                let synced = content.after(Fate::Everything, dice);
                *content = Content { synced, pending: Vec::new() };
            }
            What::SyncFailed => {
                let synced = content.left(dice);
                *content = Content { synced, pending: Vec::new() };
            }
            What::Renamed => self.renamed = Some(event.file),
            What::FolderSynced => self.named = self.renamed.take().or(self.named),
        }
    }

    /// Returns what a loss of power leaves now.
    pub(super) fn left(&self, dice: &mut Dice) -> Left {
        let is_renamed = self.renamed.is_some() && dice.coin();
        let named = if is_renamed { self.renamed } else { self.named };
        let new = self.created.filter(|_| self.named != self.created && !is_renamed && dice.coin());
        let mut content = |file: usize| self.files[file].left(dice);
        Left { file: named.map(&mut content), new: new.map(&mut content) }
    }
}

impl Content {
    fn left(&self, dice: &mut Dice) -> Vec<u8> {
        let which = dice.below(self.pending.len());
        let fates = [
            Fate::Nothing,
            Fate::Everything,
            Fate::Some,
            Fate::AllButOne(which),
            Fate::First(which),
            Fate::Sectors,
            Fate::Torn,
        ];
        self.after(fates[dice.below(fates.len())], dice)
    }

    fn after(&self, fate: Fate, dice: &mut Dice) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        for (number, what) in self.pending.iter().enumerate() {
            let is_whole = match fate {
                Fate::Nothing => false,
                Fate::Everything => true,
                Fate::Some => dice.coin(),
                Fate::AllButOne(lost) => number != lost,
                Fate::First(last) => number < last,
                Fate::Sectors | Fate::Torn => matches!(what, What::Length(_)) && dice.coin(),
            };
            match what {
                What::Length(length) if is_whole => bytes.resize(usize::try_from(*length).unwrap(), 0),
                What::Wrote(offset, data) => {
                    let offset = usize::try_from(*offset).unwrap();
                    if is_whole {
                        put(&mut bytes, offset, data);
                    } else if fate == Fate::Torn || fate == Fate::First(number) {
                        put(&mut bytes, offset, &data[..dice.below(data.len() + 1)]);
                    } else if fate == Fate::Sectors {
                        let sectors = data.chunks(SECTOR).enumerate();
                        sectors.filter(|_| dice.coin()).for_each(|(number, sector)| {
                            put(&mut bytes, offset + number * SECTOR, sector);
                        });
                    }
                }
                _ => {}
            }
        }
        bytes
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if !data.is_empty() {
        bytes.resize(bytes.len().max(offset + data.len()), 0);
        bytes[offset..offset + data.len()].copy_from_slice(data);
    }
}
