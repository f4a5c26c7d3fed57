//! What is in the files of the folder.
//!
//! Other programs write there, so anything may stand under the name of a manifest. Only regular files are read, as far
//! as a manifest may go; a FIFO or a device would keep the reader for ever.

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
    #[error("this is {0}, and a manifest is a regular file; put one in its place, or remove it")]
    NotRegular(&'static str),
    #[error("the file has more than the {LIMIT} bytes that a manifest may have; split it")]
    TooLarge,
}

/// Reads the folder, which may take as long as its file system likes; files of the names in `unfinished` are left
/// alone.
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
    read_regular(path).map_or_else(Found::Unreadable, Found::Content)
}

/// The content of a regular file. Links are followed: mounted configuration consists of them.
fn read_regular(path: &Path) -> Result<Vec<u8>, Unreadable> {
    // Before it is opened: opening a device may do something.
    check_regular(fs::metadata(path)?.file_type())?;
    let without_waiting = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(without_waiting).open(path)?;
    // And after: another file may have taken the name.
    let found = file.metadata()?;
    check_regular(found.file_type())?;
    let mut content = Vec::new();
    content.try_reserve(usize::try_from(found.len().min(LIMIT)).unwrap_or(0)).map_err(io::Error::from)?;
    // The length that the file says it has is no bound: files of /proc say 0.
    file.take(LIMIT + 1).read_to_end(&mut content)?;
    if content.len() as u64 > LIMIT { Err(Unreadable::TooLarge) } else { Ok(content) }
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
