//! The file of a store, damaged. It is refused as damaged, or it has the content that it had after the last transaction or the
//! one before. Opening it may mend it, and the mended file has the same content. Objects are rescued from any file.
//!
//! Choices edit a file. Other inputs are the file.

use std::ops::Range;
use std::sync::LazyLock;

use portolan_store::OpenError;
use portolan_store::fuzzing::{Content, files, load, rescue};

use crate::script::Script;

/// Where the file says how many pages a region has, after redb's `docs/design.md`.
const GEOMETRY: Range<usize> = 16..24;
/// Bytes of a page.
const PAGE: usize = 4096;
/// Bytes at the beginning of the file that say where everything is.
const HEAD: usize = 320;
/// Bytes at the beginning of a page that say what is in it.
const PAGE_HEAD: usize = 64;
/// The most bytes of one edit, unless that is a page.
const LONGEST: usize = 64;
/// The most edits.
const MOST: usize = 12;

/// The files after each transaction, with what they contain.
static FILES: LazyLock<Vec<(Vec<u8>, Content)>> = LazyLock::new(|| {
    let content = |file: Vec<u8>| (file.clone(), load(file).expect("it is whole").0);
    files().into_iter().map(content).collect()
});

/// Reads the file.
pub(crate) fn run(bytes: &[u8]) {
    let Some(mut script) = Script::of(bytes) else {
        read(bytes.to_vec());
        return;
    };
    read_edited(&mut script);
}

/// Reads a file with some damage. Returns its content, if it is not refused, and that of the file without the damage.
fn read_edited(script: &mut Script<'_>) -> (Option<Content>, &'static Content) {
    let (last, file) = edited(script);
    let found = read(file);
    if let Some(found) = &found {
        let before = last.saturating_sub(1);
        let was_there = FILES[before..=last].iter().any(|(_, content)| content == found);
        assert!(was_there, "content of no transaction");
    }
    (found, &FILES[last].1)
}

/// Returns the content of the file, if it is not damaged.
fn read(file: Vec<u8>) -> Option<Content> {
    rescue(&file);
    match load(file) {
        Ok((found, mended)) => {
            let (again, _) = load(mended).expect("a mended file is whole");
            assert_eq!(again, found);
            Some(found)
        }
        Err(OpenError::Corrupt { .. } | OpenError::Newer { .. }) => None,
        Err(error) => panic!("not taken for damaged: {error}"),
    }
}

/// Returns a file with some damage, and the number of its last transaction.
fn edited(script: &mut Script<'_>) -> (usize, Vec<u8>) {
    let last = FILES.len() - 1 - script.below(FILES.len());
    let mut file = FILES[last].0.clone();
    for _ in 0..MOST {
        if script.is_over() {
            break;
        }
        let at = place(file.len(), script);
        let end = file.len().min(at + 1 + script.below(LONGEST));
        match script.below(8) {
            0 | 1 => file[at] ^= 1 << script.below(8),
            2 => file[at] = script.byte(),
            3 => file[at..end].fill(script.pick(&[0, 255])),
            4 => {
                let new = script.bytes(end - at);
                file[at..at + new.len()].copy_from_slice(new);
            }
            5 => {
                let to = place(file.len() - (end - at), script);
                file.copy_within(at..end, to);
            }
            // A page of another time, or in another place.
            6 => {
                let other = &FILES[script.below(FILES.len())].0;
                let from = PAGE * script.below(other.len() / PAGE);
                // Not the first one: with it, the file could be whole and of another time.
                let to = PAGE * (1 + script.below(file.len() / PAGE - 1));
                file[to..to + PAGE].copy_from_slice(&other[from..from + PAGE]);
            }
            _ if script.flag() => file.truncate(at.max(1)),
            _ => file.resize(file.len() + PAGE * script.below(40), script.pick(&[0, 255])),
        }
        if file.len() < 2 * PAGE {
            break;
        }
    }
    // redb refuses a page outside of all regions. Its debug build, which cargo-fuzz makes, panics instead.
    if cfg!(fuzzing)
        && let Some(geometry) = file.get_mut(GEOMETRY)
    {
        geometry.copy_from_slice(&FILES[last].0[GEOMETRY]);
    }
    (last, file)
}

/// Returns a place in the head of the file, at the beginning of a page, or anywhere.
fn place(length: usize, script: &mut Script<'_>) -> usize {
    let length = length.max(1);
    let place = match script.below(3) {
        0 => script.below(HEAD),
        1 => PAGE * script.below(length.div_ceil(PAGE)) + script.below(PAGE_HEAD),
        _ => script.below(length),
    };
    place.min(length - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_in_a_file_can_be_rescued() {
        for (file, content) in FILES.iter() {
            assert_eq!(rescue(file), content.objects);
        }
        let (_, content) = FILES.last().expect("a file");
        assert!(content.objects.len() > 8, "{}", content.objects.len());
    }

    #[test]
    fn damage_is_found_and_sometimes_mended() {
        let (mut refused, mut older, mut latest) = (0, 0, 0);
        for seed in 0..256 {
            let bytes = crate::script::random(seed, 24);
            match read_edited(&mut Script::new(&bytes[1..])) {
                (None, _) => refused += 1,
                (Some(found), content) if found == *content => latest += 1,
                (Some(_), _) => older += 1,
            }
        }
        assert!(refused > 64 && older > 2 && latest > 8, "{refused} {older} {latest}");
    }
}
