//! What a loss of power leaves of the writes to a file that no sync covers. The tests of the embedded store use it, and
//! those of etcd.
//!
//! - The kernel writes pages when it likes, and the disk takes them in any order, a sector at a time. So each sector is as
//!   it was at some moment since the sync. It never has a later write without an earlier one to the same sector.
//! - A disk that writes parts of sectors may have any number of a write's first bytes ([`Fate::FirstBytes`], [`Fate::Torn`]).
//! - What is missing of a file reads as zeros.
//! - The length of a file is metadata. It may be older or newer than the sectors. What was cut off does not come back when
//!   the file grows again.

use std::collections::BTreeMap;

use fastrand::Rng;

/// Bytes that a disk writes as a whole. etcd relies on it: `minSectorSize` in its `wal/decoder.go`.
pub(super) const SECTOR: usize = 512;

/// A change of a file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// Bytes from an offset on.
    Bytes(usize, Vec<u8>),
    /// The file gets this length.
    Length(usize),
    /// The file gets this length, unless it is longer.
    #[allow(dead_code, reason = "the embedded store does not do it")]
    Least(usize),
}

impl Change {
    pub(super) fn apply(&self, content: &mut Vec<u8>) {
        content.resize(self.length(content.len()), 0);
        // No bytes do not make a file longer, wherever they are written.
        if let Self::Bytes(offset, bytes) = self
            && !bytes.is_empty()
        {
            content[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Returns the length after it of a file with this length.
    pub(super) fn length(&self, before: usize) -> usize {
        match self {
            Self::Bytes(_, bytes) if bytes.is_empty() => before,
            Self::Bytes(offset, bytes) => before.max(offset + bytes.len()),
            Self::Length(length) => *length,
            Self::Least(length) => before.max(*length),
        }
    }
}

/// Which writes since the last sync survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
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
    /// Those before one, and the first bytes of that one, any number of them.
    FirstBytes(usize),
    /// Of each write its first bytes, any number of them.
    Torn,
}

impl Fate {
    /// Returns any fate of a disk that writes sectors as a whole.
    pub(super) fn any(writes: usize, dice: &mut Rng) -> Self {
        match dice.usize(..6) {
            0 => Self::Nothing,
            1 => Self::Everything,
            2 => Self::Some,
            3 => Self::AllButOne(dice.usize(..writes)),
            4 => Self::First(dice.usize(..writes)),
            _ => Self::Sectors,
        }
    }

    /// Returns any fate.
    #[allow(dead_code, reason = "etcd relies on whole sectors")]
    pub(super) fn any_of_all(writes: usize, dice: &mut Rng) -> Self {
        match dice.usize(..8) {
            0 => Self::FirstBytes(dice.usize(..writes)),
            1 => Self::Torn,
            _ => Self::any(writes, dice),
        }
    }

    /// Returns how many of the first writes decide about the length.
    fn lengths(self, writes: usize, dice: &mut Rng) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Everything => writes,
            // The one that is lost may be a change of the length.
            Self::AllButOne(lost) => {
                if dice.bool() {
                    lost
                } else {
                    writes
                }
            }
            Self::First(last) | Self::FirstBytes(last) => last + usize::from(dice.bool()),
            Self::Some | Self::Sectors | Self::Torn => dice.usize(..=writes),
        }
    }

    /// Returns true if any sector of a write may survive by itself, or the write as a whole.
    fn keeps(self, write: usize, dice: &mut Rng) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything | Self::Sectors | Self::Torn => true,
            Self::Some => dice.bool(),
            Self::AllButOne(lost) => write != lost,
            Self::First(last) | Self::FirstBytes(last) => write <= last,
        }
    }

    fn is_torn(self, write: usize) -> bool {
        self == Self::Sectors || self == Self::First(write)
    }
}

/// Returns the content of a file that had `synced`, and then got writes that no sync covers.
pub(super) fn after(synced: Vec<u8>, pending: &[&Change], fate: Fate, dice: &mut Rng) -> Vec<u8> {
    let lengths = fate.lengths(pending.len(), dice);
    let length = pending[..lengths].iter().fold(synced.len(), |length, change| change.length(length));
    let mut left = if matches!(fate, Fate::Torn | Fate::FirstBytes(_)) {
        first_bytes(synced, pending, lengths, fate, dice)
    } else {
        sectors(synced, pending, lengths, fate, dice)
    };
    left.resize(length, 0);
    left
}

/// Returns what is there of a file with the first bytes of writes. The first `lengths` writes have changed the length on the
/// disk.
fn first_bytes(
    mut content: Vec<u8>,
    pending: &[&Change],
    lengths: usize,
    fate: Fate,
    dice: &mut Rng,
) -> Vec<u8> {
    for (number, change) in pending.iter().enumerate() {
        match change {
            Change::Bytes(offset, bytes) => {
                let kept = match fate {
                    Fate::FirstBytes(last) if number < last => bytes.len(),
                    Fate::FirstBytes(last) if number > last => 0,
                    _ => dice.usize(..=bytes.len()),
                };
                Change::Bytes(*offset, bytes[..kept].to_vec()).apply(&mut content);
            }
            change if number < lengths => change.apply(&mut content),
            _ => {}
        }
    }
    content
}

/// Returns what is there of a file, sector by sector. The first `lengths` writes have changed the length on the disk.
fn sectors(synced: Vec<u8>, pending: &[&Change], lengths: usize, fate: Fate, dice: &mut Rng) -> Vec<u8> {
    let mut sectors = vec![Vec::new(); pending.len()];
    for (sector, number) in survivors(synced.len(), pending, lengths, fate, dice) {
        sectors[number].push(sector);
    }
    let (mut left, mut now) = (synced.clone(), synced);
    for (change, sectors) in pending.iter().zip(sectors) {
        change.apply(&mut now);
        for sector in sectors {
            let (begin, end) = (sector * SECTOR, (sector + 1) * SECTOR);
            left.resize(left.len().max(end), 0);
            left[begin..end].fill(0);
            let there = now.get(begin..end.min(now.len())).unwrap_or_default();
            left[begin..begin + there.len()].copy_from_slice(there);
        }
    }
    left
}

/// Returns for each sector that is not left as it was synced the number of the write after which it is as it is left.
/// The first `lengths` writes have changed the length on the disk.
fn survivors(
    mut length: usize,
    pending: &[&Change],
    lengths: usize,
    fate: Fate,
    dice: &mut Rng,
) -> BTreeMap<usize, usize> {
    let mut survivors = BTreeMap::new();
    // From this sector on, nothing reached the disk: the file had been cut there, but not on the disk.
    let mut beyond = usize::MAX;
    for (number, change) in pending.iter().enumerate() {
        let before = length;
        length = change.length(before);
        match change {
            Change::Bytes(offset, bytes) if !bytes.is_empty() && fate.keeps(number, dice) => {
                let sectors = offset / SECTOR..(offset + bytes.len()).div_ceil(SECTOR);
                for sector in sectors.take_while(|sector| *sector < beyond) {
                    if !fate.is_torn(number) || dice.bool() {
                        survivors.insert(sector, number);
                    }
                }
            }
            Change::Length(cut) if *cut < before && number < lengths => {
                survivors.extend((cut / SECTOR..before.div_ceil(SECTOR)).map(|sector| (sector, number)));
            }
            Change::Length(cut) if *cut < before => beyond = beyond.min(cut.div_ceil(SECTOR)),
            _ => {}
        }
    }
    survivors
}
