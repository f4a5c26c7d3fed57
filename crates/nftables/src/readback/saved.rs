//! The elements of large sets, in a file from the end of a run until the next start.
//!
//! A comparison needs every element that the kernel has, and the kernel answers for one element at a time
//! ([`by_key`](super::by_key)). If the process ends in sync, it knows them all, and writes them to a file. The next start
//! reads the file instead, if nothing was committed meanwhile: the ruleset still has the generation that the file names.
//! Everything else of the table is read from the kernel as always. Without a usable file, the elements are, too.
//!
//! A file counts for one boot, one network namespace and one start, which removes it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use portolan_model::Family;
use portolan_sock::namespace;

use super::super::chain::FamilyTable;
use super::super::changeset::has_more;
use super::super::element::{Element, Set};
use super::by_key::ORDER as READ_BY_KEY;
use super::rows::Rows;
use super::{hash_of, rows_of};

/// The beginning of each file. Another form of the file begins with another number.
const FORM: [u8; 8] = *b"elements";
const VERSION: u32 = 1;
/// Comes after the last element, in the place of a set's number.
const END: u8 = u8::MAX;
/// Changes with every boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// Most elements for which memory is allocated before they are read.
const MOST_RESERVED: usize = 1 << 20;
/// Length in bytes of a boot's id.
const BOOT_LENGTH: usize = 36;

/// The file for the elements of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedElements {
    path: PathBuf,
}

/// Elements by their sets.
pub(in super::super) type ElementRows = BTreeMap<Set, Rows>;

/// What a file counts for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    boot: [u8; BOOT_LENGTH],
    namespace: u64,
    generation: u32,
}

impl Identity {
    /// Returns the identity of a generation in the network namespace of this thread, or an error if the kernel does not say
    /// which namespace or which boot this is.
    fn of(generation: u32) -> io::Result<Self> {
        let mut boot = [0; BOOT_LENGTH];
        File::open(BOOT)?.read_exact(&mut boot)?;
        let namespace = namespace::number().map_err(io::Error::other)?;
        Ok(Self { boot, namespace, generation })
    }

    fn bytes(&self, place: FamilyTable) -> Vec<u8> {
        let mut bytes = FORM.to_vec();
        bytes.extend(VERSION.to_ne_bytes());
        bytes.extend(self.boot);
        bytes.extend(self.namespace.to_ne_bytes());
        bytes.extend(self.generation.to_ne_bytes());
        bytes.push(match place.family {
            Family::Ipv4 => 4,
            Family::Ipv6 => 6,
        });
        // The number of a set in the file is its place here.
        bytes.extend(READ_BY_KEY.iter().flat_map(|set| set.name().bytes()));
        bytes
    }
}

impl SavedElements {
    /// Returns the file for a family in this folder.
    pub fn in_folder(folder: &Path, family: Family) -> Self {
        let name = match family {
            Family::Ipv4 => "nftables-ipv4.elements",
            Family::Ipv6 => "nftables-ipv6.elements",
        };
        Self { path: folder.join(name) }
    }

    /// Removes the file, if it is there.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self) -> io::Result<()> {
        for path in [&self.path, &self.unfinished()] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the path of a file that is being written.
    fn unfinished(&self) -> PathBuf {
        self.path.with_extension("new")
    }

    /// Writes the elements that the kernel has in this generation. Creates the folder, but not its parents. `each` calls its argument for every element of the table.
    /// Elements of other sets than those that are read by key are left out. `counters` says whether elements count.
    pub(in super::super) fn write(
        &self,
        place: FamilyTable,
        generation: u32,
        counters: bool,
        each: impl FnOnce(&mut dyn FnMut(&Element) -> io::Result<()>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut head = Identity::of(generation)?.bytes(place);
        head.push(counters.into());
        let new = self.unfinished();
        match self.path.parent().map_or(Ok(()), fs::create_dir) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let written = create(&new).and_then(|file| {
            write_elements(BufWriter::new(file), &head, each)?;
            fs::rename(&new, &self.path)
        });
        written.inspect_err(|_| drop(fs::remove_file(&new)))
    }

    /// Returns the elements that the kernel has in this generation, and removes the file. `None` if there is none for it.
    pub(in super::super) fn take(&self, place: FamilyTable, generation: u32) -> Option<ElementRows> {
        let file = match open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => return self.unusable(&error),
        };
        // What is open can be read. The file must not count a second time.
        if let Err(error) = self.remove() {
            return self.unusable(&error);
        }
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let read = Identity::of(generation).and_then(|identity| {
            read_elements((BufReader::new(file), length), &identity.bytes(place), place)
        });
        match read {
            Ok(rows) => {
                let elements = rows.iter().flat_map(BTreeMap::values).map(Rows::len).sum::<usize>();
                let (family, is_current) = (place.family, rows.is_some());
                tracing::info!(%family, is_current, elements, "the last run has saved the elements of large sets");
                rows
            }
            Err(error) => self.unusable(&error),
        }
    }

    fn unusable<T>(&self, error: &io::Error) -> Option<T> {
        let path = self.path.display();
        tracing::warn!(%path, %error, "the elements of the last run cannot be used; they are read from the kernel");
        None
    }
}

/// Creates a file that only this user can read.
fn create(path: &Path) -> io::Result<File> {
    let options = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match options() {
        // One that was not completed.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            options()
        }
        outcome => outcome,
    }
}

/// Opens a file of this user. What another user has written does not count.
fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file()
        || metadata.uid() != rustix::process::geteuid().as_raw()
        || metadata.mode() & 0o22 != 0
    {
        return Err(io::Error::other("it is not a file that only this user can write"));
    }
    Ok(file)
}

fn write_elements(
    mut out: impl Write,
    head: &[u8],
    each: impl FnOnce(&mut dyn FnMut(&Element) -> io::Result<()>) -> io::Result<()>,
) -> io::Result<()> {
    out.write_all(head)?;
    let mut count = 0_u64;
    each(&mut |element| {
        let Some(number) = READ_BY_KEY.iter().position(|set| *set == element.set) else { return Ok(()) };
        count += 1;
        out.write_all(&[u8::try_from(number).unwrap_or(END)])?;
        out.write_all(element.key.as_slice())?;
        out.write_all(element.data.as_slice())
    })?;
    out.write_all(&[END])?;
    out.write_all(&count.to_ne_bytes())?;
    out.flush()
}

/// Returns the elements of a file that begins with `head`, or `None` if it begins with something else: nothing is wrong with it
/// then, but it counts for something else.
fn read_elements(
    (mut from, length): (impl Read, u64),
    head: &[u8],
    place: FamilyTable,
) -> io::Result<Option<ElementRows>> {
    let (mut found, mut counters) = (vec![0; head.len()], [0]);
    from.read_exact(&mut found)?;
    if found != head {
        return Ok(None);
    }
    from.read_exact(&mut counters)?;
    let more_of = |set: Set| has_more(set).then(|| hash_of("", counters != [0] && set.has_counters()));
    let mut all = READ_BY_KEY.map(|set| rows_of(place, set));
    // Nearly all elements are endpoints in the first set.
    if let Some(endpoints) = all.first_mut() {
        let (key, data) = endpoints.lengths();
        let most = usize::try_from(length).unwrap_or_default() / (1 + key + data);
        endpoints.reserve(most.min(MOST_RESERVED));
    }
    let (mut count, mut row) = (0_u64, Vec::new());
    loop {
        let mut number = [0];
        from.read_exact(&mut number)?;
        if number == [END] {
            break;
        }
        let number = usize::from(number[0]);
        let set_and_rows = READ_BY_KEY.get(number).copied().zip(all.get_mut(number));
        let (set, rows) = set_and_rows.ok_or_else(|| invalid("an unknown set"))?;
        let (key, data) = rows.lengths();
        row.resize(key + data, 0);
        from.read_exact(&mut row)?;
        let (key, data) = row.split_at_checked(key).unwrap_or_default();
        if !rows.push(key, data, more_of(set)) {
            return Err(invalid("an element of another form"));
        }
        count += 1;
    }
    let mut written = [0; 8];
    from.read_exact(&mut written)?;
    if u64::from_ne_bytes(written) != count {
        return Err(invalid("another number of elements"));
    }
    for rows in &mut all {
        rows.settle();
    }
    Ok(Some(READ_BY_KEY.into_iter().zip(all).collect()))
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("it has {what}"))
}

/// The elements of a file, without the head that says for what it counts.
#[cfg(feature = "fuzzing")]
pub(in super::super) mod fuzzing {
    use super::{Element, FamilyTable, READ_BY_KEY, Rows, Set, io, read_elements, write_elements};

    /// Writes the elements of a table.
    pub(in super::super::super) fn write(counters: bool, elements: &[Element]) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        write_elements(&mut bytes, &[counters.into()], |take| elements.iter().try_for_each(take))?;
        Ok(bytes)
    }

    /// Returns the number of elements that are read, or an error if these bytes are no such file.
    pub(in super::super::super) fn read(place: FamilyTable, bytes: &[u8]) -> io::Result<usize> {
        let length = u64::try_from(bytes.len()).unwrap_or_default();
        let rows = read_elements((bytes, length), &[], place)?.unwrap_or_default();
        Ok(rows.values().map(Rows::len).sum())
    }

    /// Returns true if a file has the elements of this set.
    pub(in super::super::super) fn has(set: Set) -> bool {
        READ_BY_KEY.contains(&set)
    }
}

#[cfg(test)]
mod tests;
