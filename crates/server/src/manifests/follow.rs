//! Noticing that the folder has changed, by inotify on the folder itself (mounted configuration swaps a symlink there),
//! and that an object which it declares is gone.

use std::{
    collections::HashSet,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use inotify::{EventMask, Inotify, WatchMask};
use tokio::{
    io::unix::AsyncFd,
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    Folder, Synced,
    contents::{self, Contents},
    elsewhere::elsewhere,
};
use crate::{api::Api, controllers::Feed, resource::Resource};

/// Events that come within this time are handled together: editors and `cp` make several for one change.
const QUIET: Duration = Duration::from_millis(30);
/// A folder that is never quiet is read after this time.
const LONGEST_SETTLING: Duration = Duration::from_secs(1);
/// How often a folder is read anew because it has changed meanwhile.
const READS: usize = 5;
/// How often a folder that has vanished is looked for.
const RETRY: Duration = Duration::from_secs(1);
/// What failed is tried again after [`RETRY`], and later and later up to this.
const LONGEST_RETRY: Duration = Duration::from_secs(60);
const BUFFER: usize = 4096;

/// Keeps the objects in step with a folder.
#[derive(Debug)]
pub(crate) struct Follower {
    folder: Folder,
    events: Events,
    feed: Feed,
    /// After how long what failed is tried again; `None` if nothing failed.
    retry: Option<Duration>,
    /// Whether the folder has changed while it was read.
    is_stale: bool,
}

/// What happens in the folder.
#[derive(Debug)]
struct Events {
    inotify: AsyncFd<Inotify>,
    /// Files that were written to and not closed since.
    writing: HashSet<OsString>,
    /// Whether the folder itself is gone.
    is_lost: bool,
}

impl Follower {
    /// Starts to watch the folder, then loads it: nothing is missed in between.
    pub(crate) async fn start(api: Arc<Api>, path: PathBuf) -> io::Result<Self> {
        let events = Events::of(&path).await?;
        let path = std::path::absolute(path)?;
        let resources = Resource::served().filter(|it| it.stored() == *it);
        let feed = Feed::new(api.store(), resources);
        let mut follower =
            Self { folder: Folder::new(api, path), events, feed, retry: None, is_stale: false };
        let contents = follower.read().await?;
        follower.sync(contents).await;
        Ok(follower)
    }

    /// Follows the folder until the server stops.
    pub(crate) async fn run(mut self, mut stopping: watch::Receiver<bool>) {
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

    /// Reads the folder while nothing happens in it, so that no file is seen half-written.
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
        // These are read another time.
        for name in self.events.take() {
            self.is_stale = true;
            if let Some(found) = contents.get_mut(&self.folder.path.join(name)) {
                *found = contents::Found::Unfinished;
            }
        }
        Ok(contents)
    }

    /// What is in the folder now.
    async fn contents(&self) -> io::Result<Contents> {
        let (path, writing) = (self.folder.path.clone(), self.events.writing.clone());
        elsewhere(move || contents::read(&path, &writing)).await?
    }

    /// The folder was removed or renamed: its objects stay until one of that name is there again.
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
        // The file system has to find the folder, which may take as long as reading it.
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

    /// Waits until there is something to read: a file that is only being written to is not.
    async fn wait(&mut self) {
        loop {
            match self.inotify.readable_mut().await {
                // All there is is read below; what comes later makes it ready again.
                Ok(mut ready) => ready.clear_ready(),
                Err(_) => self.is_lost = true,
            }
            let touched = self.take();
            if self.is_lost || touched.iter().any(|name| !self.writing.contains(name)) {
                return;
            }
        }
    }

    /// Waits until nothing has happened for a while.
    async fn settle(&mut self) {
        let quiet = async { while timeout(QUIET, self.wait()).await.is_ok() && !self.is_lost {} };
        // What is not quiet by then is known to be unfinished.
        let _ = timeout(LONGEST_SETTLING, quiet).await;
    }

    /// Takes notice of all that has happened; returns the names of the files concerned.
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
