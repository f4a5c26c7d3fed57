//! Reads the files of the folder.
//!
//! Other programs write to the folder, so anything may have the name of a manifest. Only regular files are read, up
//! to a limit of size: reading a FIFO or a device could block for ever.

use std::{
    collections::{BTreeMap, HashSet},
    ffi::{OsStr, OsString},
    fs::{self, FileType, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;
use thiserror::Error;

/// Most bytes of a file in a folder that is kept in sync.
pub(super) const LIMIT: u64 = 64 << 20;

/// The manifest files by path, without hidden ones (such as `..data`).
pub(super) type Contents = BTreeMap<PathBuf, Found>;

/// The result of reading a file.
#[derive(Debug)]
pub(super) enum Found {
    /// The whole content.
    Content(Vec<u8>),
    /// Another program is writing the file.
    Unfinished,
    /// The file is not there. It has to stay away to count as removed.
    Missing,
    /// The file cannot be used.
    Unreadable(Unreadable),
}

/// The reason why a file cannot be read.
#[derive(Debug, Error)]
pub(super) enum Unreadable {
    #[error("the file cannot be read: {0}")]
    Failed(#[from] io::Error),
    #[error("this is {0}, and a manifest is a regular file; put one in its place, or remove it")]
    NotRegular(&'static str),
    #[error("the file has more than the {0} bytes that a manifest may have; split it")]
    TooLarge(u64),
}

/// Reads the folder. May block as long as its file system does. Files whose names are in `unfinished`, and those with more
/// than `limit` bytes, are not read.
pub(super) fn read(folder: &Path, unfinished: &HashSet<OsString>, limit: u64) -> io::Result<Contents> {
    let mut contents = Contents::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(name) = path.file_name().filter(|_| is_manifest(&path)) else { continue };
        let found = if unfinished.contains(name) { Found::Unfinished } else { content(&path, limit) };
        contents.insert(path, found);
    }
    Ok(contents)
}

fn content(path: &Path, limit: u64) -> Found {
    read_regular(path, limit).map_or_else(Found::Unreadable, Found::Content)
}

/// Returns the content of a regular file with at most `limit` bytes. Symbolic links are followed: mounted configuration
/// consists of them.
pub(super) fn read_regular(path: &Path, limit: u64) -> Result<Vec<u8>, Unreadable> {
    // Checked before opening: opening a device may have effects.
    check_regular(fs::metadata(path)?.file_type())?;
    let without_waiting = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(without_waiting).open(path)?;
    // Checked again: another file may have the name meanwhile.
    let found = file.metadata()?;
    check_regular(found.file_type())?;
    if found.len() > limit {
        return Err(Unreadable::TooLarge(limit));
    }
    let mut content = Vec::new();
    content.try_reserve(usize::try_from(found.len()).unwrap_or(0)).map_err(io::Error::from)?;
    // The length in the metadata is no limit: files in /proc have length 0.
    file.take(limit.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > limit { Err(Unreadable::TooLarge(limit)) } else { Ok(content) }
}

fn check_regular(kind: FileType) -> Result<(), Unreadable> {
    let what = match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_char_device() || kind.is_block_device() => "a device",
        _ => "no file",
    };
    Err(Unreadable::NotRegular(what))
}

fn is_manifest(path: &Path) -> bool {
    let is_hidden = path.file_name().and_then(OsStr::to_str).is_none_or(|name| name.starts_with('.'));
    let extension = path.extension().and_then(OsStr::to_str);
    !is_hidden && matches!(extension, Some("yaml" | "yml" | "json")) && !path.is_dir()
}
