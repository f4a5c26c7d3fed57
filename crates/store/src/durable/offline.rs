//! Work on the file of a store that this process does not open: check, backup, restoring, rescue.
//!
//! Nothing here writes to the file that it reads. The file is read into memory, where the database may repair itself. A
//! server may be running: its file is read between two of its writes.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    hash::{DefaultHasher, Hasher as _},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    thread,
    time::{Duration, SystemTime},
};

use portolan_schema::Resource;
use redb::StorageBackend;

use super::{
    ahead::{self, BUMP},
    disk::Faults,
    file::{self, FILE_NAME, Folder},
    pages,
};
use crate::{
    Change, History, OpenError, Scope, StoredObject, memory::wall_clock, tables::Tables, transaction::Write,
};

/// How often the file is read, and the time between: for five seconds.
const ATTEMPTS: usize = 500;
const PAUSE: Duration = Duration::from_millis(10);
/// Longest time between two different timestamps of a file: a tick of the kernel's clock, of at most 10 ms, and as much
/// again.
const TICK: Duration = Duration::from_millis(20);
/// The same on file systems that store whole seconds.
const COARSE_TICK: Duration = Duration::from_secs(2);
/// How often a file is read whose content is damaged, and differently each time.
const READS: usize = 20;

/// What a store contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The store's file, or the backup.
    pub path: PathBuf,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// The last revision.
    pub revision: u64,
    /// Number of objects of each stored resource.
    pub objects: Vec<(Resource, usize)>,
}

/// What could be read of a store.
#[derive(Debug)]
pub struct Rescued {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it. `None` if it is whole.
    pub damage: Option<String>,
    /// The newest version of each object that can be read, except for those that are known to be deleted.
    pub objects: Vec<(Resource, Arc<StoredObject>)>,
    /// How many objects the store had. `None` if that cannot be read.
    pub of: Option<u64>,
    /// Objects that may be newer than they are here, or may not be here at all: the file has two entries of one revision,
    /// and one of them is of a write that failed.
    pub doubtful: Vec<(Resource, Box<str>)>,
}

/// Checks the store in a data folder: every page and every object. Changes nothing.
pub fn check(dir: &Path) -> Result<Summary, OpenError> {
    let path = dir.join(FILE_NAME);
    let whole = load_still(&path, read_still)?;
    Ok(Summary::of(path, whole.bytes, &whole.tables))
}

/// Writes a copy of the store in a data folder into the new file `to`, which only its owner can read. The store may be in
/// use: the copy contains every transaction that was completed before the call. It is complete and durable when this
/// returns.
pub fn backup(dir: &Path, to: &Path) -> Result<Summary, OpenError> {
    let path = dir.join(FILE_NAME);
    let Whole { tables, image, .. } = load_still(&path, read_still)?;
    let failed = |source| OpenError::Backup { path: to.to_owned(), source };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to).map_err(failed)?;
    let written = file.write_all(&image).and_then(|()| file.sync_all()).and_then(|()| {
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    });
    if let Err(error) = written {
        // The error of the write is reported; a partial copy is useless.
        let _ = fs::remove_file(to);
        return Err(failed(error));
    }
    Ok(Summary::of(to.to_owned(), image.len() as u64, &tables))
}

/// Creates the store of a data folder from a backup. Fails if there is a store already.
///
/// Every object gets a new revision, later than any that the store of the backup has assigned since. Watches from before
/// are therefore expired and list again, and no client sees an older revision than it has seen.
pub fn restore(from: &Path, dir: &Path) -> Result<Summary, OpenError> {
    restore_with(from, dir, Faults::default(), wall_clock())
}

pub(super) fn restore_with(from: &Path, dir: &Path, faults: Faults, now: u64) -> Result<Summary, OpenError> {
    let Whole { tables, .. } = load_still(from, read_still).map_err(|error| match error {
        OpenError::Io { path, source } => OpenError::Backup { path, source },
        other => other,
    })?;
    let folder = Folder::take(dir, Arc::default(), faults)?;
    let mut objects = objects(&tables);
    objects.sort_unstable_by_key(|(_, object)| object.revision());
    let begin = ahead::after(dir, first_revision(tables.revision(), now))?;
    let writes: Vec<Write> = (begin..)
        .zip(objects)
        .map(|(before, (resource, object))| {
            let change = Change { revision: before.saturating_add(1), old: None, new: Some(object) };
            Write { resource, change }
        })
        .collect();
    let last = writes.last().map_or(begin, |write| write.change.revision);
    if last > now {
        // Before the file: after a crash in between, the next store begins later than it must.
        ahead::note(dir, last)?;
    }
    folder.create_from(last, &writes)?;
    let (path, database) = (dir.join(FILE_NAME), folder.open()?);
    let (tables, _) = folder.load(&database, History::default())?;
    Ok(Summary::of(path, folder.file_bytes(), &tables))
}

/// Reads what can be read of the store in a data folder. Changes nothing.
pub fn rescue(dir: &Path) -> Result<Rescued, OpenError> {
    let path = dir.join(FILE_NAME);
    match load_still(&path, read_still) {
        Ok(Whole { tables, .. }) => {
            let objects = objects(&tables);
            let of = Some(objects.len() as u64);
            Ok(Rescued { path, damage: None, objects, of, doubtful: Vec::new() })
        }
        Err(OpenError::Corrupt { reason, .. }) => {
            let pages::Found { objects, of, doubtful } = pages::read(&read_still(&path)?);
            Ok(Rescued { path, damage: Some(reason), objects, of, doubtful })
        }
        Err(error) => Err(error),
    }
}

/// Returns the revision after which a restored store begins. New stores begin at the wall clock, so it is later than what
/// the store of the backup has assigned since, unless that was ahead of the clock.
fn first_revision(of_backup: u64, now: u64) -> u64 {
    if now > of_backup { now } else { of_backup.saturating_add(BUMP) }
}

impl Summary {
    fn of(path: PathBuf, bytes: u64, tables: &Tables) -> Self {
        let objects = stored().map(|resource| (resource, tables.count(resource))).collect();
        Self { path, bytes, revision: tables.revision(), objects }
    }
}

impl Rescued {
    /// Returns one line: how much can be read.
    pub fn count(&self) -> String {
        let mut count = match self.of {
            Some(of) => format!("{} of {of} objects can be read", self.objects.len()),
            None => format!("{} objects can be read; how many there were cannot", self.objects.len()),
        };
        if !self.doubtful.is_empty() {
            count = format!("{count}; doubtful: {}", self.doubtful.len());
        }
        count
    }
}

/// Returns the resources under whose names objects are stored.
fn stored() -> impl Iterator<Item = Resource> {
    Resource::ALL.into_iter().filter(|resource| resource.is_stored() && resource.stored() == *resource)
}

pub(super) fn objects(tables: &Tables) -> Vec<(Resource, Arc<StoredObject>)> {
    let snapshot = |resource| tables.snapshot(resource, &Scope::default(), None);
    let of = |resource| snapshot(resource).map_or_else(|_| Vec::new(), |snapshot| snapshot.objects);
    stored().flat_map(|resource| of(resource).into_iter().map(move |object| (resource, object))).collect()
}

/// A database file that is whole.
struct Whole {
    tables: Tables,
    /// The file as the database closed it.
    image: Vec<u8>,
    /// Size of the file as it was read.
    bytes: u64,
}

/// Reads the content of a file that another process may be writing to. The kernel sets a file's time before it copies the
/// bytes of a write, so a file that is read during a long write looks still. It is damaged only if it is found so twice
/// with the same content.
fn load_still(
    path: &Path,
    mut read: impl FnMut(&Path) -> Result<Vec<u8>, OpenError>,
) -> Result<Whole, OpenError> {
    let mut damaged = None;
    for _ in 0..READS {
        let image = read(path)?;
        let bytes = image.len() as u64;
        let mut digest = DefaultHasher::new();
        digest.write(&image);
        let digest = digest.finish();
        match load(path, image) {
            Ok((tables, image)) => return Ok(Whole { tables, image, bytes }),
            Err(OpenError::Corrupt { .. }) if damaged != Some(digest) => {
                damaged = Some(digest);
                thread::sleep(TICK);
            }
            Err(error) => return Err(error),
        }
    }
    Err(OpenError::Busy(path.to_owned()))
}

/// Reads the content of a database file. Also returns the file as the database closed it.
pub(super) fn load(path: &Path, image: Vec<u8>) -> Result<(Tables, Vec<u8>), OpenError> {
    if image.is_empty() {
        return Err(OpenError::Corrupt { path: path.to_owned(), reason: "the file is empty".into() });
    }
    let memory = Memory(Arc::new(RwLock::new(image)));
    let database = file::database(memory.clone()).map_err(|error| file::explain(path, error))?;
    let (tables, _) = file::load(path, &database, History::default())?;
    database.close().map_err(|error| file::explain(path, error))?;
    let image = std::mem::take(&mut *memory.0.write().unwrap_or_else(PoisonError::into_inner));
    Ok((tables, image))
}

/// Reads a file that another process may be writing to, in a moment in which it does not.
fn read_still(path: &Path) -> Result<Vec<u8>, OpenError> {
    for _ in 0..ATTEMPTS {
        match try_read_still(path, SystemTime::now(), content) {
            Ok(Some(image)) => return Ok(image),
            Ok(None) => thread::sleep(PAUSE),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(OpenError::Missing(path.to_owned()));
            }
            Err(source) => return Err(OpenError::Io { path: path.to_owned(), source }),
        }
    }
    Err(OpenError::Busy(path.to_owned()))
}

/// Returns `None` if the file was changed meanwhile, or so shortly before that another change would have the same time.
fn try_read_still(
    path: &Path,
    now: SystemTime,
    read: impl FnOnce(&mut File) -> io::Result<Vec<u8>>,
) -> io::Result<Option<Vec<u8>>> {
    let mut file = File::open(path)?;
    let before = file.metadata()?;
    let tick = if before.mtime_nsec() == 0 { COARSE_TICK } else { TICK };
    // A time in the future is from before the clock was set back, and as different as one in the past.
    let age = now.duration_since(before.modified()?).unwrap_or_else(|error| error.duration());
    if age < tick {
        return Ok(None);
    }
    let image = read(&mut file)?;
    // By its name: the server may have put another file into its place.
    let after = fs::metadata(path)?;
    Ok((stamp(&before) == stamp(&after)).then_some(image))
}

fn content(file: &mut File) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(content)
}

fn stamp(found: &Metadata) -> (u64, u64, u64, [i64; 4]) {
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    (found.dev(), found.ino(), found.len(), times)
}

/// A copy of a file in memory, as a database accesses it.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory(pub(super) Arc<RwLock<Vec<u8>>>);

fn beyond() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

impl StorageBackend for Memory {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.read().unwrap_or_else(PoisonError::into_inner).len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let start = usize::try_from(offset).map_err(|_| beyond())?;
        let end = start.checked_add(out.len()).ok_or_else(beyond)?;
        out.copy_from_slice(bytes.get(start..end).ok_or_else(beyond)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut bytes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let length = usize::try_from(length).map_err(|_| beyond())?;
        let more = length.saturating_sub(bytes.len());
        bytes.try_reserve(more).map_err(io::Error::from)?;
        bytes.resize(length, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let start = usize::try_from(offset).map_err(|_| beyond())?;
        let end = start.checked_add(data.len()).ok_or_else(beyond)?;
        bytes.get_mut(start..end).ok_or_else(beyond)?.copy_from_slice(data);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::DurableStore;

    #[test]
    fn a_file_that_may_have_changed_while_it_was_read_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["objects.redb", "other"].map(|name| dir.path().join(name));
        let written = |path: &Path, at: Duration| {
            fs::write(path, "content").unwrap();
            File::options().write(true).open(path).unwrap().set_modified(UNIX_EPOCH + at).unwrap();
        };
        let (fine, coarse) = (Duration::from_millis(1_700_000_000_123), Duration::from_secs(1_700_000_000));
        let used = |now: Duration| try_read_still(&path, UNIX_EPOCH + now, content).unwrap().is_some();
        written(&path, fine);
        let tick = Duration::from_millis(25);
        assert!(used(fine + tick) && used(fine.saturating_sub(tick)));
        assert!(!used(fine + tick / 5) && !used(fine));
        written(&path, coarse);
        assert!(!used(coarse + tick) && used(coarse + Duration::from_secs(3)));

        let used = |change: &dyn Fn()| {
            written(&path, fine);
            let read = |file: &mut File| content(file).inspect(|_| change());
            try_read_still(&path, UNIX_EPOCH + fine + tick, read).unwrap().is_some()
        };
        assert!(used(&|| {}));
        assert!(!used(&|| fs::write(&path, "content").unwrap()));
        assert!(!used(&|| {
            written(&other, fine);
            fs::rename(&other, &path).unwrap();
        }));
    }

    #[test]
    fn a_file_is_damaged_only_if_it_is_found_so_twice() {
        let dir = tempfile::tempdir().unwrap();
        drop(DurableStore::open(dir.path(), History::default()).unwrap());
        let whole = fs::read(dir.path().join(FILE_NAME)).unwrap();
        let torn = |at: usize| [&whole[..at], &[0][..], &whole[at + 1..]].concat();
        let [one, other] = [0, 1].map(torn);
        let load = |images: &[&Vec<u8>]| {
            let mut images = images.iter().cycle();
            load_still(dir.path(), |_| Ok(Vec::clone(images.next().unwrap())))
        };
        assert!(load(&[&one, &whole]).is_ok() && load(&[&one, &other, &whole]).is_ok());
        assert!(matches!(load(&[&one]), Err(OpenError::Corrupt { .. })));
        assert!(matches!(load(&[&one, &other]), Err(OpenError::Busy(_))));
    }

    #[test]
    fn a_restored_store_begins_after_all_revisions_of_the_former_one() {
        assert_eq!(first_revision(1_000, 5_000), 5_000);
        // The clock is behind the backup.
        assert_eq!(first_revision(5_000, 1_000), 5_000 + BUMP);
        assert_eq!(first_revision(u64::MAX, 1_000), u64::MAX);
    }
}
