//! The disk under the data folder: plain reads and writes. Measures each fsync of the database and notes failed syncs and
//! a full disk.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Result},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, fchown},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Instant,
};

use redb::StorageBackend;

#[cfg(test)]
use super::journal::{Journal, What};
use super::space::{free_for_copy, is_full, taken};
use crate::metrics::Counters;

/// The disk of one data folder. Whatever has to survive a loss of power is written through it.
#[derive(Debug, Clone)]
pub(super) struct Medium {
    counters: Arc<Counters>,
    /// Set when a sync fails.
    unsynced: Arc<AtomicBool>,
    /// Set when a write or a sync fails because the disk is full.
    overflowed: Arc<AtomicBool>,
    faults: Faults,
}

/// The file as the database accesses it.
#[derive(Debug)]
pub(super) struct Disk {
    file: File,
    medium: Medium,
}

/// Faults that tests inject.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    #[cfg(test)]
    pub(super) writes: Arc<AtomicBool>,
    #[cfg(test)]
    pub(super) syncs: Arc<AtomicBool>,
    /// Writes fail with `EIO`, as on a broken disk.
    #[cfg(test)]
    pub(super) broken: Arc<AtomicBool>,
    /// Number of writes that failed because of `broken`.
    #[cfg(test)]
    pub(super) failed: Arc<std::sync::atomic::AtomicUsize>,
    /// While a test holds this lock, no sync completes.
    #[cfg(test)]
    pub(super) gate: Arc<std::sync::Mutex<()>>,
    /// The next sync fails.
    #[cfg(test)]
    pub(super) one_sync: Arc<AtomicBool>,
    /// No byte is free for a copy of the file.
    #[cfg(test)]
    pub(super) no_room: Arc<AtomicBool>,
    /// Copies of the file fail at their end, as if another program had taken the rest of the disk.
    #[cfg(test)]
    pub(super) copies: Arc<AtomicBool>,
    /// Everything that was asked of the disk.
    #[cfg(test)]
    pub(super) journal: Journal,
}

/// `EIO`
#[cfg(test)]
const BROKEN: i32 = 5;

#[cfg(test)]
impl Faults {
    fn on_write(&self) -> Result<()> {
        if self.broken.load(SeqCst) {
            self.failed.fetch_add(1, SeqCst);
            return Err(std::io::Error::from_raw_os_error(BROKEN));
        }
        fail_if(&self.writes)
    }

    fn on_sync(&self) -> Result<()> {
        drop(self.gate.lock());
        if self.one_sync.swap(false, SeqCst) {
            return Err(std::io::Error::from_raw_os_error(BROKEN));
        }
        fail_if(&self.syncs)
    }

    fn on_copy(&self) -> Result<()> {
        fail_if(&self.copies)
    }

    fn free(&self, folder: &Path) -> Option<u64> {
        if self.no_room.load(SeqCst) { Some(0) } else { free_for_copy(folder) }
    }
}

#[cfg(test)]
fn fail_if(fault: &AtomicBool) -> Result<()> {
    if fault.load(SeqCst) {
        return Err(std::io::Error::from(std::io::ErrorKind::StorageFull));
    }
    Ok(())
}

#[cfg(not(test))]
impl Faults {
    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "fails in tests")]
    fn on_write(&self) -> Result<()> {
        Ok(())
    }

    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "fails in tests")]
    fn on_sync(&self) -> Result<()> {
        Ok(())
    }

    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "fails in tests")]
    fn on_copy(&self) -> Result<()> {
        Ok(())
    }

    #[expect(clippy::unused_self, reason = "differs in tests")]
    fn free(&self, folder: &Path) -> Option<u64> {
        free_for_copy(folder)
    }
}

impl Medium {
    pub(super) fn new(counters: Arc<Counters>, faults: Faults) -> Self {
        Self { counters, unsynced: Arc::default(), overflowed: Arc::default(), faults }
    }

    /// Returns true if a sync has failed. What the kernel could not write then is not written by a later sync.
    pub(super) fn is_unsynced(&self) -> bool {
        self.unsynced.load(SeqCst)
    }

    /// Returns true if a write or a sync found the disk full since the last call.
    pub(super) fn takes_overflow(&self) -> bool {
        self.overflowed.swap(false, SeqCst)
    }

    /// Opens an existing file.
    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "notes it in tests"))]
    pub(super) fn open(&self, path: &Path) -> Result<File> {
        let file = private_file().open(path)?;
        #[cfg(test)]
        self.note(&file, |file| What::Opened(content(file)));
        Ok(file)
    }

    /// Creates a file, or empties it.
    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "notes it in tests"))]
    pub(super) fn create(&self, path: &Path) -> Result<File> {
        let file = private_file().create(true).truncate(true).open(path)?;
        inherit_owner(&file, path);
        #[cfg(test)]
        self.note(&file, |_| What::Created);
        Ok(file)
    }

    /// Returns a file as the database accesses it.
    pub(super) fn disk(&self, file: File) -> Disk {
        Disk { file, medium: self.clone() }
    }

    /// Replaces a file by a durable copy of itself, which has the name `new` until it is complete. Removes a copy that
    /// fails, because it may have taken the last free space.
    pub(super) fn rewrite(&self, path: &Path, new: &Path) -> Result<()> {
        let done = self.copy(path, new).and_then(|()| self.rename(new, path));
        let done = done.inspect_err(|_| {
            // Usually there is none: the copy was not begun, or it has the other name.
            let _ = fs::remove_file(new);
        });
        self.noting(done)?;
        self.unsynced.store(false, SeqCst);
        Ok(())
    }

    fn copy(&self, path: &Path, new: &Path) -> Result<()> {
        let mut old = File::open(path)?;
        // A copy that does not fit would fill the disk first. Where the free space is not known, it is tried.
        let needed = taken(&old.metadata()?);
        let free = self.faults.free(path.parent().unwrap_or(Path::new(".")));
        if let Some(free) = free.filter(|free| *free < needed) {
            let text = format!("the copy needs {needed} bytes, and {free} are free on the disk");
            return Err(io::Error::new(io::ErrorKind::StorageFull, text));
        }
        let mut file = self.create(new)?;
        io::copy(&mut old, &mut file)?;
        #[cfg(test)]
        self.note(&file, |file| What::Wrote(0, content(file)));
        self.faults.on_copy()?;
        file.sync_all()?;
        #[cfg(test)]
        self.note(&file, |_| What::Synced);
        Ok(())
    }

    /// Renames a file within its folder, durably.
    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "notes it in tests"))]
    pub(super) fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        fs::rename(from, to)?;
        #[cfg(test)]
        self.note(&File::open(to)?, |_| What::Renamed);
        let folder = to.parent().unwrap_or(Path::new("."));
        let folder = File::open(folder)?;
        folder.sync_all()?;
        #[cfg(test)]
        self.note(&folder, |_| What::FolderSynced);
        Ok(())
    }

    /// Notes a full disk at the first error, because the database may report a later error in its place.
    fn noting(&self, done: Result<()>) -> Result<()> {
        done.inspect_err(|error| {
            if is_full(error) {
                self.overflowed.store(true, SeqCst);
            }
        })
    }

    #[cfg(test)]
    fn note(&self, file: &File, what: impl FnOnce(&File) -> What) {
        self.faults.journal.note(&self.counters, file, what);
    }
}

#[cfg(test)]
fn content(mut file: &File) -> Vec<u8> {
    let mut content = Vec::new();
    io::Seek::rewind(&mut file).and_then(|()| io::Read::read_to_end(&mut file, &mut content)).unwrap();
    content
}

/// Gives a file that root has created to the owner of its folder, because the server may run as that user.
pub(super) fn inherit_owner(file: &File, path: &Path) {
    let Some(Ok(folder)) = path.parent().map(fs::metadata) else { return };
    let (Ok(found), Ok(named)) = (file.metadata(), fs::symlink_metadata(path)) else { return };
    // The owner of the folder may have put a link to a file of root there.
    let is_itself = (found.dev(), found.ino()) == (named.dev(), named.ino()) && found.nlink() == 1;
    if folder.uid() != 0 && found.uid() == 0 && is_itself {
        // Without the permission the server says that it cannot open the file.
        let _ = fchown(file, Some(folder.uid()), Some(folder.gid()));
    }
}

/// Returns options for a file that only its owner can access.
pub(super) fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64> {
        self.file.metadata().map(|metadata| metadata.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, length: u64) -> Result<()> {
        let done = self.medium.faults.on_write().and_then(|()| self.file.set_len(length));
        #[cfg(test)]
        if done.is_ok() {
            self.medium.note(&self.file, |_| What::Length(length));
        }
        self.medium.noting(done)
    }

    fn sync_data(&self) -> Result<()> {
        let started = Instant::now();
        self.medium.counters.begin_sync(started);
        let synced = self.file.sync_data().and_then(|()| self.medium.faults.on_sync());
        self.medium.counters.sync(started.elapsed());
        #[cfg(test)]
        self.medium.note(&self.file, |_| if synced.is_ok() { What::Synced } else { What::SyncFailed });
        self.medium.noting(synced.inspect_err(|_| self.medium.unsynced.store(true, SeqCst)))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let done = self.medium.faults.on_write().and_then(|()| self.file.write_all_at(data, offset));
        #[cfg(test)]
        if done.is_ok() {
            self.medium.note(&self.file, |_| What::Wrote(offset, data.into()));
        }
        self.medium.noting(done)
    }
}
