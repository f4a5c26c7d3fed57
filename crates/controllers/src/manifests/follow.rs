//! Follows the folder: notices changes of its files by inotify on the folder itself (mounted configuration swaps a
//! symlink in it), and the deletion of objects that it declares.

use std::{
    collections::HashSet,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use inotify::{EventMask, Inotify, WatchMask};
use portolan_api::Api;
use portolan_schema::Resource;
use tokio::{
    io::unix::AsyncFd,
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    Folder, Reserved, Synced,
    contents::{self, Contents},
    elsewhere::elsewhere,
};
use crate::Feed;

/// Time without events after which changes are applied: editors and `cp` cause several events for one change.
const QUIET: Duration = Duration::from_millis(30);
/// Longest wait for a quiet folder. It is read then anyway.
const LONGEST_SETTLING: Duration = Duration::from_secs(1);
/// Most reads of a folder that keeps changing while it is read.
const READS: usize = 5;
/// Interval at which a folder that has vanished is searched for, and first delay of a retry.
const RETRY: Duration = Duration::from_secs(1);
/// Longest delay of a retry. The delay starts at [`RETRY`] and doubles with each failure.
const LONGEST_RETRY: Duration = Duration::from_secs(60);
const BUFFER: usize = 4096;

/// Keeps the stored objects in sync with a folder.
#[derive(Debug)]
pub struct Follower {
    folder: Folder,
    events: Events,
    feed: Feed,
    /// Delay until failed objects are retried; `None` if nothing failed.
    retry: Option<Duration>,
    /// True if the folder has changed while it was read.
    is_stale: bool,
}

/// The inotify events of the folder.
#[derive(Debug)]
struct Events {
    inotify: AsyncFd<Inotify>,
    /// Files that were written to and have not been closed since.
    writing: HashSet<OsString>,
    /// True if the folder itself was removed or renamed.
    is_lost: bool,
}

impl Follower {
    /// Starts to watch the folder, then applies its contents, so that no change is missed in between.
    pub async fn start(api: Arc<Api>, path: PathBuf) -> io::Result<Self> {
        Self::start_beside(api, path, Reserved::default()).await
    }

    /// Does the same as [`Follower::start`]. Objects that are reserved for another source are refused.
    pub async fn start_beside(api: Arc<Api>, path: PathBuf, reserved: Reserved) -> io::Result<Self> {
        let events = Events::of(&path).await?;
        let path = std::path::absolute(path)?;
        let resources = Resource::kept();
        let feed = Feed::new(api.store(), resources);
        let folder = Folder { reserved, ..Folder::new(api, path) };
        let mut follower = Self { folder, events, feed, retry: None, is_stale: false };
        let contents = follower.read().await?;
        follower.sync(contents).await;
        Ok(follower)
    }

    /// Returns what is wrong in the files of the folder: one line for each document that is not applied.
    pub fn complaints(&self) -> impl Iterator<Item = &str> {
        self.folder.files.values().flat_map(|file| &file.complaints).map(String::as_str)
    }

    /// Follows the folder until the server stops.
    pub async fn run(mut self, mut stopping: watch::Receiver<bool>) {
        tokio::select! {
            () = self.follow() => {}
            _ = stopping.wait_for(|stopping| *stopping) => {}
        }
    }

    async fn follow(&mut self) {
        loop {
            let retry = if self.is_stale { Some(RETRY) } else { self.retry };
            let is_due = async {
                match retry {
                    Some(delay) => sleep(delay).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.events.wait() => self.events.settle().await,
                () = self.feed.changed() => {
                    let seen = self.feed.take();
                    if !self.folder.observe(seen) {
                        continue;
                    }
                }
                () = is_due => {}
            }
            if self.events.is_lost {
                self.find_again().await;
            }
            match self.read().await {
                Ok(contents) => self.sync(contents).await,
                Err(error) => {
                    tracing::error!(folder = %self.folder.path.display(), %error, "manifests folder cannot be read");
                }
            }
        }
    }

    async fn sync(&mut self, contents: Contents) {
        self.retry = match (self.folder.sync(contents).await, self.retry) {
            (Synced::Done, _) => None,
            (Synced::TryAgain, None) => Some(RETRY),
            (Synced::TryAgain, Some(delay)) => Some(delay.saturating_mul(2).min(LONGEST_RETRY)),
        };
    }

    /// Reads the folder while no file changes, so that no half-written file is applied.
    async fn read(&mut self) -> io::Result<Contents> {
        self.is_stale = false;
        for _ in 1..READS {
            let contents = self.contents().await?;
            if self.events.take().is_empty() {
                return Ok(contents);
            }
            self.events.settle().await;
        }
        let mut contents = self.contents().await?;
        // Files that still change are read at the retry.
        for name in self.events.take() {
            self.is_stale = true;
            if let Some(found) = contents.get_mut(&self.folder.path.join(name)) {
                *found = contents::Found::Unfinished;
            }
        }
        Ok(contents)
    }

    /// Reads the present contents of the folder.
    async fn contents(&self) -> io::Result<Contents> {
        let (path, writing) = (self.folder.path.clone(), self.events.writing.clone());
        elsewhere(move || contents::read(&path, &writing, contents::LIMIT)).await?
    }

    /// Waits until a folder of the same name exists again, after it was removed or renamed. Its objects stay
    /// meanwhile.
    async fn find_again(&mut self) {
        let path = self.folder.path.clone();
        tracing::warn!(folder = %path.display(), "manifests folder is gone; its objects stay, waiting for it");
        loop {
            match Events::of(&path).await {
                Ok(events) => {
                    self.events = events;
                    return;
                }
                Err(_) => sleep(RETRY).await,
            }
        }
    }
}

impl Events {
    #[expect(
        deprecated,
        reason = "the replacement is an unsafe fn, which this crate may not call; its contract holds: Inotify owns its descriptor"
    )]
    async fn of(path: &Path) -> io::Result<Self> {
        let path = path.to_owned();
        // The file system must look the folder up, which may take as long as reading it.
        let inotify = elsewhere(move || Self::watch(&path)).await??;
        Ok(Self { inotify: AsyncFd::new(inotify)?, writing: HashSet::new(), is_lost: false })
    }

    fn watch(path: &Path) -> io::Result<Inotify> {
        let inotify = Inotify::init()?;
        let mask = WatchMask::CREATE
            | WatchMask::MODIFY
            | WatchMask::CLOSE_WRITE
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        inotify.watches().add(path, mask)?;
        Ok(inotify)
    }

    /// Waits until there is a change to read. A file that is open for writing is not ready yet.
    async fn wait(&mut self) {
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
    async fn settle(&mut self) {
        let quiet = async { while timeout(QUIET, self.wait()).await.is_ok() && !self.is_lost {} };
        // Files that are still being written then are known to be unfinished.
        let _ = timeout(LONGEST_SETTLING, quiet).await;
    }

    /// Reads all pending events. Returns the names of the files that they concern.
    fn take(&mut self) -> HashSet<OsString> {
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
                self.is_lost |= event.mask.intersects(GONE);
                let name = event.name.unwrap_or_default().to_owned();
                if event.mask.contains(EventMask::MODIFY) {
                    self.writing.insert(name.clone());
                } else if event.mask.contains(EventMask::Q_OVERFLOW) {
                    self.writing.clear();
                } else if !event.mask.contains(EventMask::CREATE) {
                    self.writing.remove(&name);
                }
                touched.insert(name);
            }
        }
    }
}

const GONE: EventMask = EventMask::DELETE_SELF.union(EventMask::MOVE_SELF).union(EventMask::IGNORED);

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any delay on a busy machine.
    const DEADLINE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_folder_that_goes_while_it_is_read_is_noticed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("manifests");
        std::fs::create_dir(&folder).unwrap();
        let mut events = Events::of(&folder).await.unwrap();
        std::fs::rename(&folder, parent.path().join("aside")).unwrap();
        // What a read does when it has the contents.
        assert!(!events.take().is_empty());
        timeout(DEADLINE, events.wait()).await.unwrap();
        assert!(events.is_lost);
    }
}
