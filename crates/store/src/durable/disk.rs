//! The file below the database: plain reads and writes, and how long each fsync took.

use std::{fs::File, io::Result, os::unix::fs::FileExt, sync::Arc, time::Instant};

use redb::StorageBackend;

use crate::metrics::Counters;

/// The file as the database sees it.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) file: File,
    pub(super) counters: Arc<Counters>,
    pub(super) faults: Faults,
}

/// What fails on purpose, in tests.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    #[cfg(test)]
    pub(super) writes: Arc<std::sync::atomic::AtomicBool>,
    #[cfg(test)]
    pub(super) syncs: Arc<std::sync::atomic::AtomicBool>,
    /// Held by a test, no sync comes to its end.
    #[cfg(test)]
    pub(super) gate: Arc<std::sync::Mutex<()>>,
}

#[cfg(test)]
impl Faults {
    fn on_write(&self) -> Result<()> {
        fail_if(&self.writes)
    }

    fn on_sync(&self) -> Result<()> {
        drop(self.gate.lock());
        fail_if(&self.syncs)
    }
}

#[cfg(test)]
fn fail_if(fault: &std::sync::atomic::AtomicBool) -> Result<()> {
    if fault.load(std::sync::atomic::Ordering::SeqCst) {
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
        self.faults.on_write()?;
        self.file.set_len(length)
    }

    fn sync_data(&self) -> Result<()> {
        let started = Instant::now();
        self.file.sync_data()?;
        self.counters.sync(started.elapsed());
        self.faults.on_sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.faults.on_write()?;
        self.file.write_all_at(data, offset)
    }
}
