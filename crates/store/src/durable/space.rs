//! Space on the disk that is reserved for transactions that free space.
//!
//! A deletion writes, too: it needs new pages before it frees old ones. A separate file therefore reserves some
//! space. While the disk is full, the writer releases this space for each group of deletions. All other transactions
//! are written only while the reserve is complete, so they cannot use it up.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Seek, SeekFrom},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    fs::{FallocateFlags, OFlags, StatVfs, fallocate, statvfs},
    io::Errno,
    process::geteuid,
};

use super::disk::inherit_owner;

/// Bytes of the reserve. A group of deletions on a full disk ([`super::queue`]) changes some hundred pages of 4 KiB.
const RESERVE: u64 = 4 << 20;
/// Bytes that must be free in addition to the reserve before a full disk counts as recovered. Enough for any object.
const HEADROOM: u64 = 4 << 20;
/// `grow` halves the part that it tries to allocate, and gives up below this size.
const LEAST: u64 = 64 << 10;
/// Compacting the file is worthwhile if at least 1/`WORTH` of it is free, or free apart from the history.
const WORTH: u64 = 4;
/// Minimum time between two compactions, because each reads and moves the whole file.
const PAUSE: Duration = Duration::from_secs(10);
const FILE_NAME: &str = "reserve";
/// The unit of `st_blocks` in bytes (`stat(2)`).
const BLOCK: u64 = 512;

/// The reserve in a data folder, and whether the disk is full.
#[derive(Debug)]
pub(super) struct Space {
    folder: PathBuf,
    /// True while only transactions that free space are written.
    pub(super) is_full: bool,
    /// Upper bound of the bytes that have become free within the file since it was last compacted. Later writes reuse
    /// some of them.
    pub(super) loose: u64,
    /// When the file was last compacted, or when that was last tried.
    shortened: Option<Instant>,
    /// True if the log says that there is no reserve.
    is_lack_logged: bool,
}

/// How many bytes compacting the file could give back to the disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gain {
    /// Bytes that the file takes on the disk.
    pub(super) file: u64,
    /// Bytes of the file that are unused.
    pub(super) loose: u64,
    /// Bytes of the file that only the history uses.
    pub(super) history: u64,
}

/// How the file is compacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shorten {
    /// Gives the unused part of the file back to the disk.
    Free,
    /// Drops the history first. Watches that lag behind have to list again.
    Forget,
}

impl Gain {
    /// Returns how to compact the file when the disk lacks `missing` bytes; `None` if that is not worthwhile.
    /// Compaction must gain all that is missing or a quarter of the file, so its cost is in proportion to what was
    /// deleted.
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

    /// Returns true if the file has shrunk by more than a quarter since `self` was measured.
    pub(super) fn is_much(self, now: Self) -> bool {
        self.file.saturating_sub(now.file) > self.file / WORTH
    }
}

impl Space {
    /// Opens the reserve of a folder. If there is no space for all of it, the disk counts as full. The free space
    /// within the file is not known at that point, so all of it is assumed to be free.
    pub(super) fn take(folder: &Path) -> Self {
        let mut space = Self::new(folder);
        space.is_full = !space.restore();
        space
    }

    fn new(folder: &Path) -> Self {
        let folder = folder.to_owned();
        Self { folder, is_full: false, loose: u64::MAX, shortened: None, is_lack_logged: false }
    }

    /// Allocates as much of the reserve as fits. Returns false if the disk has no space for all of it. If the reserve
    /// cannot be made for a reason that lasts, there is none: that is no reason to refuse writes.
    pub(super) fn restore(&mut self) -> bool {
        match self.grow() {
            Ok(is_whole) => is_whole,
            Err(error) if is_lasting(&error) => {
                self.log_lack(&error);
                true
            }
            // Of a full disk, or of something that passes: it is tried again.
            Err(_) => false,
        }
    }

    /// Says once that there is no reserve, and what mends that.
    fn log_lack(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_lack_logged, true) {
            let mend =
                "remove the file, or give it to the user that runs the server, and start the server again";
            let file = self.path();
            tracing::warn!(file = %file.display(), %error, mend, "nothing can be deleted on a full disk: there is no reserve");
        }
    }

    /// Gives the reserve back to the disk.
    pub(super) fn release(&self) {
        // Without a file there is nothing to release.
        if let Ok(file) = options().write(true).open(self.path())
            && let Err(error) = file.set_len(0)
        {
            tracing::warn!(%error, "the reserve on the disk cannot be given back");
        }
    }

    /// Returns true if any object can be written: the reserve is complete, and there is enough free space beside it.
    pub(super) fn is_mended(&mut self) -> bool {
        self.restore() && self.has_headroom()
    }

    /// Returns how many bytes the reserve and the space beside it lack.
    pub(super) fn missing(&self) -> u64 {
        let held = options().read(true).open(self.path()).and_then(|file| holds(&file)).unwrap_or(0);
        RESERVE.saturating_add(HEADROOM).saturating_sub(held.min(RESERVE)).saturating_sub(self.available())
    }

    /// Returns true if enough time has passed since the last compaction.
    pub(super) fn may_shorten(&self, now: Instant) -> bool {
        self.shortened.is_none_or(|last| now.saturating_duration_since(last) >= PAUSE)
    }

    /// Notes that the file was compacted, or that compacting it failed.
    pub(super) fn shortened(&mut self, now: Instant) {
        (self.loose, self.shortened) = (0, Some(now));
    }

    fn has_headroom(&self) -> bool {
        self.available() >= HEADROOM
    }

    /// Returns the bytes that are free on the disk, without the reserve. If that is not known, there is enough:
    /// otherwise a full disk would never count as recovered.
    fn available(&self) -> u64 {
        free(&self.folder, false).unwrap_or(HEADROOM)
    }

    /// Allocates more for the reserve. Keeps what it already holds, because another program could take released
    /// space.
    fn grow(&self) -> io::Result<bool> {
        let file = self.open()?;
        let mut held = holds(&file)?;
        let mut more = RESERVE.saturating_sub(held);
        while held < RESERVE && more > 0 {
            match reserve(&file, held, more) {
                Ok(()) => held = held.saturating_add(more),
                Err(error) if is_full(&error) => {
                    // A part may have been allocated beyond the counted bytes.
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

    /// Opens the file, which has no content. Replaces one that this user may not open, such as one that root has made.
    fn open(&self) -> io::Result<File> {
        let path = self.path();
        let mut options = options();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).or_else(|error| {
            let may_replace =
                error.kind() == io::ErrorKind::PermissionDenied && fs::remove_file(&path).is_ok();
            if may_replace { options.open(&path) } else { Err(error) }
        })?;
        inherit_owner(&file, &path);
        Ok(file)
    }

    fn path(&self) -> PathBuf {
        self.folder.join(FILE_NAME)
    }
}

/// Returns the bytes that are free on the disk with a folder for a copy of a file; `None` if that is not known. A file
/// system may reserve space that only root can use. Root in a container may not be able to, but a copy that fails is
/// removed.
pub(super) fn free_for_copy(folder: &Path) -> Option<u64> {
    free(folder, geteuid().is_root())
}

fn free(folder: &Path, reserved: bool) -> Option<u64> {
    statvfs(folder).ok().and_then(|found| free_bytes(&found, reserved))
}

/// Returns the free bytes. `reserved` includes those that only root can use. Some file systems do not count their
/// space: they have no blocks.
fn free_bytes(found: &StatVfs, reserved: bool) -> Option<u64> {
    let blocks = if reserved { found.f_bfree } else { found.f_bavail };
    (found.f_blocks > 0).then(|| blocks.saturating_mul(found.f_frsize))
}

/// Returns options that follow no link: the owner of the folder could lead root to another file.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Returns true if an error of opening the file comes again until an operator mends it.
fn is_lasting(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), IsADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem)
        || Errno::from_io_error(error) == Some(Errno::LOOP)
}

/// Returns true if an error says that the disk or the quota is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn holds(file: &File) -> io::Result<u64> {
    Ok(taken(&file.metadata()?))
}

/// Returns the bytes that a file takes on the disk. A database file has holes where nothing was written yet.
pub(super) fn taken(file: &Metadata) -> u64 {
    file.len().min(file.blocks().saturating_mul(BLOCK))
}

/// Allocates `bytes` bytes after the first `from` bytes.
fn reserve(mut file: &File, from: u64, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), from, bytes).map_err(io::Error::from) {
        // Some file systems do not support `fallocate`. Writing zeros allocates the space there.
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
    use std::{
        fs::Permissions,
        os::unix::fs::{PermissionsExt as _, chown},
    };

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    #[test]
    fn the_reserve_takes_room_and_gives_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut space = Space::take(folder.path());
        let held = || holds(&File::open(folder.path().join(FILE_NAME)).unwrap()).unwrap();
        assert_eq!((space.is_full, held()), (false, RESERVE));
        space.release();
        assert_eq!(held(), 0);
        assert!(space.restore() && space.restore());
        assert_eq!(held(), RESERVE);
        let hole = File::create(folder.path().join("hole")).unwrap();
        hole.set_len(RESERVE).unwrap();
        assert_eq!(holds(&hole).unwrap(), 0);
    }

    #[test]
    fn a_reserve_that_cannot_be_made_is_no_full_disk() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(FILE_NAME)).unwrap();
        for lacks in [folder.path(), &folder.path().join("missing")] {
            let mut space = Space::take(lacks);
            assert!(!space.is_full && space.is_lack_logged, "{}", lacks.display());
            assert!(space.is_mended() && space.missing() <= RESERVE);
        }
    }

    #[test]
    fn the_reserve_belongs_to_the_owner_of_the_folder() {
        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        chown(folder.path(), Some(4711), Some(4712)).unwrap();
        // The second one finds a file of root.
        for _ in 0..2 {
            Space::take(folder.path());
            let file = folder.path().join(FILE_NAME);
            let made = fs::metadata(&file).unwrap();
            assert_eq!((made.uid(), made.gid()), (4711, 4712));
            chown(&file, Some(0), Some(0)).unwrap();
        }
    }

    #[test]
    fn a_reserve_of_another_user_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE_NAME);
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o0)).unwrap();
        let take = || {
            // Root may open every file. Capabilities belong to threads.
            let mut sets = capabilities(None).unwrap();
            sets.effective = CapabilitySet::empty();
            set_capabilities(None, sets).unwrap();
            assert!(File::open(&file).is_err());
            Space::take(folder.path())
        };
        let space = std::thread::scope(|threads| threads.spawn(take).join().unwrap());
        assert!(!space.is_full && !space.is_lack_logged);
        assert_eq!(holds(&File::open(&file).unwrap()).unwrap(), RESERVE);
    }

    #[test]
    fn free_space_that_is_not_known_is_enough() {
        let folder = tempfile::tempdir().unwrap();
        // The file system of `/proc` has no blocks.
        for unknown in [Path::new("/proc"), &folder.path().join("missing")] {
            assert_eq!(free_for_copy(unknown), None);
            let space = Space::new(unknown);
            assert!(space.has_headroom());
            assert_eq!(space.missing(), RESERVE);
        }
        let mut found = statvfs(folder.path()).unwrap();
        (found.f_blocks, found.f_bfree, found.f_bavail, found.f_frsize) = (9, 5, 3, 1024);
        assert_eq!([true, false].map(|reserved| free_bytes(&found, reserved)), [Some(5120), Some(3072)]);
        found.f_blocks = 0;
        assert_eq!(free_bytes(&found, true), None);
    }

    #[test]
    fn the_file_is_compacted_if_that_gains_enough() {
        let way = |missing, loose, history| Gain { file: 20 << 20, loose, history }.way(missing);
        assert_eq!(way(4 << 20, 0, 0), None);
        assert_eq!(way(0, 0, 0), None);
        // One small object after another.
        assert_eq!(way(4 << 20, 200_000, 200_000), None);
        assert_eq!(way(4 << 20, 4 << 20, 8 << 20), Some(Shorten::Free));
        assert_eq!(way(4 << 20, 3 << 20, 1 << 20), Some(Shorten::Forget));
        // The file does not hold all that is missing, but a quarter of it can be gained.
        assert_eq!(way(1 << 30, 5 << 20, 0), Some(Shorten::Free));
        assert_eq!(way(1 << 30, 0, 5 << 20), Some(Shorten::Forget));
        assert_eq!(way(1 << 30, u64::MAX, u64::MAX), Some(Shorten::Free));
    }

    #[test]
    fn the_file_is_not_compacted_too_often() {
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
