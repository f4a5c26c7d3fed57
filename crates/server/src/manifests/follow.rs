//! Noticing that the folder has changed, by inotify on the folder itself (mounted configuration swaps a symlink there).

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use inotify::{EventMask, Inotify, WatchMask};
use tokio::{
    io::unix::AsyncFd,
    sync::watch,
    time::{sleep, timeout},
};

use super::Folder;
use crate::api::Api;

/// Events that come within this time are handled together: editors and `cp` make several for one change.
const QUIET: Duration = Duration::from_millis(30);
/// How often a folder that has vanished is looked for.
const RETRY: Duration = Duration::from_secs(1);
const BUFFER: usize = 4096;

/// Keeps the objects in step with a folder.
#[derive(Debug)]
pub(crate) struct Follower {
    folder: Folder,
    events: AsyncFd<Inotify>,
}

impl Follower {
    /// Starts to watch the folder, then loads it: nothing is missed in between.
    pub(crate) async fn start(api: Arc<Api>, path: PathBuf) -> io::Result<Self> {
        let events = watch_folder(&path)?;
        let mut folder = Folder::new(api, path);
        folder.sync().await?;
        Ok(Self { folder, events })
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
            let mut lost = self.wait().await;
            while let Ok(more) = timeout(QUIET, self.wait()).await {
                lost |= more;
            }
            if lost {
                self.find_again().await;
            }
            if let Err(error) = self.folder.sync().await {
                tracing::error!(folder = %self.folder.path.display(), %error, "manifests folder cannot be read");
            }
        }
    }

    /// Waits for events and takes them all; true if the folder itself is gone.
    async fn wait(&mut self) -> bool {
        let Ok(mut ready) = self.events.readable_mut().await else { return true };
        let mut buffer = [0; BUFFER];
        let mut lost = false;
        loop {
            match ready.get_inner_mut().read_events(&mut buffer) {
                Ok(events) => lost |= events.into_iter().any(|event| event.mask.intersects(GONE)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    lost = true;
                    break;
                }
            }
        }
        ready.clear_ready();
        lost
    }

    /// The folder was removed or renamed: its objects stay until one of that name is there again.
    async fn find_again(&mut self) {
        let path = self.folder.path.clone();
        tracing::warn!(folder = %path.display(), "manifests folder is gone; its objects stay, waiting for it");
        loop {
            match watch_folder(&path) {
                Ok(events) => {
                    self.events = events;
                    return;
                }
                Err(_) => sleep(RETRY).await,
            }
        }
    }
}

const GONE: EventMask = EventMask::DELETE_SELF.union(EventMask::MOVE_SELF).union(EventMask::IGNORED);

#[expect(
    deprecated,
    reason = "the replacement is an unsafe fn, which this crate may not call; its contract holds: Inotify owns its descriptor"
)]
fn watch_folder(path: &std::path::Path) -> io::Result<AsyncFd<Inotify>> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::CREATE
        | WatchMask::CLOSE_WRITE
        | WatchMask::MOVED_TO
        | WatchMask::MOVED_FROM
        | WatchMask::DELETE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR;
    inotify.watches().add(path, mask)?;
    AsyncFd::new(inotify)
}
