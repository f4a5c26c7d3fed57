//! The file under the database: plain reads and writes. Measures each fsync and notes failed syncs and a full disk.

use std::{
    fs::File,
    io::Result,
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Instant,
};

use redb::StorageBackend;

use super::space::is_full;
use crate::metrics::Counters;

/// The file as the database accesses it.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) file: File,
    pub(super) counters: Arc<Counters>,
    /// Set when a sync fails.
    pub(super) unsynced: Arc<AtomicBool>,
    /// Set when a write or a sync fails because the disk is full.
    pub(super) overflowed: Arc<AtomicBool>,
    pub(super) faults: Faults,
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
}

#[cfg(test)]
impl Faults {
    fn on_write(&self) -> Result<()> {
        /// `EIO`
        const BROKEN: i32 = 5;
        if self.broken.load(SeqCst) {
            self.failed.fetch_add(1, SeqCst);
            return Err(std::io::Error::from_raw_os_error(BROKEN));
        }
        fail_if(&self.writes)
    }

    fn on_sync(&self) -> Result<()> {
        drop(self.gate.lock());
        fail_if(&self.syncs)
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
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64> {
        self.file.metadata().map(|metadata| metadata.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, length: u64) -> Result<()> {
        let done = self.faults.on_write().and_then(|()| self.file.set_len(length));
        self.noting(done)
    }

    fn sync_data(&self) -> Result<()> {
        let started = Instant::now();
        let synced = self.file.sync_data().and_then(|()| self.faults.on_sync());
        self.counters.sync(started.elapsed());
        self.noting(synced.inspect_err(|_| self.unsynced.store(true, SeqCst)))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let done = self.faults.on_write().and_then(|()| self.file.write_all_at(data, offset));
        self.noting(done)
    }
}

impl Disk {
    /// Notes a full disk at the first error, because the database may report a later error in its place.
    fn noting(&self, done: Result<()>) -> Result<()> {
        done.inspect_err(|error| {
            if is_full(error) {
                self.overflowed.store(true, SeqCst);
            }
        })
    }
}
