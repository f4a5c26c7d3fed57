//! The compressed file.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use crate::{FORMAT, Snapshot, VERSION};

/// Bytes of the largest JSON that is written and accepted: 100,000 Services with 10 endpoints fit.
const JSON_MAX: u64 = 1 << 30;
/// Only the owner may read a snapshot: it names every Service and endpoint.
const FILE_MODE: u32 = 0o600;
/// Bytes that are compressed at once. A serialiser writes a few at a time.
const BUFFER: usize = 32 << 10;

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file exists.
    #[error("{} exists; name another file, or replace it with --force", .0.display())]
    Exists(PathBuf),
    /// The file cannot be written.
    #[error("cannot write {}: {source}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The content is something else.
    #[error("this is no snapshot: {0}; name a file that `portolan snapshot` has written")]
    NotASnapshot(String),
    /// The content is a snapshot of a later version.
    #[error(
        "this snapshot has version {0}, and this program reads up to version {VERSION}; use a later portolan"
    )]
    Version(u32),
    /// The snapshot cannot be compressed.
    #[error("the snapshot cannot be written: {0}")]
    Json(#[from] serde_json::Error),
}

/// Writes a snapshot as compressed JSON. The objects are compressed as they are serialised.
///
/// # Errors
/// The writer fails, or the snapshot has more JSON than [`unpack`] accepts.
pub fn pack<O: Serialize, R: Serialize>(
    snapshot: &Snapshot<O, R>,
    writer: impl Write,
) -> Result<(), serde_json::Error> {
    pack_within(JSON_MAX, snapshot, writer)
}

fn pack_within<O: Serialize, R: Serialize>(
    limit: u64,
    snapshot: &Snapshot<O, R>,
    writer: impl Write,
) -> Result<(), serde_json::Error> {
    let mut buffer = BufWriter::with_capacity(BUFFER, GzEncoder::new(writer, Compression::fast()));
    serde_json::to_writer(Limited { writer: &mut buffer, limit, left: limit }, snapshot)?;
    let packed = buffer.into_inner().map_err(io::IntoInnerError::into_error);
    let mut writer = packed.and_then(GzEncoder::finish).map_err(serde_json::Error::io)?;
    writer.flush().map_err(serde_json::Error::io)
}

/// Passes bytes to a writer, and refuses those beyond a limit.
struct Limited<W> {
    writer: W,
    limit: u64,
    left: u64,
}

impl<W: Write> Write for Limited<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            return Err(io::Error::other(format!(
                "the snapshot has more than {} bytes of JSON, and could not be read again",
                self.limit
            )));
        }
        let written = self.writer.write(bytes)?;
        self.left = self.left.saturating_sub(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// What tells a snapshot from something else.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    format: String,
    #[serde(default)]
    version: u32,
}

/// Reads a snapshot from its bytes.
///
/// # Errors
/// They are something else.
pub fn unpack(bytes: &[u8]) -> Result<Snapshot, Error> {
    unpack_within(JSON_MAX, bytes)
}

fn unpack_within(limit: u64, bytes: &[u8]) -> Result<Snapshot, Error> {
    let mut json = Vec::new();
    let mut decoder = GzDecoder::new(bytes).take(limit.saturating_add(1));
    decoder.read_to_end(&mut json).map_err(|error| Error::NotASnapshot(error.to_string()))?;
    if json.len() as u64 > limit {
        return Err(Error::NotASnapshot(format!("it has more than {limit} bytes of JSON")));
    }
    let wrong = |error: serde_json::Error| Error::NotASnapshot(error.to_string());
    // A later version may have other fields.
    let Head { format, version } = serde_json::from_slice(&json).map_err(wrong)?;
    if format != FORMAT {
        return Err(Error::NotASnapshot(format!("its field format is not {FORMAT}")));
    }
    if version > VERSION {
        return Err(Error::Version(version));
    }
    serde_json::from_slice(&json).map_err(wrong)
}

impl Snapshot {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or is something else.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Read { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?;
        if !length.is_file() {
            return Err(failed(io::Error::other("it is not a regular file")));
        }
        let mut bytes = Vec::new();
        (&mut file).take(JSON_MAX).read_to_end(&mut bytes).map_err(failed)?;
        unpack(&bytes)
    }
}

/// Writes a snapshot to a new file that only its owner may read and write. An existing file is replaced if `force` is
/// true, as a whole.
///
/// # Errors
/// The file exists and `force` is false, or it cannot be written, or [`Snapshot::read`] would refuse it. Then there is no new
/// file.
pub fn create(path: &Path, snapshot: &Snapshot, force: bool) -> Result<(), Error> {
    create_within(JSON_MAX, path, snapshot, force)
}

fn create_within(limit: u64, path: &Path, snapshot: &Snapshot, force: bool) -> Result<(), Error> {
    if !force {
        return write_new(limit, path, snapshot);
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let new = PathBuf::from(name);
    write_new(limit, &new, snapshot)?;
    std::fs::rename(&new, path).map_err(|source| {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&new);
        Error::Write { path: path.to_owned(), source }
    })
}

fn write_new(limit: u64, path: &Path, snapshot: &Snapshot) -> Result<(), Error> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => Error::Exists(path.to_owned()),
        _ => Error::Write { path: path.to_owned(), source },
    };
    let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path).map_err(failed)?;
    let written = pack_within(limit, snapshot, &file).map_err(io::Error::from).and_then(|()| file.sync_all());
    written.map_err(|source| {
        // The first error is the one to report.
        let _ = std::fs::remove_file(path);
        failed(source)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::os::unix::fs::PermissionsExt as _;

    use proptest::prelude::*;

    use super::*;

    fn snapshot(time: &str) -> Snapshot {
        Snapshot { format: FORMAT.into(), version: VERSION, time: time.into(), ..Snapshot::default() }
    }

    fn packed(snapshot: &Snapshot) -> Vec<u8> {
        let mut bytes = Vec::new();
        pack(snapshot, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_file_is_for_its_owner_and_replaced_only_by_force() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.json.gz");
        create(&path, &snapshot("1"), false).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        let error = create(&path, &snapshot("2"), false).unwrap_err().to_string();
        assert!(error.ends_with("exists; name another file, or replace it with --force"), "{error}");
        assert_eq!(Snapshot::read(&path).unwrap().time, "1");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        create(&path, &snapshot("2"), true).unwrap();
        assert_eq!(Snapshot::read(&path).unwrap(), snapshot("2"));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let nowhere = create(&folder.path().join("no/file"), &snapshot("3"), false).unwrap_err();
        assert!(matches!(nowhere, Error::Write { .. }), "{nowhere}");
    }

    #[test]
    fn endpoints_that_are_set_aside_are_there_if_there_are_any() {
        let none = snapshot("1");
        assert!(!serde_json::to_string(&none).unwrap().contains("setAside"));
        assert_eq!(unpack(&packed(&none)).unwrap(), none);
        let some = Snapshot { set_aside: ["10.0.0.1:8080".parse().unwrap()].into(), ..none };
        assert!(serde_json::to_string(&some).unwrap().contains(r#""setAside":["10.0.0.1:8080"]"#));
        assert_eq!(unpack(&packed(&some)).unwrap(), some);
    }

    #[test]
    fn something_else_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = Snapshot::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("it is not a regular file"), "{error}");
        assert!(matches!(Snapshot::read(&folder.path().join("none")), Err(Error::Read { .. })));
        assert!(matches!(unpack(b"text"), Err(Error::NotASnapshot(_))));
        let other = packed(&Snapshot { format: "other".into(), ..snapshot("1") });
        let error = unpack(&other).unwrap_err().to_string();
        assert!(error.contains("its field format is not portolan-snapshot; name a file that"), "{error}");
        let later = packed(&Snapshot { version: VERSION + 1, ..snapshot("1") });
        assert!(matches!(unpack(&later), Err(Error::Version(2))));
        let whole = packed(&snapshot("1"));
        assert!(unpack(&whole[..whole.len() - 1]).is_err(), "a part");
    }

    #[test]
    fn the_largest_snapshot_is_read_and_a_larger_one_neither_written_nor_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.json.gz");
        let largest = snapshot("1");
        let limit = serde_json::to_vec(&largest).unwrap().len() as u64;
        create_within(limit, &path, &largest, false).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(unpack_within(limit, &bytes).unwrap(), largest);

        let more = format!("has more than {limit} bytes of JSON");
        let larger = snapshot("12");
        for (name, force) in [("other", false), ("s.json.gz", true)] {
            let error = create_within(limit, &folder.path().join(name), &larger, force).unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with("cannot write ") && text.contains(&more), "{text}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no part of it is left");
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "the former file stays");
        let error = unpack_within(limit, &packed(&larger)).unwrap_err().to_string();
        assert!(error.starts_with("this is no snapshot: ") && error.contains(&more), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>, json in "\\PC*") {
            prop_assert!(unpack(&bytes).is_err());
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(json.as_bytes()).unwrap();
            prop_assert!(unpack(&encoder.finish().unwrap()).is_err());
        }
    }
}
