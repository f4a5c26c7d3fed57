//! The file below the database: plain reads and writes, and how long each fsync took.

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

/// The file as the database sees it.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) file: File,
    pub(super) counters: Arc<Counters>,
    /// Set when a sync has failed.
    pub(super) unsynced: Arc<AtomicBool>,
    /// Set when something did not fit.
    pub(super) overflowed: Arc<AtomicBool>,
    pub(super) faults: Faults,
}

/// What fails on purpose, in tests.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    #[cfg(test)]
    pub(super) writes: Arc<AtomicBool>,
    #[cfg(test)]
    pub(super) syncs: Arc<AtomicBool>,
    /// Writes fail as on a broken disk.
    #[cfg(test)]
    pub(super) broken: Arc<AtomicBool>,
    /// How many writes have failed so.
    #[cfg(test)]
    pub(super) failed: Arc<std::sync::atomic::AtomicUsize>,
    /// Held by a test, no sync comes to its end.
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
    /// The database may report a later error in place of the first.
    fn noting(&self, done: Result<()>) -> Result<()> {
        done.inspect_err(|error| {
            if is_full(error) {
                self.overflowed.store(true, SeqCst);
            }
        })
    }
}
