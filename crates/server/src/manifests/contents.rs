//! What is in the files of the folder.

use std::{
    collections::{BTreeMap, HashSet},
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};

use thiserror::Error;

/// Larger files are not read.
const LIMIT: u64 = 64 << 20;

/// The manifest files, in order; hidden ones (`..data` among them) are left out.
pub(super) type Contents = BTreeMap<PathBuf, Found>;

/// What was found in the place of a file.
#[derive(Debug)]
pub(super) enum Found {
    /// All of it.
    Content(Vec<u8>),
    /// Somebody is writing to it.
    Unfinished,
    /// Nothing that can be used.
    Unreadable(Unreadable),
}

/// Why a file cannot be read.
#[derive(Debug, Error)]
pub(super) enum Unreadable {
    #[error("the file cannot be read: {0}")]
    Failed(#[from] io::Error),
    #[error("the file has {0} bytes, more than the {LIMIT} that a manifest may have; split it")]
    TooLarge(u64),
}

/// Reads the folder; files of the names in `unfinished` are left alone.
pub(super) fn read(folder: &Path, unfinished: &HashSet<OsString>) -> io::Result<Contents> {
    let mut contents = Contents::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(name) = path.file_name().filter(|_| is_manifest(&path)) else { continue };
        let found = if unfinished.contains(name) { Found::Unfinished } else { content(&path) };
        contents.insert(path, found);
    }
    Ok(contents)
}

fn content(path: &Path) -> Found {
    let read = || {
        let size = fs::metadata(path)?.len();
        if size > LIMIT { Err(Unreadable::TooLarge(size)) } else { Ok(fs::read(path)?) }
    };
    read().map_or_else(Found::Unreadable, Found::Content)
}

fn is_manifest(path: &Path) -> bool {
    let is_hidden = path.file_name().and_then(OsStr::to_str).is_none_or(|name| name.starts_with('.'));
    let extension = path.extension().and_then(OsStr::to_str);
    !is_hidden && matches!(extension, Some("yaml" | "yml" | "json")) && !path.is_dir()
}
