//! Reads the pages of a damaged file, whether the database still refers to them or not.
//!
//! A database that writes never overwrites what it refers to. So a page may be there in several versions, and each entry
//! that can be read in any of them was written once. Of each object the entry with the latest revision counts; if that is a
//! deletion, the object is left out. What is lost: an object may be older than it was, or deleted, if the page with its
//! latest entry cannot be read.
//!
//! The layout of a leaf page, in little endian, after redb's `docs/design.md`:
//!
//! | bytes | meaning |
//! |---|---|
//! | 1 | 1: a leaf |
//! | 1 | unused |
//! | 2 | number of pairs |
//! | 4 for each pair | end of its key from the start of the page; only if keys differ in length |
//! | 4 for each pair | end of its value; only if values differ in length |
//! | n | the keys |
//! | n | the values |

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use portolan_schema::Resource;

use super::{
    entry::{self, Entry},
    file,
};
use crate::StoredObject;

/// Size of the smallest page; every page begins at a multiple of it.
const PAGE: usize = 4096;
const LEAF: u8 = 1;
const HEAD: usize = 4;
/// Bytes of a revision, which is the key of the log, and of a number.
const NUMBER: usize = 8;

/// The objects, and how many there were.
type Found = (Vec<(Resource, Arc<StoredObject>)>, Option<u64>);

/// The latest revision of an object, and the object; `None` if it is deleted.
type Latest = (u64, Option<Arc<StoredObject>>);

/// Reads all pages of a file. Returns the objects in the order of their revisions, and how many there were if that can be
/// read.
pub(super) fn read(file: &[u8]) -> Found {
    let mut latest: HashMap<(Resource, Box<str>), Latest> = HashMap::new();
    let (mut seen, mut counted) = (HashSet::new(), BTreeMap::new());
    for start in (0..file.len()).step_by(PAGE) {
        let Some(page) = file.get(start..) else { break };
        for (revision, entry) in log_entries(page).unwrap_or_default() {
            // Most entries are in several versions of their page.
            if revision == 0 || seen.contains(&revision) {
                continue;
            }
            let Ok(entry) = entry::decode(entry) else { continue };
            seen.insert(revision);
            let (resource, key, object) = match entry {
                Entry::Written(resource, draft) => {
                    (resource, draft.key().into(), Some(Arc::new(draft.at(revision))))
                }
                Entry::Deleted(resource, key) => (resource, key, None),
            };
            let known = latest.entry((resource, key)).or_insert((0, None));
            if revision > known.0 {
                *known = (revision, object);
            }
        }
        if let Some((revision, objects)) = numbers(page).as_ref().and_then(file::counted) {
            counted.insert(revision, objects);
        }
    }
    let of = latest.into_iter();
    let mut objects: Vec<_> =
        of.filter_map(|((resource, _), (_, object))| Some((resource, object?))).collect();
    objects.sort_unstable_by_key(|(_, object)| object.revision());
    (objects, counted.pop_last().and_then(|(_, objects)| objects))
}

/// Returns the revisions and entries of a page, if it may be a leaf of the log: keys of 8 bytes, values of any length.
fn log_entries(page: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let pairs = pairs(page)?;
    let keys = HEAD + pairs * 4;
    let mut at = keys.checked_add(pairs.checked_mul(NUMBER)?)?;
    let mut entries = Vec::new();
    for pair in 0..pairs {
        let end = number32(page, HEAD + pair * 4)?;
        entries.push((number64(page, keys + pair * NUMBER)?, page.get(at..end)?));
        at = end;
    }
    Some(entries)
}

/// Returns the names and numbers of a page, if it may be a leaf of the numbers: keys of any length, values of 8 bytes.
fn numbers(page: &[u8]) -> Option<HashMap<&str, u64>> {
    let pairs = pairs(page)?;
    let mut at = HEAD + pairs * 4;
    let mut names = Vec::new();
    for pair in 0..pairs {
        let end = number32(page, HEAD + pair * 4)?;
        names.push(std::str::from_utf8(page.get(at..end)?).ok()?);
        at = end;
    }
    let value = |(pair, name)| Some((name, number64(page, at + pair * NUMBER)?));
    names.into_iter().enumerate().map(value).collect()
}

/// Returns the number of pairs of a leaf.
fn pairs(page: &[u8]) -> Option<usize> {
    let (&[kind, _, low, high], _) = page.split_first_chunk::<HEAD>()?;
    let pairs = usize::from(u16::from_le_bytes([low, high]));
    (kind == LEAF && pairs > 0).then_some(pairs)
}

fn number32(page: &[u8], at: usize) -> Option<usize> {
    let bytes = page.get(at..)?.first_chunk()?;
    usize::try_from(u32::from_le_bytes(*bytes)).ok()
}

fn number64(page: &[u8], at: usize) -> Option<u64> {
    page.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn arbitrary_bytes_have_no_objects(
            mut bytes in prop::collection::vec(any::<u8>(), 0..9000),
            pairs in 0_u16..3,
        ) {
            if let Some(head) = bytes.first_chunk_mut() {
                let [low, high] = pairs.to_le_bytes();
                *head = [LEAF, 0, low, high];
            }
            prop_assert!(read(&bytes).0.is_empty());
        }
    }
}
