//! Reads the pages of a damaged file, whether the database still refers to them or not.
//!
//! A database that writes never overwrites what it refers to. So a page may be there in several versions, and each entry
//! that can be read in any of them was written once. Of each object the entry with the latest revision counts; if that is a
//! deletion, the object is left out. What is lost: an object may be older than it was, or deleted, if the page with its
//! latest entry cannot be read.
//!
//! A write that failed may have left entries, too, and its revisions were assigned again. Different entries of one
//! revision are therefore not used. Their objects are doubtful, unless there is a later entry.
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
    collections::{BTreeMap, HashMap},
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

/// What the pages of a file have.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The objects, in the order of their revisions.
    pub(super) objects: Vec<(Resource, Arc<StoredObject>)>,
    /// How many there were, if that can be read.
    pub(super) of: Option<u64>,
    /// The objects of which a later version may have been written.
    pub(super) doubtful: Vec<(Resource, Box<str>)>,
}

/// The latest version of an object.
#[derive(Debug, Default)]
struct Latest {
    /// `None` if it is deleted, or if no version is certain.
    object: Option<Arc<StoredObject>>,
    is_doubtful: bool,
}

/// Reads all pages of a file.
pub(super) fn read(file: &[u8]) -> Found {
    // Of each revision the different entries.
    let mut log: BTreeMap<u64, Vec<&[u8]>> = BTreeMap::new();
    let mut counted = BTreeMap::new();
    for start in (0..file.len()).step_by(PAGE) {
        let Some(page) = file.get(start..) else { break };
        for (revision, entry) in log_entries(page) {
            // Most entries are in several versions of their page.
            let is_known = log.get(&revision).is_some_and(|known| known.contains(&entry));
            if revision > 0 && !is_known && entry::decode(entry).is_ok() {
                log.entry(revision).or_default().push(entry);
            }
        }
        if let Some((revision, objects)) = numbers(page).as_ref().and_then(file::counted) {
            counted.insert(revision, objects);
        }
    }
    let of = counted.pop_last().and_then(|(_, objects)| objects);
    Found { of, ..latest(&log) }
}

/// Returns the latest version of each object.
fn latest(log: &BTreeMap<u64, Vec<&[u8]>>) -> Found {
    let mut latest: HashMap<(Resource, Box<str>), Latest> = HashMap::new();
    for (&revision, entries) in log {
        let is_certain = entries.len() == 1;
        for entry in entries.iter().filter_map(|entry| entry::decode(entry).ok()) {
            let (resource, key, object) = match entry {
                Entry::Written(resource, draft) => {
                    (resource, draft.key().into(), Some(Arc::new(draft.at(revision))))
                }
                Entry::Deleted(resource, key) => (resource, key, None),
            };
            let known = latest.entry((resource, key)).or_default();
            known.is_doubtful = !is_certain;
            if is_certain {
                known.object = object;
            }
        }
    }
    let mut found = Found::default();
    for ((resource, key), Latest { object, is_doubtful }) in latest {
        found.objects.extend(object.map(|object| (resource, object)));
        if is_doubtful {
            found.doubtful.push((resource, key));
        }
    }
    found.objects.sort_unstable_by_key(|(_, object)| object.revision());
    found.doubtful.sort_unstable();
    found
}

/// Returns the revisions and entries of a page, if it may be a leaf of the log: keys of 8 bytes, values of any length. Ends
/// before the first entry whose place is not within the page.
fn log_entries(page: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let pairs = pairs(page).unwrap_or_default();
    let keys = HEAD + pairs * 4;
    let mut at = keys + pairs * NUMBER;
    (0..pairs).map_while(move |pair| {
        let end = number32(page, HEAD + pair * 4)?;
        let entry = page.get(at..end)?;
        at = end;
        Some((number64(page, keys + pair * NUMBER)?, entry))
    })
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

/// Returns a leaf of the log with these entries.
#[cfg(test)]
pub(super) fn leaf(entries: &[(u64, &[u8])]) -> Vec<u8> {
    let [low, high] = u16::try_from(entries.len()).unwrap().to_le_bytes();
    let mut end = HEAD + entries.len() * (4 + NUMBER);
    let ends = entries.iter().flat_map(|(_, entry)| {
        end += entry.len();
        u32::try_from(end).unwrap().to_le_bytes()
    });
    let mut page: Vec<u8> = [LEAF, 0, low, high].into_iter().chain(ends).collect();
    page.extend(entries.iter().flat_map(|(revision, _)| revision.to_le_bytes()));
    page.extend(entries.iter().flat_map(|(_, entry)| entry.iter()));
    page.resize(page.len().next_multiple_of(PAGE), 0);
    page
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Change, Draft, transaction::Write};

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
            prop_assert!(read(&bytes).objects.is_empty());
        }
    }

    /// Returns an entry of a Node with a label.
    fn node(name: &str, label: &str) -> Vec<u8> {
        let value = portolan_schema::json::json!({"metadata": {"name": name, "labels": {"is": label}}});
        let new = Draft::new(Resource::Node, value.as_object().unwrap()).at(1);
        let change = Change { revision: 1, old: None, new: Some(Arc::new(new)) };
        entry::encode(&Write { resource: Resource::Node, change }).unwrap()
    }

    /// Returns the names and revisions of the objects, and the names of the doubtful ones.
    fn names(found: &Found) -> (Vec<(&str, u64)>, Vec<&str>) {
        let objects = found.objects.iter().map(|(_, object)| (object.key(), object.revision()));
        (objects.collect(), found.doubtful.iter().map(|(_, key)| &**key).collect())
    }

    #[test]
    fn an_entry_of_a_failed_write_is_not_taken_for_one_of_a_later_write() {
        let [a1, a2, failed, b, c] = [("a", "1"), ("a", "2"), ("a", "failed"), ("b", "1"), ("c", "1")]
            .map(|(name, is)| node(name, is));
        let [first, second] =
            [leaf(&[(5, &a1), (6, &failed), (7, &b)]), leaf(&[(5, &a1), (6, &a2), (7, &c)])];
        for file in [[&*first, &second].concat(), [&*second, &first].concat()] {
            assert_eq!(names(&read(&file)), (vec![("a", 5)], vec!["a", "b", "c"]));
        }
        // A later version is certain.
        let file = [first, second, leaf(&[(8, &a1), (9, &c)])].concat();
        assert_eq!(names(&read(&file)), (vec![("a", 8), ("c", 9)], vec!["b"]));
    }

    #[test]
    fn a_leaf_has_the_entries_before_the_first_bad_place() {
        let [a, b, c] = ["a", "b", "c"].map(|name| node(name, "1"));
        let mut page = leaf(&[(5, &a), (6, &b), (7, &c)]);
        page[HEAD + 2 * 4..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(names(&read(&page)).0, [("a", 5), ("b", 6)]);
    }
}
