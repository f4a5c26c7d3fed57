//! What was asked of the disk, in order: from it, tests compute what a loss of power could leave.

use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::MetadataExt,
    sync::{Arc, Mutex, PoisonError},
};

use crate::metrics::Counters;

/// Notes of everything that is asked of the disk, if it was started.
#[derive(Debug, Clone, Default)]
pub(super) struct Journal(Arc<Mutex<Option<Notes>>>);

#[derive(Debug, Default)]
struct Notes {
    events: Vec<Event>,
    /// The number of the file that has an inode now. Inodes are used again.
    files: BTreeMap<u64, usize>,
    next: usize,
    /// Transactions that earlier stores of the same folder have acknowledged.
    earlier: u64,
}

/// One thing that was asked of the disk.
#[derive(Debug, Clone)]
pub(super) struct Event {
    /// The number of the file.
    pub(super) file: usize,
    pub(super) what: What,
    /// How many transactions were acknowledged before it was done.
    pub(super) acknowledged: u64,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    /// The file that has the name of the store's file was opened, with this content.
    Opened(Vec<u8>),
    /// A file was created. It is empty.
    Created,
    /// Bytes were written at an offset.
    Wrote(u64, Vec<u8>),
    /// The length of the file was set.
    Length(u64),
    /// Everything that was written into the file is on the disk.
    Synced,
    /// A sync failed. It is not known which of the bytes before it are on the disk, and a later sync does not write them.
    SyncFailed,
    /// The file was given the name of the store's file.
    Renamed,
    /// The names in the folder are on the disk.
    FolderSynced,
}

impl Journal {
    /// Starts the notes.
    pub(super) fn start(&self) {
        *self.lock() = Some(Notes::default());
    }

    /// Sets how many transactions were acknowledged before the next store of the folder is opened.
    pub(super) fn acknowledged_earlier(&self, count: u64) {
        if let Some(notes) = &mut *self.lock() {
            notes.earlier = count;
        }
    }

    /// Returns the notes and ends them.
    pub(super) fn take(&self) -> Vec<Event> {
        self.lock().take().unwrap_or_default().events
    }

    pub(super) fn note(&self, counters: &Counters, file: &File, what: impl FnOnce(&File) -> What) {
        let mut notes = self.lock();
        let Some(Notes { events, files, next, earlier }) = &mut *notes else { return };
        let (inode, what) = (file.metadata().unwrap().ino(), what(file));
        let is_new = matches!(what, What::Created) || !files.contains_key(&inode);
        if is_new {
            files.insert(inode, *next);
            *next += 1;
        }
        events.push(Event { file: files[&inode], what, acknowledged: *earlier + counters.committed() });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Notes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
