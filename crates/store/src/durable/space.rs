//! Room on the disk that is kept for what makes room.
//!
//! A deletion writes, too: it needs pages before it gives any back. So a file of its own holds some space, which is given
//! to the disk for the time of a deletion when there is no other. Everything else is written only while the reserve is
//! whole; so it cannot take it.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, fallocate, statvfs};

/// Bytes of the reserve. A group of deletions under pressure ([`super::queue`]) changes some hundred pages of 4 KiB.
const RESERVE: u64 = 4 << 20;
/// Bytes that have to be free beside the reserve before a full disk counts as mended. Any object fits.
const HEADROOM: u64 = 4 << 20;
/// The smallest part of the reserve that is worth having.
const LEAST: u64 = 64 << 10;
const FILE_NAME: &str = "reserve";
/// `st_blocks` counts these (`stat(2)`).
const BLOCK: u64 = 512;

/// The reserve of a data folder, and whether it has been needed.
#[derive(Debug)]
pub(super) struct Space {
    folder: PathBuf,
    /// Whether only what makes room is written.
    pub(super) is_full: bool,
    /// Whether something was deleted since room was last looked for.
    pub(super) has_freed: bool,
}

impl Space {
    /// Takes the reserve of a folder. Where it cannot be whole, the disk counts as full.
    pub(super) fn take(folder: &Path) -> Self {
        let mut space = Self { folder: folder.to_owned(), is_full: false, has_freed: false };
        space.is_full = !space.restore();
        space
    }

    /// Takes as much of the reserve as there is room for; whether it is whole.
    pub(super) fn restore(&self) -> bool {
        self.grow().unwrap_or_else(|error| {
            tracing::debug!(%error, "the reserve on the disk cannot be taken");
            false
        })
    }

    /// Gives the reserve to the disk.
    pub(super) fn release(&self) {
        // What is not there is given already.
        if let Ok(file) = OpenOptions::new().write(true).open(self.path())
            && let Err(error) = file.set_len(0)
        {
            tracing::warn!(%error, "the reserve on the disk cannot be given back");
        }
    }

    /// Whether any object can be written: the reserve is whole, and beside it there is room.
    pub(super) fn is_mended(&self) -> bool {
        self.restore() && self.has_headroom()
    }

    fn has_headroom(&self) -> bool {
        statvfs(&self.folder).is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) >= HEADROOM)
    }

    fn grow(&self) -> io::Result<bool> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(self.path())?;
        if holds(&file)? >= RESERVE {
            return Ok(true);
        }
        let mut wanted = RESERVE;
        while wanted >= LEAST {
            match reserve(&file, wanted) {
                Ok(()) => return Ok(wanted == RESERVE),
                Err(error) if is_full(&error) => {
                    // A part may have been taken, which others could need.
                    file.set_len(0)?;
                    wanted /= 2;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn path(&self) -> PathBuf {
        self.folder.join(FILE_NAME)
    }
}

/// Whether an error says that there is no room.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn holds(file: &File) -> io::Result<u64> {
    let found = file.metadata()?;
    Ok(found.len().min(found.blocks().saturating_mul(BLOCK)))
}

fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes).map_err(io::Error::from) {
        // Not every file system can; then what is written takes the room.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            let zeros = io::copy(&mut io::Read::take(io::repeat(0), bytes), &mut &*file)?;
            if zeros == bytes { file.sync_data() } else { Err(io::ErrorKind::StorageFull.into()) }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_takes_room_and_gives_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let space = Space::take(folder.path());
        let held = || holds(&File::open(folder.path().join(FILE_NAME)).unwrap()).unwrap();
        assert_eq!((space.is_full, held()), (false, RESERVE));
        space.release();
        assert_eq!(held(), 0);
        assert!(space.restore() && space.restore());
        assert_eq!(held(), RESERVE);
        assert!(Space::take(&folder.path().join("missing")).is_full);
    }
}
