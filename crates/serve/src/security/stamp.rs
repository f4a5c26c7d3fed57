//! Private files: writes them atomically and detects changes.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, chown};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Maximum size of a certificate, key or token file in bytes.
const LIMIT: u64 = 1 << 20;

/// Identifies one state of a file; `None` if it does not exist.
pub(super) type Stamp = Option<(u64, i64, i64, u64)>;

/// Returns the state of a file. Follows symbolic links, because mounted Secrets are updated by replacing a link.
pub(super) fn stamp(path: &Path) -> Stamp {
    let found = fs::metadata(path).ok()?;
    Some((found.ino(), found.mtime(), found.mtime_nsec(), found.size()))
}

/// Reads a regular file of limited size. Other types of files could block the reader for ever, or have an effect when
/// they are opened.
pub(super) fn read(path: &Path) -> io::Result<String> {
    check_regular(&fs::metadata(path)?)?;
    let without_waiting = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(without_waiting).open(path)?;
    // Another file may have got the name in the meantime.
    check_regular(&file.metadata()?)?;
    let mut text = String::new();
    file.take(LIMIT + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LIMIT {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {LIMIT} bytes")));
    }
    Ok(text)
}

fn check_regular(found: &Metadata) -> io::Result<()> {
    let why = "this is no regular file; put one in its place";
    if found.is_file() { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, why)) }
}

/// The owner of a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The user of this process.
    Writer,
    /// The owner of the folder, if root writes the file.
    Folder,
}

/// Writes a file that only its owner can read, under a temporary name first. After a crash the file has its old or
/// its new content. Nothing but a regular file is replaced: a device would be gone.
pub(super) fn write(path: &Path, text: &str, owner: Owner) -> io::Result<()> {
    let path = &replaced(path, owner)?;
    let temporary = temporary(path);
    // Removes a temporary file that a crash has left.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        if owner == Owner::Folder {
            inherit_owner(&temporary)?;
        }
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
        return written;
    }
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Returns the file that a write to this path replaces. A symbolic link stays, and the file that it leads to is replaced, unless the
/// owner of the folder may have made the link: root would replace a file of another user then, so the link is replaced.
fn replaced(path: &Path, owner: Owner) -> io::Result<PathBuf> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path.to_owned()),
        found => found?,
    };
    if found.is_symlink() && owner == Owner::Writer {
        let target = fs::metadata(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                io::Error::new(error.kind(), "this symbolic link leads to no file; remove it")
            }
            _ => error,
        })?;
        check_regular(&target)?;
        return fs::canonicalize(path);
    }
    if !found.is_symlink() {
        check_regular(&found)?;
    }
    Ok(path.to_owned())
}

/// Gives a file that root has created to the owner of its folder. Files that an administrator creates in the folder
/// of a server must be readable for the server.
pub(super) fn inherit_owner(path: &Path) -> io::Result<()> {
    let (Some(folder), found) =
        (path.parent().filter(|folder| !folder.as_os_str().is_empty()), fs::metadata(path)?)
    else {
        return Ok(());
    };
    let folder = fs::metadata(folder)?;
    // Only uid 0 may change the owner. If root owns the folder, no change is needed.
    if found.uid() == 0 && folder.uid() != 0 {
        chown(path, Some(folder.uid()), Some(folder.gid()))
    } else {
        Ok(())
    }
}

fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.new"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_left_by_a_crash_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        fs::write(temporary(&path), "half").unwrap();
        fs::write(&path, "old").unwrap();
        let before = stamp(&path);
        write(&path, "new", Owner::Folder).unwrap();
        assert_eq!(read(&path).unwrap(), "new");
        assert_ne!(stamp(&path), before);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(stamp(&folder.path().join("other")), None);
    }

    #[test]
    fn nothing_but_a_regular_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [fifo, file, link, dangling] =
            ["fifo", "file", "link", "dangling"].map(|name| folder.path().join(name));
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        std::os::unix::fs::symlink("missing", &dangling).unwrap();
        for path in [&fifo, &dangling, folder.path()] {
            write(path, "new", Owner::Writer).unwrap_err();
        }
        assert!(!fs::metadata(&fifo).unwrap().is_file());
        write(&link, "new", Owner::Writer).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        write(&link, "newer", Owner::Folder).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_file(), "the link is replaced");
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    }

    #[test]
    #[expect(clippy::cast_possible_truncation, reason = "a small constant")]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        for path in [&fifo, &link, Path::new("/dev/zero"), folder.path()] {
            let error = read(path).unwrap_err().to_string();
            assert!(error.contains("no regular file"), "{}: {error}", path.display());
        }
        let (text, to_text) = (folder.path().join("text"), folder.path().join("to-text"));
        fs::write(&text, "x").unwrap();
        std::os::unix::fs::symlink(&text, &to_text).unwrap();
        assert_eq!(read(&to_text).unwrap(), "x");
        fs::write(&text, vec![b'x'; LIMIT as usize + 1]).unwrap();
        assert!(read(&text).unwrap_err().to_string().contains("larger"));
    }
}
