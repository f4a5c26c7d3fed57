//! A listening Unix socket at a path: who may connect, what a former process left, and its removal.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixListener;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// The owner and the group may connect.
const SOCKET_MODE: u32 = 0o660;
/// Only the owner may lock.
const LOCK_MODE: u32 = 0o600;
/// Everyone may look up names in the folder. The mode of the socket decides who may connect.
const FOLDER_MODE: u32 = 0o755;
/// The Unix sockets of this network namespace.
const SOCKETS: &str = "/proc/net/unix";
/// The fields before the path in a line of [`SOCKETS`].
const FIELDS: usize = 7;
/// The number of the field with the flags.
const FLAGS_FIELD: usize = 3;
/// The flags of a listening socket (`__SO_ACCEPTCON`).
const LISTENING: &[u8] = b"00010000";

/// Why a Unix socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum UnixSocketError {
    /// A running process listens on it.
    #[error("another process listens on {}", .0.display())]
    InUse(PathBuf),
    /// The path is that of something else.
    #[error("{} exists and is not a socket; remove it, or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// A step failed.
    #[error("cannot {step} {}: {source}", .path.display())]
    Failed {
        /// What was tried.
        step: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// A listening Unix socket. Its file is removed when this is dropped, unless it is another one by then.
#[derive(Debug)]
pub struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file.
    identity: (u64, u64),
}

impl UnixSocket {
    /// Opens a socket to which only its owner and, if one is given, a group may connect. Creates the folder if there is
    /// none. Replaces the socket of a process that has ended. Must be called in a runtime of tokio.
    ///
    /// # Errors
    /// Another process listens there, something else has this name, or the system refuses a step.
    pub fn open(path: &Path, group: Option<u32>) -> Result<Self, UnixSocketError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let failed = |step, path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| UnixSocketError::Failed { step, path, source }
        };
        DirBuilder::new()
            .recursive(true)
            .mode(FOLDER_MODE)
            .create(folder)
            .map_err(failed("create the folder", folder))?;
        // Two processes that start at once must not remove each other's new socket.
        let lock = lock_of(path);
        let _locked = Lock::take(&lock).map_err(failed("lock", &lock))?;
        remove_stale(path)?;
        let socket = bind(path).map_err(failed("create the socket", path))?;
        let opened = Self::listen(socket, path, group);
        if opened.is_err() {
            // The first error is the one to report.
            let _ = fs::remove_file(path);
        }
        opened.map_err(|(step, source)| failed(step, path)(source))
    }

    /// Returns true if a process that has ended left a socket at `path`. Changes nothing.
    ///
    /// # Errors
    /// Another process listens there, or something else has this name.
    pub fn is_stale(path: &Path) -> Result<bool, UnixSocketError> {
        let failed = |step, source| UnixSocketError::Failed { step, path: path.to_owned(), source };
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(failed("look at", error)),
            Ok(file) if !file.file_type().is_socket() => {
                return Err(UnixSocketError::NotASocket(path.to_owned()));
            }
            Ok(_) => {}
        }
        let is_of_root = fs::symlink_metadata(path).is_ok_and(|file| file.uid() == 0);
        match connect(path) {
            // With a full backlog the kernel asks to try again.
            Ok(()) | Err(Errno::AGAIN) => Err(UnixSocketError::InUse(path.to_owned())),
            Err(Errno::CONNREFUSED) => Ok(true),
            // One that root has left. The kernel does not say then whether a process listens. A listener in another network
            // namespace is not found.
            Err(Errno::ACCESS) if is_of_root => match is_listened_on(path) {
                Ok(true) => Err(UnixSocketError::InUse(path.to_owned())),
                Ok(false) => Ok(true),
                Err(_) => Err(failed("connect to the former", Errno::ACCESS.into())),
            },
            Err(error) => Err(failed("connect to the former", error.into())),
        }
    }

    /// Sets who may connect, and listens then: until then, connections are refused.
    fn listen(socket: OwnedFd, path: &Path, group: Option<u32>) -> Result<Self, (&'static str, io::Error)> {
        if group.is_some() {
            std::os::unix::fs::lchown(path, None, group).map_err(|error| ("set the group of", error))?;
        }
        fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))
            .map_err(|error| ("set the mode of", error))?;
        let identity = fs::symlink_metadata(path).map(|file| identity(&file));
        let identity = identity.map_err(|error| ("look at", error))?;
        let listening = rustix::net::listen(&socket, BACKLOG).map_err(io::Error::from);
        let listener = listening.and_then(|()| UnixListener::from_std(socket.into()));
        let listener = listener.map_err(|error| ("listen on", error))?;
        Ok(Self { listener, path: path.to_owned(), identity })
    }

    /// Returns the listener.
    pub const fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // Another process does not replace the socket while this one listens.
        let is_own = fs::symlink_metadata(&self.path).is_ok_and(|file| identity(&file) == self.identity);
        if is_own && let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "a socket could not be removed");
        }
    }
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Returns the file that is locked while the socket at `path` is opened.
fn lock_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// A locked file that only its owner can open, and therefore lock. It is removed when this is dropped, so that a later
/// process of another user can make its own.
struct Lock {
    path: PathBuf,
    _file: OwnedFd,
}

impl Lock {
    /// Creates the file and locks it.
    ///
    /// # Errors
    /// Another process has the lock ([`io::ErrorKind::WouldBlock`]), or the system refuses a step.
    fn take(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::from_raw_mode(LOCK_MODE))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        // The former owner of the lock may have removed the file in between. A lock on it excludes no other process.
        let locked = rustix::fs::fstat(&file)?;
        let present = rustix::fs::lstat(path)?;
        if (locked.st_dev, locked.st_ino) != (present.st_dev, present.st_ino) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Self { path: path.to_owned(), _file: file })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The lock is still held here, so this is its own file.
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "a lock could not be removed");
        }
    }
}

fn open_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

fn bind(path: &Path) -> io::Result<OwnedFd> {
    let socket = open_socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Removes a socket on which no process listens.
fn remove_stale(path: &Path) -> Result<(), UnixSocketError> {
    if !UnixSocket::is_stale(path)? {
        return Ok(());
    }
    let failed =
        |source| UnixSocketError::Failed { step: "remove the former", path: path.to_owned(), source };
    fs::remove_file(path).map_err(failed)
}

/// Returns true if a process in this network namespace listens on the socket at `path`.
fn is_listened_on(path: &Path) -> io::Result<bool> {
    let name = path.file_name();
    let socket = identity(&fs::symlink_metadata(path)?);
    // Another path may lead here by a link, by the folder of its process, or by its mount namespace.
    let is_elsewhere =
        |other: &Path| other.is_absolute() && fs::metadata(other).is_ok_and(|file| identity(&file) != socket);
    let sockets = fs::read(SOCKETS)?;
    let mut listening = sockets.split(|byte| *byte == b'\n').filter_map(listening_path);
    Ok(listening.any(|other| other.file_name() == name && !is_elsewhere(other)))
}

/// Returns the path of a line of [`SOCKETS`] if it is that of a listening socket (`proc_net_unix(5)`).
fn listening_path(line: &[u8]) -> Option<&Path> {
    let mut rest = line;
    let mut flags: &[u8] = &[];
    for field in 0..FIELDS {
        rest = rest.trim_ascii_start();
        let end = rest.iter().position(|byte| *byte == b' ')?;
        let (value, after) = rest.split_at_checked(end)?;
        if field == FLAGS_FIELD {
            flags = value;
        }
        rest = after;
    }
    // One space is between the last field and the path.
    // A name in the abstract namespace begins with `@`, and belongs to no file.
    let is_path = |path: &&[u8]| !path.is_empty() && !path.starts_with(b"@") && flags == LISTENING;
    let path = rest.get(1..).filter(is_path)?;
    Some(Path::new(OsStr::from_bytes(path)))
}

fn connect(path: &Path) -> rustix::io::Result<()> {
    let socket = open_socket().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[tokio::test]
    async fn a_socket_is_for_its_owner_and_group_and_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/portolan/proxy.sock");
        let socket = UnixSocket::open(&path, None).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o660, 0o755));
        UnixStream::connect(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
        if rustix::process::geteuid().is_root() {
            let _socket = UnixSocket::open(&path, Some(4711)).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().gid(), 4711);
        }
    }

    #[tokio::test]
    async fn a_live_socket_is_refused_and_a_stale_one_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = UnixSocket::open(&path, None).unwrap();
        let second = UnixSocket::open(&path, None).unwrap_err();
        assert!(matches!(second, UnixSocketError::InUse(_)), "{second}");
        UnixStream::connect(&path).unwrap();
        // The file that a killed process leaves.
        let stale = folder.path().join("stale");
        drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
        assert!(UnixSocket::is_stale(&stale).unwrap());
        assert!(stale.exists());
        let replaced = UnixSocket::open(&stale, None).unwrap();
        UnixStream::connect(&stale).unwrap();
        drop((first, replaced));
        assert!(!path.exists() && !stale.exists());
    }

    /// Does the work as a user who may not open what the mode of a file forbids to its owner. Root may, and capabilities
    /// belong to threads.
    fn without_capabilities(work: impl FnOnce() + Send) {
        let work = || {
            let mut sets = capabilities(None).unwrap();
            sets.effective = CapabilitySet::empty();
            set_capabilities(None, sets).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            let _entered = runtime.enter();
            work();
        };
        std::thread::scope(|threads| threads.spawn(work).join().unwrap());
    }

    #[test]
    fn a_socket_that_another_user_left_is_replaced_unless_it_is_listened_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o0)).unwrap();
        without_capabilities(|| {
            assert_eq!(connect(&path), Err(Errno::ACCESS));
            let error = UnixSocket::open(&path, None).unwrap_err();
            assert!(matches!(error, UnixSocketError::InUse(_)), "{error}");
            let by_link = folder.path().join("link");
            std::os::unix::fs::symlink(folder.path(), &by_link).unwrap();
            let error = UnixSocket::is_stale(&by_link.join("a socket")).unwrap_err();
            assert!(matches!(error, UnixSocketError::InUse(_)), "{error}");
        });
        drop(listener);
        without_capabilities(|| {
            assert_eq!(connect(&path), Err(Errno::ACCESS));
            let _socket = UnixSocket::open(&path, None).unwrap();
            UnixStream::connect(&path).unwrap();
        });
    }

    #[test]
    fn the_paths_of_listening_sockets_are_found() {
        let line = |flags: &str, path: &str| {
            format!("ffff8f0c4a8e4400: 00000002 00000000 {flags} 0001 01   166{path}")
        };
        for (flags, path, expected) in [
            ("00010000", " /run/a b.sock", Some("/run/a b.sock")),
            ("00010000", "", None),
            ("00000000", " /run/a.sock", None),
        ] {
            let line = line(flags, path);
            assert_eq!(listening_path(line.as_bytes()), expected.map(Path::new), "{line}");
        }
        assert_eq!(listening_path(b"Num       RefCount Protocol Flags    Type St Inode Path"), None);
        assert_eq!(listening_path(b""), None);
    }

    #[tokio::test]
    async fn what_is_not_a_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "precious").unwrap();
        let error = UnixSocket::open(&path, None).unwrap_err();
        assert!(error.to_string().contains("is not a socket; remove it"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let below = UnixSocket::open(&path.join("s"), None).unwrap_err();
        assert!(matches!(below, UnixSocketError::Failed { step: "create the folder", .. }), "{below}");
    }

    #[tokio::test]
    async fn the_end_leaves_the_socket_of_another_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = UnixSocket::open(&path, None).unwrap();
        fs::remove_file(&path).unwrap();
        let second = UnixSocket::open(&path, None).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
        drop(second);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn another_start_at_once_is_an_error_and_not_a_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let lock = lock_of(&path);
        let locked = Lock::take(&lock).unwrap();
        assert_eq!(mode(&lock), 0o600, "other users cannot lock it");
        let error = UnixSocket::open(&path, None).unwrap_err();
        assert!(matches!(error, UnixSocketError::Failed { step: "lock", .. }), "{error}");
        drop(locked);
        let _socket = UnixSocket::open(&path, None).unwrap();
        assert!(!lock.exists());
    }

    #[tokio::test]
    async fn a_lock_of_the_folder_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        // Each user who may list a folder can lock it.
        let opened = fs::File::open(folder.path()).unwrap();
        rustix::fs::flock(&opened, FlockOperation::LockExclusive).unwrap();
        UnixSocket::open(&folder.path().join("s"), None).unwrap();
    }
}
