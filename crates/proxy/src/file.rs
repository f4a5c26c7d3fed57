//! Watches a file for changed content. The file may be written in place, replaced by a rename, or reached through a
//! symlink that is swapped, as in a mounted `ConfigMap`.
//!
//! inotify watches the file and every folder on the path in which a name decides where the path leads. A file that is
//! being written is read when its writer closes it.
//!
//! inotify may be used up: the kernel limits what all processes of a user have of it, also in other containers. Then the
//! file is read at an interval until there is some again. A file that is watched is read at a longer interval, because no
//! event reports a change by another host, on a network file system.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use inotify::{Event, EventMask, Inotify, WatchDescriptor, WatchMask};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until, timeout_at};

/// More links than this are a loop (`MAXSYMLINKS` of the kernel).
const LINKS: usize = 40;
/// Delay before a watch that could not be set up is retried, and interval at which the file is read meanwhile. What no event
/// has reported counts if it is still so after this time.
const RETRY: Duration = Duration::from_secs(5);
/// Interval at which a file that is watched is read.
const REREAD: Duration = Duration::from_secs(30);
/// Bytes of one read of events.
const BUFFER: usize = 8192;

/// A file and its last known content.
#[derive(Debug)]
pub(super) struct FileWatch {
    path: PathBuf,
    content: Option<Vec<u8>>,
    /// Why the file cannot be read, if that was reported.
    unreadable: Option<String>,
    /// `None` while it cannot be set up.
    watch: Option<Watch>,
}

/// What a reading has found.
type Found = Result<Vec<u8>, String>;

/// The inotify watches of the folders and the file.
#[derive(Debug)]
struct Watch {
    events: AsyncFd<Inotify>,
    /// The folders, each with the names whose events matter.
    folders: HashMap<WatchDescriptor, (PathBuf, HashSet<OsString>)>,
    /// The file itself. Every event of it matters.
    file: Option<WatchDescriptor>,
}

impl FileWatch {
    /// Starts the watch. Without one, the file is read at an interval. Must be called inside a tokio runtime.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let watch = Watch::set_up(&path).inspect_err(|error| warn_of_reading(&path, error)).ok();
        Ok(Self { content: std::fs::read(&path).ok(), path, unreadable: None, watch })
    }

    /// Returns the content at the last reading, or `None` if the file has never been readable.
    pub(super) fn content(&self) -> Option<&[u8]> {
        self.content.as_deref()
    }

    /// Waits until the content changes, or the file is readable again.
    ///
    /// # Errors
    /// The file has become unreadable, or for another reason than before. What was read before stays the content.
    pub(super) async fn changed(&mut self) -> Result<(), String> {
        // What was found without an event, once. Its writer may not have finished.
        let mut once: Option<Found> = None;
        let mut due = Instant::now() + self.interval(false);
        loop {
            let mut is_complete = self.wait(due).await;
            is_complete |= self.set_up_again();
            let found = std::fs::read(&self.path).map_err(|error| error.to_string());
            let is_news = match &found {
                Ok(content) => self.content.as_ref() != Some(content) || self.unreadable.is_some(),
                Err(reason) => self.unreadable.as_ref() != Some(reason),
            };
            if is_news
                && (is_complete && found.is_ok() || once.as_ref() == Some(&found) && due <= Instant::now())
            {
                return self.take(found);
            }
            let was_sure = once.is_none();
            once = is_news.then_some(found);
            // The time is absolute, so that events do not defer it.
            if due <= Instant::now() || was_sure && once.is_some() {
                due = Instant::now() + self.interval(once.is_some());
            }
        }
    }

    fn take(&mut self, found: Found) -> Result<(), String> {
        self.unreadable = found.as_ref().err().cloned();
        self.content = Some(found?);
        Ok(())
    }

    /// Returns the time until the next reading.
    fn interval(&self, is_unsure: bool) -> Duration {
        if is_unsure || self.watch.is_none() { RETRY } else { REREAD }
    }

    /// Waits for an event, at most until this time. Returns true if a writer has finished.
    async fn wait(&mut self, due: Instant) -> bool {
        let Some(watch) = &mut self.watch else {
            sleep_until(due).await;
            return false;
        };
        match timeout_at(due, watch.relevant()).await {
            Ok(Ok(is_complete)) => is_complete,
            Ok(Err(error)) => {
                tracing::warn!(file = %self.path.display(), %error, "the configuration file cannot be watched; starting another watch");
                false
            }
            Err(_) => false,
        }
    }

    /// Sets up the watch again, because the path may lead elsewhere. The new watch reports later events. Earlier
    /// changes show when the file is read. Returns true if there was none.
    fn set_up_again(&mut self) -> bool {
        // The old watch ends first, so that one is enough.
        let was_watched = self.watch.take().is_some();
        match Watch::set_up(&self.path) {
            Ok(watch) => {
                self.watch = Some(watch);
                if !was_watched {
                    tracing::info!(file = %self.path.display(), "the configuration file is watched now");
                }
                return !was_watched;
            }
            Err(error) if was_watched => warn_of_reading(&self.path, &error),
            Err(_) => {}
        }
        false
    }
}

/// Warns that the file is read at an interval because it cannot be watched, and says what mends this.
fn warn_of_reading(path: &Path, error: &io::Error) {
    let mend = match Errno::from_io_error(error) {
        Some(Errno::MFILE) => {
            "; if processes of this user hold all inotify instances, raise fs.inotify.max_user_instances"
        }
        Some(Errno::NOSPC) => {
            "; processes of this user hold all inotify watches: raise fs.inotify.max_user_watches"
        }
        _ => "",
    };
    let seconds = RETRY.as_secs();
    tracing::warn!(file = %path.display(), %error, "the configuration file cannot be watched; it is read every {seconds} seconds{mend}");
}

impl Watch {
    fn set_up(path: &Path) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let mut watches = inotify.watches();
        let mut folders: HashMap<_, (PathBuf, HashSet<OsString>)> = HashMap::new();
        let folder_mask = WatchMask::CREATE
            | WatchMask::CLOSE_WRITE
            | WatchMask::MOVED_TO
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        for Step { folder, name, plain } in way(path) {
            let descriptor = match watches.add(&folder, folder_mask) {
                Ok(descriptor) => descriptor,
                // A process with search permission only cannot watch a folder. Whole folders are rarely replaced.
                Err(error) if plain && error.kind() == io::ErrorKind::PermissionDenied => continue,
                Err(error) => return Err(error),
            };
            folders.entry(descriptor).or_insert((folder, HashSet::new())).1.insert(name);
        }
        // A file that is mounted by itself is written through another folder.
        let file_mask =
            WatchMask::CLOSE_WRITE | WatchMask::ATTRIB | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF;
        let file = watches.add(path, file_mask);
        Ok(Self { events: readable(inotify)?, folders, file: file.ok() })
    }

    /// Waits for events after which the content may differ. Consumes all pending events. Returns false if only attributes
    /// have changed: the file may be readable, but a writer may not have finished.
    async fn relevant(&mut self) -> io::Result<bool> {
        loop {
            let mut ready = self.events.readable_mut().await?;
            let (mut buffer, mut relevant, mut complete) = ([0; BUFFER], false, false);
            loop {
                match ready.get_inner_mut().read_events(&mut buffer) {
                    Ok(events) => {
                        for event in events {
                            let is_relevant = is_relevant(&event, &self.folders, self.file.as_ref());
                            relevant |= is_relevant;
                            complete |= is_relevant && !event.mask.contains(EventMask::ATTRIB);
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            ready.clear_ready();
            if relevant {
                return Ok(complete);
            }
        }
    }
}

fn is_relevant(
    event: &Event<&OsStr>,
    folders: &HashMap<WatchDescriptor, (PathBuf, HashSet<OsString>)>,
    file: Option<&WatchDescriptor>,
) -> bool {
    // The queue overflowed: events were lost.
    if event.mask.contains(EventMask::Q_OVERFLOW) || file == Some(&event.wd) {
        return true;
    }
    let Some((folder, names)) = folders.get(&event.wd) else { return false };
    // An event without a name is about the folder itself.
    let Some(name) = event.name else { return true };
    names.contains(name) && !(event.mask.contains(EventMask::CREATE) && will_be_closed(&folder.join(name)))
}

/// Returns true if the writer of a new regular file has not closed it. The file is read when it does. A link is
/// complete at once.
fn will_be_closed(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1)
}

#[expect(deprecated, reason = "its successor is unsafe; Inotify owns its descriptor for good")]
fn readable(inotify: Inotify) -> io::Result<AsyncFd<Inotify>> {
    AsyncFd::new(inotify)
}

/// A name on the path that decides which file the path means.
#[derive(Debug)]
struct Step {
    folder: PathBuf,
    name: OsString,
    /// Whether the name is a folder, not a symlink or the file.
    plain: bool,
}

/// Returns every name on the path: folders, symlinks and the file. Ends at the first name that does not exist.
fn way(path: &Path) -> Vec<Step> {
    let mut way = Vec::new();
    let mut folder = PathBuf::from("/");
    let mut ahead = names(path);
    let mut links = 0;
    while let Some(name) = ahead.pop() {
        if name == ".." {
            folder.pop();
            continue;
        }
        let here = folder.join(&name);
        let Ok(metadata) = here.symlink_metadata() else {
            way.push(Step { folder, name, plain: false });
            return way;
        };
        let plain = !metadata.is_symlink() && !ahead.is_empty();
        way.push(Step { folder: folder.clone(), name, plain });
        if metadata.is_symlink() && links < LINKS {
            links += 1;
            let Ok(target) = here.read_link() else { return way };
            if target.is_absolute() {
                folder = PathBuf::from("/");
            }
            ahead.extend(names(&target));
        } else {
            folder = here;
        }
    }
    way
}

/// Returns the names of a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    names.collect()
}

#[cfg(test)]
mod tests;
