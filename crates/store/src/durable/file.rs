//! The database file: its location, its lock, and its content.
//!
//! | table | key | value |
//! |---|---|---|
//! | `log` | revision | what the change wrote: [`super::entry`] |
//! | `numbers` | `format` | the version of this layout |
//! | | `revision` | the last revision |
//! | | `created` | the revision at which the store was created |
//! | | `objects`, `objects-at` | how many objects there are, and the last revision when they were counted |
//! | | `history/RESOURCE` | the revision after which the resource's history begins |
//!
//! The log is the state: read in order, its entries give the objects and the history. When the history drops a
//! change, the entry of the object's former version is removed. If the change was a deletion, its own entry is
//! removed, too. New entries are always appended at the end, so a group of them fills few pages.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fs::{self, DirBuilder, File, TryLockError},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use portolan_schema::Resource;
use redb::{Builder, Database, DatabaseError, Durability, ReadableDatabase, StorageBackend, TableDefinition};

use super::{
    ahead,
    disk::{Faults, Medium, inherit_owner, private_file},
    entry::{self, Entry},
    space,
};
use crate::{
    Change, History, OpenError,
    metrics::Counters,
    names::stored_name,
    tables::{Dropped, Tables},
    transaction::Write,
};

const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");

const FORMAT: &str = "format";
const REVISION: &str = "revision";
const CREATED: &str = "created";
const OBJECTS: &str = "objects";
const OBJECTS_AT: &str = "objects-at";

/// The newest layout that this version can read.
pub(super) const KNOWN_FORMAT: u64 = 1;

pub(super) const FILE_NAME: &str = "objects.redb";
/// Number of objects of a new file that are written in one database transaction.
const CREATE_CHUNK: usize = 4096;

const NEW_FILE_NAME: &str = "objects.redb.new";
const LOCK_NAME: &str = "lock";

/// Size of redb's cache. All objects are in memory as well, so the cache only has to hold the pages that the next
/// group changes.
const CACHE_BYTES: usize = 8 << 20;

/// The data folder, locked by this process.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    medium: Medium,
    /// The lock file. The kernel releases the lock when the file is closed, however the process ends.
    _lock: File,
}

/// Updates of the file that are pending because the history dropped changes, in the order of the changes.
#[derive(Debug, Default)]
pub(super) struct Forget(VecDeque<Forgotten>);

/// One change that the history has dropped.
#[derive(Debug)]
struct Forgotten {
    resource: Resource,
    /// The revision of the dropped change. The history of the resource begins after it.
    revision: u64,
    /// Revisions of the log entries that are no longer needed.
    entries: [Option<u64>; 2],
    /// Approximate size of these entries in bytes.
    bytes: usize,
}

impl Folder {
    /// Locks the folder. Creates it if it is missing. Removes an incomplete file.
    pub(super) fn take(path: &Path, counters: Arc<Counters>, faults: Faults) -> Result<Self, OpenError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::Io { path, source }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed(path))?;
        let lock_path = path.join(LOCK_NAME);
        let lock =
            private_file().create(true).truncate(false).open(&lock_path).map_err(failed(&lock_path))?;
        inherit_owner(&lock, &lock_path);
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse(path.to_owned())),
            Err(TryLockError::Error(source)) => return Err(OpenError::Io { path: lock_path, source }),
        }
        // What a process was writing when it was killed.
        let new = path.join(NEW_FILE_NAME);
        match fs::remove_file(&new) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(OpenError::Io { path: new, source });
            }
            _ => {}
        }
        Ok(Self { path: path.to_owned(), medium: Medium::new(counters, faults), _lock: lock })
    }

    /// Returns the path of the folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the size of the database file in bytes; 0 if it is not known.
    pub(super) fn file_bytes(&self) -> u64 {
        fs::metadata(self.path.join(FILE_NAME)).map_or(0, |found| found.len())
    }

    /// Returns true if a write or a sync found the disk full since the last call.
    pub(super) fn takes_overflow(&self) -> bool {
        self.medium.takes_overflow()
    }

    /// Returns the bytes that the database file takes on the disk; 0 if that is not known.
    pub(super) fn disk_bytes(&self) -> u64 {
        fs::metadata(self.path.join(FILE_NAME)).map_or(0, |found| space::taken(&found))
    }

    /// Opens the database. If there is no file, first creates an empty database whose last revision is `first`, or later if
    /// an earlier store of the folder was ahead of the clock.
    pub(super) fn open_or_create(&self, first: u64) -> Result<Database, OpenError> {
        let path = self.path.join(FILE_NAME);
        let exists = path.try_exists().map_err(|source| OpenError::Io { path: path.clone(), source })?;
        if !exists {
            self.create(ahead::after(&self.path, first)?)?;
        }
        self.open()
    }

    /// Opens the database. If a sync has failed, first replaces the file by a copy of itself.
    pub(super) fn open(&self) -> Result<Database, OpenError> {
        let path = self.path.join(FILE_NAME);
        if self.medium.is_unsynced() {
            let new = self.path.join(NEW_FILE_NAME);
            let copied = self.medium.rewrite(&path, &new);
            copied.map_err(|source| OpenError::Copy { path: path.clone(), source })?;
        }
        let file = self.medium.open(&path).map_err(|source| OpenError::Io { path: path.clone(), source })?;
        // redb would initialize an empty file as a new database.
        if file.metadata().is_ok_and(|metadata| metadata.len() == 0) {
            return Err(OpenError::Corrupt { path, reason: "the file is empty".into() });
        }
        self.database(file).map_err(|error| self.explain(error))
    }

    /// Creates an empty database whose last revision is `first`.
    fn create(&self, first: u64) -> Result<(), OpenError> {
        self.create_with(first, &[])
    }

    /// Creates the file if there is none, with objects that have the revisions before `first`, which is the last revision.
    /// The history begins after it.
    pub(super) fn create_from(&self, first: u64, objects: &[Write]) -> Result<(), OpenError> {
        let path = self.path.join(FILE_NAME);
        match path.try_exists() {
            Ok(false) => self.create_with(first, objects),
            Ok(true) => Err(OpenError::Exists(path)),
            Err(source) => Err(OpenError::Io { path, source }),
        }
    }

    /// Creates the file under another name and renames it when it is complete, so a crash in between leaves no
    /// partial file.
    fn create_with(&self, first: u64, objects: &[Write]) -> Result<(), OpenError> {
        let (new, path) = (self.path.join(NEW_FILE_NAME), self.path.join(FILE_NAME));
        let failed = |source| OpenError::Io { path: new.clone(), source };
        let file = self.medium.create(&new).map_err(failed)?;
        let database = self.database(file).map_err(|error| self.explain(error))?;
        write_first(&database, first).map_err(|error| self.explain(error))?;
        let numbers = Numbers { revision: first, objects: objects.len() as u64 };
        for part in objects.chunks(CREATE_CHUNK) {
            write(&database, part, numbers, (&Forget::default(), 0)).map_err(|error| self.explain(error))?;
        }
        database.close().map_err(|error| self.explain(error))?;
        self.medium.rename(&new, &path).map_err(failed)
    }

    fn database(&self, file: File) -> Result<Database, DatabaseError> {
        database(self.medium.disk(file))
    }

    /// Converts an error of the database into the reason why the file could not be opened or read.
    pub(super) fn explain(&self, error: impl Into<redb::Error>) -> OpenError {
        explain(&self.path.join(FILE_NAME), error)
    }

    /// Returns the last revision in the file. Fails if that is earlier than `published`, which was in the file before: damage
    /// to the pages of the last transaction looks like a transaction that was not completed.
    pub(super) fn last_revision(&self, database: &Database, published: u64) -> Result<u64, OpenError> {
        let found = || {
            let numbers = database.begin_read()?.open_table(NUMBERS)?;
            let found = redb::ReadableTable::get(&numbers, REVISION)?;
            Ok::<_, redb::Error>(found.map_or(0, |number| number.value()))
        };
        let found = found().map_err(|error| self.explain(error))?;
        if found < published {
            let reason = format!("its last revision is {found}, and {published} was in it before");
            return Err(OpenError::Corrupt { path: self.path.join(FILE_NAME), reason });
        }
        Ok(found)
    }

    /// Reads all objects and the history. Also returns the updates for changes that exceed `limits`.
    pub(super) fn load(&self, database: &Database, limits: History) -> Result<(Tables, Forget), OpenError> {
        load(&self.path.join(FILE_NAME), database, limits)
    }
}

/// Opens a database and checks every page of it.
pub(super) fn database(backend: impl StorageBackend) -> Result<Database, DatabaseError> {
    // Everything is read at the start anyway. The integrity check detects a file that the disk has damaged since it was
    // written.
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    builder.create_with_backend(backend)
}

/// Converts an error of a database into the reason why its file could not be opened or read.
pub(super) fn explain(path: &Path, error: impl Into<redb::Error>) -> OpenError {
    let path = path.to_owned();
    match error.into() {
        // A file that ends within a page is damaged, too.
        redb::Error::Io(source)
            if !matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            OpenError::Io { path, source }
        }
        error => OpenError::Corrupt { path, reason: error.to_string() },
    }
}

/// Reads all objects and the history of a database, whose file is `path`. Also returns the updates for changes that
/// exceed `limits`.
pub(super) fn load(path: &Path, database: &Database, limits: History) -> Result<(Tables, Forget), OpenError> {
    let explain = |error: redb::Error| explain(path, error);
    let corrupt = |reason: String| OpenError::Corrupt { path: path.to_owned(), reason };
    let read = database.begin_read().map_err(|error| explain(error.into()))?;
    let numbers = read.open_table(NUMBERS).map_err(|error| explain(error.into()))?;
    let number = |name: &str| {
        let found = numbers.get(name).map_err(|error| explain(error.into()))?;
        Ok::<_, OpenError>(found.map(|number| number.value()))
    };
    let needed = |name: &str| number(name)?.ok_or_else(|| corrupt(format!("it has no {name}")));
    let format = needed(FORMAT)?;
    if format > KNOWN_FORMAT {
        let place = path.display().to_string();
        return Err(OpenError::Newer { place, found: format, known: KNOWN_FORMAT });
    }
    let created = needed(CREATED)?;
    let mut tables = Tables::new(limits, created);
    for resource in Resource::ALL {
        tables.begin_history(resource, number(&history_name(resource))?.unwrap_or(created));
    }
    let mut dropped = Vec::new();
    let log = read.open_table(LOG).map_err(|error| explain(error.into()))?;
    for item in log.range::<u64>(..).map_err(|error| explain(error.into()))? {
        let (revision, entry) = item.map_err(|error| explain(error.into()))?;
        let revision = revision.value();
        let entry = entry::decode(entry.value())
            .map_err(|reason| corrupt(format!("the entry of revision {revision}: {reason}")))?;
        restore(&mut tables, revision, entry, &mut dropped);
    }
    tables.complete(needed(REVISION)?);
    let mut forget = Forget::default();
    forget.add(&dropped);
    Ok((tables, forget))
}

/// Applies one entry of the log to the tables.
fn restore(tables: &mut Tables, revision: u64, entry: Entry, dropped: &mut Vec<Dropped>) {
    let (resource, old, new) = match entry {
        Entry::Written(resource, draft) if revision <= tables.compacted(resource) => {
            return tables.load(resource, Arc::new(draft.at(revision)));
        }
        Entry::Written(resource, draft) => {
            (resource, tables.get(resource, draft.key()), Some(Arc::new(draft.at(revision))))
        }
        Entry::Deleted(resource, key) => (resource, tables.get(resource, &key), None),
    };
    tables.apply(resource, Change { revision, old, new }, dropped);
}

impl Forget {
    /// Adds the updates for changes that the history has dropped.
    pub(super) fn add(&mut self, dropped: &[Dropped]) {
        self.0.extend(dropped.iter().map(|Dropped { resource, change }| {
            let replaced = change.old.as_ref().map(|old| old.revision());
            let deletion = change.new.is_none().then_some(change.revision);
            let entries = [replaced, deletion];
            let bytes = change.old.as_ref().map_or(0, |old| old.body().len());
            Forgotten { resource: *resource, revision: change.revision, entries, bytes }
        }));
    }

    /// Returns about how many bytes these updates will free within the file.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().fold(0, |sum, forgotten| sum.saturating_add(forgotten.bytes as u64))
    }

    /// Returns the number of pending updates.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if no update is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes the first `count` updates, which have been written. Returns about how many bytes they freed within the
    /// file.
    pub(super) fn done(&mut self, count: usize) -> u64 {
        let done = self.0.drain(..count.min(self.0.len()));
        done.fold(0, |sum, forgotten| sum.saturating_add(forgotten.bytes as u64))
    }
}

/// What the file says of itself after a write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbers {
    /// The last revision.
    pub(super) revision: u64,
    /// How many objects there are.
    pub(super) objects: u64,
}

/// Writes a group of changes and the first `count` updates of `forget`, durably.
pub(super) fn write(
    database: &Database,
    writes: &[Write],
    Numbers { revision, objects }: Numbers,
    (forget, count): (&Forget, usize),
) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    {
        let mut log = transaction.open_table(LOG)?;
        let mut history = BTreeMap::new();
        for forgotten in forget.0.iter().take(count) {
            for old in forgotten.entries.iter().flatten() {
                log.remove(old)?;
            }
            history.insert(forgotten.resource, forgotten.revision);
        }
        for write in writes {
            if let Some(entry) = entry::encode(write) {
                log.insert(write.change.revision, entry.as_slice())?;
            }
        }
        let mut numbers = transaction.open_table(NUMBERS)?;
        for (resource, begin) in history {
            numbers.insert(history_name(resource).as_str(), begin)?;
        }
        for (name, value) in [(REVISION, revision), (OBJECTS, objects), (OBJECTS_AT, revision)] {
            numbers.insert(name, value)?;
        }
    }
    Ok(transaction.commit()?)
}

/// Returns the last revision and the number of objects at it, of the numbers of a file by their names. Without the number
/// of objects if a version that does not count them wrote last.
pub(super) fn counted(numbers: &HashMap<&str, u64>) -> Option<(u64, Option<u64>)> {
    let revision = *numbers.get(REVISION)?;
    let is_current = numbers.get(OBJECTS_AT) == Some(&revision);
    Some((revision, numbers.get(OBJECTS).copied().filter(|_| is_current)))
}

pub(super) fn write_first(database: &Database, revision: u64) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        transaction.open_table(LOG)?;
        let mut numbers = transaction.open_table(NUMBERS)?;
        let first = [(FORMAT, KNOWN_FORMAT), (REVISION, revision), (CREATED, revision)];
        for (name, value) in first.into_iter().chain([(OBJECTS, 0), (OBJECTS_AT, revision)]) {
            numbers.insert(name, value)?;
        }
    }
    Ok(transaction.commit()?)
}

fn history_name(resource: Resource) -> String {
    format!("history/{}", stored_name(resource))
}
