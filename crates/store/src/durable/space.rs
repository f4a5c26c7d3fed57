//! Room on the disk that is kept for what makes room.
//!
//! A deletion writes, too: it needs pages before it gives any back. So a file of its own holds some space, which is given
//! to the disk for the time of a deletion when there is no other. Everything else is written only while the reserve is
//! whole; so it cannot take it.

use std::{
    fs::{File, OpenOptions},
    io::{self, Seek, SeekFrom},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::fs::{FallocateFlags, fallocate, statvfs};

/// Bytes of the reserve. A group of deletions under pressure ([`super::queue`]) changes some hundred pages of 4 KiB.
const RESERVE: u64 = 4 << 20;
/// Bytes that have to be free beside the reserve before a full disk counts as mended. Any object fits.
const HEADROOM: u64 = 4 << 20;
/// Parts of the reserve smaller than this are not tried one by one.
const LEAST: u64 = 64 << 10;
/// When at least this part of the file is free, or held by the history alone, it is worth making short.
const WORTH: u64 = 4;
/// The file is not made shorter more often than this, since that reads and moves all of it.
const PAUSE: Duration = Duration::from_secs(10);
const FILE_NAME: &str = "reserve";
/// `st_blocks` counts these (`stat(2)`).
const BLOCK: u64 = 512;

/// The reserve of a data folder, and whether it has been needed.
#[derive(Debug)]
pub(super) struct Space {
    folder: PathBuf,
    /// Whether only what makes room is written.
    pub(super) is_full: bool,
    /// Bytes that have become free within the file since it was last made short. What is written later uses some of
    /// them, so there may be fewer.
    pub(super) loose: u64,
    /// When the file was last made short.
    shortened: Option<Instant>,
}

/// Bytes that making the file short could give to the disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gain {
    /// The whole file has these.
    pub(super) file: u64,
    /// Nothing uses these.
    pub(super) loose: u64,
    /// Only the history uses these.
    pub(super) history: u64,
}

/// How the file is made short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shorten {
    /// What is free in it goes.
    Free,
    /// The history is forgotten first. Watches that are behind have to begin anew.
    Forget,
}

impl Gain {
    /// What is worth doing where so many bytes are missing on the disk. Each time a good part of the file is gained, or
    /// all that is needed: so the work for it follows what was deleted.
    pub(super) fn way(self, missing: u64) -> Option<Shorten> {
        let is_worth = |bytes: u64| bytes > 0 && (bytes >= missing || bytes >= self.file / WORTH);
        if is_worth(self.loose) {
            Some(Shorten::Free)
        } else if is_worth(self.loose.saturating_add(self.history)) {
            Some(Shorten::Forget)
        } else {
            None
        }
    }

    /// Whether a good part of the file was gained since.
    pub(super) fn is_much(self, now: Self) -> bool {
        self.file.saturating_sub(now.file) > self.file / WORTH
    }
}

impl Space {
    /// Takes the reserve of a folder. Where it cannot be whole, the disk counts as full. How much is free within the
    /// file is not known: all of it may be.
    pub(super) fn take(folder: &Path) -> Self {
        let mut space = Self { folder: folder.to_owned(), is_full: false, loose: u64::MAX, shortened: None };
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

    /// Bytes that the reserve and the room beside it lack.
    pub(super) fn missing(&self) -> u64 {
        let held = OpenOptions::new().read(true).open(self.path()).and_then(|file| holds(&file)).unwrap_or(0);
        RESERVE.saturating_add(HEADROOM).saturating_sub(held.min(RESERVE)).saturating_sub(self.available())
    }

    /// Whether the file may be made short again.
    pub(super) fn may_shorten(&self, now: Instant) -> bool {
        self.shortened.is_none_or(|last| now.saturating_duration_since(last) >= PAUSE)
    }

    /// The file was made short, or could not be.
    pub(super) fn shortened(&mut self, now: Instant) {
        (self.loose, self.shortened) = (0, Some(now));
    }

    fn has_headroom(&self) -> bool {
        self.available() >= HEADROOM
    }

    /// Bytes free on the disk, beside the reserve.
    fn available(&self) -> u64 {
        statvfs(&self.folder).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Takes more, and gives nothing back of what is held: another program could take it.
    fn grow(&self) -> io::Result<bool> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(self.path())?;
        let mut held = holds(&file)?;
        let mut more = RESERVE.saturating_sub(held);
        while held < RESERVE && more > 0 {
            match reserve(&file, held, more) {
                Ok(()) => held = held.saturating_add(more),
                Err(error) if is_full(&error) => {
                    // A part may have been taken that is not counted.
                    file.set_len(held)?;
                    more /= 2;
                    if more < LEAST {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(error),
            }
            more = more.min(RESERVE.saturating_sub(held));
        }
        Ok(held >= RESERVE)
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

/// Takes room for so many bytes behind the first ones.
fn reserve(mut file: &File, from: u64, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), from, bytes).map_err(io::Error::from) {
        // Not every file system can; then what is written takes the room.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            file.seek(SeekFrom::Start(from))?;
            let zeros = io::copy(&mut io::Read::take(io::repeat(0), bytes), &mut file)?;
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

    #[test]
    fn the_file_is_made_short_where_that_gives_what_is_missing_or_much() {
        let way = |missing, loose, history| Gain { file: 20 << 20, loose, history }.way(missing);
        assert_eq!(way(4 << 20, 0, 0), None);
        assert_eq!(way(0, 0, 0), None);
        // One small object after the other.
        assert_eq!(way(4 << 20, 200_000, 200_000), None);
        assert_eq!(way(4 << 20, 4 << 20, 8 << 20), Some(Shorten::Free));
        assert_eq!(way(4 << 20, 3 << 20, 1 << 20), Some(Shorten::Forget));
        // All that is missing does not come from here, but a quarter of the file does.
        assert_eq!(way(1 << 30, 5 << 20, 0), Some(Shorten::Free));
        assert_eq!(way(1 << 30, 0, 5 << 20), Some(Shorten::Forget));
        assert_eq!(way(1 << 30, u64::MAX, u64::MAX), Some(Shorten::Free));
    }

    #[test]
    fn the_file_is_made_short_now_and_then_only() {
        let folder = tempfile::tempdir().unwrap();
        let mut space = Space::take(folder.path());
        let now = Instant::now();
        assert!(space.may_shorten(now));
        space.shortened(now);
        assert!(!space.may_shorten(now + PAUSE / 2));
        assert!(space.may_shorten(now + PAUSE));
        assert_eq!(space.loose, 0);
    }
}
