//! Changes of the folder, by inotify: on the folder itself (mounted configuration swaps a symlink in it), and on the
//! symlinks that lead to it.

use std::{
    collections::{HashMap, HashSet},
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use tokio::{io::unix::AsyncFd, time::timeout};

use super::elsewhere::elsewhere;

/// Time without events after which changes are applied: editors and `cp` cause several events for one change.
const QUIET: Duration = Duration::from_millis(30);
/// Longest wait for a quiet folder. It is read then anyway.
const LONGEST_SETTLING: Duration = Duration::from_secs(1);
/// More links than this are a loop (`MAXSYMLINKS` of the kernel).
const LINKS: usize = 40;
const BUFFER: usize = 4096;

/// The inotify events of the folder.
#[derive(Debug)]
pub(super) struct Events {
    inotify: AsyncFd<Inotify>,
    folder: WatchDescriptor,
    /// The symlinks on the way to the folder: the names that matter in the folders that have them.
    links: HashMap<WatchDescriptor, HashSet<OsString>>,
    /// Which folder is watched.
    pub(super) identity: Identity,
    /// Files that were written to and have not been closed since.
    pub(super) writing: HashSet<OsString>,
    /// True if the folder was removed or renamed, or its path may lead to another one.
    pub(super) is_lost: bool,
}

/// Which folder a path leads to: device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity(u64, u64);

/// What is watched.
struct Watched {
    inotify: Inotify,
    folder: WatchDescriptor,
    links: HashMap<WatchDescriptor, HashSet<OsString>>,
    identity: Identity,
}

/// Returns the identity of the folder. May block as long as its file system does.
pub(super) fn identity(path: &Path) -> io::Result<Identity> {
    fs::metadata(path).map(|metadata| Identity(metadata.dev(), metadata.ino()))
}

impl Events {
    /// Starts to watch the folder with this absolute path.
    #[expect(
        deprecated,
        reason = "the replacement is an unsafe fn, which this crate may not call; its contract holds: Inotify owns its descriptor"
    )]
    pub(super) async fn of(path: &Path) -> io::Result<Self> {
        let path = path.to_owned();
        // The file system must look the folder up, which may take as long as reading it.
        let Watched { inotify, folder, links, identity } = elsewhere(move || watch(&path)).await??;
        let inotify = AsyncFd::new(inotify)?;
        Ok(Self { inotify, folder, links, identity, writing: HashSet::new(), is_lost: false })
    }

    /// Waits until there is a change to read. A file that is open for writing is not ready yet.
    pub(super) async fn wait(&mut self) {
        loop {
            // A folder that went while it was read gives no further event.
            if self.is_lost {
                return;
            }
            match self.inotify.readable_mut().await {
                // All pending events are read below. Later ones make the descriptor ready again.
                Ok(mut ready) => ready.clear_ready(),
                Err(_) => self.is_lost = true,
            }
            let touched = self.take();
            if self.is_lost || touched.iter().any(|name| !self.writing.contains(name)) {
                return;
            }
        }
    }

    /// Waits until there have been no events for a while.
    pub(super) async fn settle(&mut self) {
        let quiet = async { while timeout(QUIET, self.wait()).await.is_ok() && !self.is_lost {} };
        // Files that are still being written then are known to be unfinished.
        let _ = timeout(LONGEST_SETTLING, quiet).await;
    }

    /// Reads all pending events. Returns the names of the files that they concern.
    pub(super) fn take(&mut self) -> HashSet<OsString> {
        let mut touched = HashSet::new();
        let mut buffer = [0; BUFFER];
        loop {
            let events = match self.inotify.get_mut().read_events(&mut buffer) {
                Ok(events) => events,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return touched,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => {
                    self.is_lost = true;
                    return touched;
                }
            };
            for event in events {
                let name = event.name.unwrap_or_default();
                // The end of a watch may come after the watch of the same folder by another path began.
                self.is_lost |= event.mask.intersects(GONE);
                if let Some(names) = self.links.get(&event.wd) {
                    self.is_lost |= names.contains(name);
                }
                let is_overflow = event.mask.contains(EventMask::Q_OVERFLOW);
                if event.wd != self.folder && !is_overflow {
                    continue;
                }
                if is_overflow {
                    self.writing.clear();
                } else if event.mask.contains(EventMask::MODIFY) {
                    self.writing.insert(name.to_owned());
                } else if !event.mask.intersects(NOT_CLOSED) {
                    self.writing.remove(name);
                }
                touched.insert(name.to_owned());
            }
        }
    }
}

const GONE: EventMask = EventMask::DELETE_SELF.union(EventMask::MOVE_SELF).union(EventMask::IGNORED);
/// Events of a file that may still be open for writing.
const NOT_CLOSED: EventMask = EventMask::CREATE.union(EventMask::ATTRIB);

fn watch(path: &Path) -> io::Result<Watched> {
    let inotify = Inotify::init()?;
    let names = WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::MOVED_FROM | WatchMask::DELETE;
    let itself = WatchMask::DELETE_SELF | WatchMask::MOVE_SELF | WatchMask::ONLYDIR;
    // ATTRIB: a file that could not be read may be readable then.
    let files = WatchMask::MODIFY | WatchMask::CLOSE_WRITE | WatchMask::ATTRIB;
    let mut links: HashMap<WatchDescriptor, HashSet<OsString>> = HashMap::new();
    for (folder, link) in links_of(path) {
        // Without permission for it, another target of the link shows when the folder is read the next time.
        if let Ok(descriptor) = inotify.watches().add(folder, names | itself) {
            links.entry(descriptor).or_default().insert(link);
        }
    }
    // The last watch of a folder decides which of its events are reported.
    let folder = inotify.watches().add(path, names | itself | files)?;
    let identity = identity(path)?;
    Ok(Watched { inotify, folder, links, identity })
}

/// Returns every symlink on the way to the folder, with the folder that has it.
fn links_of(path: &Path) -> Vec<(PathBuf, OsString)> {
    let (mut links, mut here, mut ahead) = (Vec::new(), PathBuf::from("/"), names(path));
    while let Some(name) = ahead.pop() {
        if name == ".." {
            here.pop();
            continue;
        }
        let next = here.join(&name);
        match next.read_link() {
            Ok(target) if links.len() < LINKS => {
                links.push((here.clone(), name));
                if target.is_absolute() {
                    here = PathBuf::from("/");
                }
                ahead.extend(names(&target));
            }
            _ => here = next,
        }
    }
    links
}

/// Returns the names of a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let name = |component| match component {
        Component::Normal(name) => Some(OsStr::to_owned(name)),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().rev().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// Longer than any delay on a busy machine.
    const DEADLINE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_folder_that_goes_while_it_is_read_is_noticed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("manifests");
        fs::create_dir(&folder).unwrap();
        let mut events = Events::of(&folder).await.unwrap();
        fs::rename(&folder, parent.path().join("aside")).unwrap();
        // What a read does when it has the contents.
        assert!(!events.take().is_empty());
        timeout(DEADLINE, events.wait()).await.unwrap();
        assert!(events.is_lost);
    }

    #[tokio::test]
    async fn changed_permissions_are_a_change_and_end_no_writing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.yaml");
        fs::write(&path, "").unwrap();
        let mut events = Events::of(folder.path()).await.unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        timeout(DEADLINE, events.wait()).await.unwrap();
        let mut file = fs::File::create(&path).unwrap();
        std::io::Write::write_all(&mut file, b"half").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        events.take();
        assert!(events.writing.contains(OsStr::new("a.yaml")));
        drop(file);
        timeout(DEADLINE, events.wait()).await.unwrap();
        assert!(events.writing.is_empty() && !events.is_lost);
    }

    #[tokio::test]
    async fn a_link_to_the_folder_that_is_swapped_is_noticed() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        fs::create_dir_all(at("v1/manifests")).unwrap();
        fs::create_dir_all(at("v2/manifests")).unwrap();
        symlink("v1", at("current")).unwrap();
        symlink("current/manifests", at("link")).unwrap();
        for path in [at("link"), at("current/manifests")] {
            let mut events = Events::of(&path).await.unwrap();
            let before = events.identity;
            fs::write(at("another"), "").unwrap();
            assert!(events.take().is_empty() && !events.is_lost, "another name beside the link");
            let target = if at("current").read_link().unwrap() == Path::new("v1") { "v2" } else { "v1" };
            symlink(target, at("next")).unwrap();
            fs::rename(at("next"), at("current")).unwrap();
            timeout(DEADLINE, events.wait()).await.unwrap();
            assert!(events.is_lost && identity(&path).unwrap() != before);
        }
    }

    #[test]
    fn links_in_a_circle_end() {
        let folder = tempfile::tempdir().unwrap();
        symlink("b", folder.path().join("a")).unwrap();
        symlink("a", folder.path().join("b")).unwrap();
        assert_eq!(links_of(&folder.path().join("a")).len(), LINKS);
    }
}
