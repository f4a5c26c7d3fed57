//! Follows the folder: notices changes of its files by inotify, and at an interval those that inotify does not report.
//! Notices the deletion of objects that it declares.

use std::{
    future::pending,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use portolan_api::Api;
use portolan_schema::Resource;
use rustix::io::Errno;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    Folder, Reserved,
    contents::{self, Contents, Found},
    elsewhere::elsewhere,
    events::{self, Events, Identity},
    retry::Retry,
    unsure::{self, Unsure},
};
use crate::Feed;

/// Most reads of a folder that keeps changing while it is read.
const READS: usize = 5;
/// Interval at which a folder that is watched is read. inotify does not report a change of a file that a symlink in the
/// folder leads to, nor one by another host.
const REREAD: Duration = Duration::from_secs(30);
/// The same for a folder that cannot be watched.
const UNWATCHED: Duration = Duration::from_secs(5);
/// The same for a folder that cannot be read, or that has changed in a way that has to stay to count.
const SOON: Duration = unsure::STAYS;

/// Keeps the stored objects in sync with a folder.
#[derive(Debug)]
pub struct Follower {
    folder: Folder,
    /// `None` while the folder cannot be watched.
    events: Option<Events>,
    feed: Feed,
    retry: Retry,
    /// When the folder is read even if nothing is noticed.
    reread: Instant,
    unsure: Unsure,
    /// True if the folder has changed while it was read.
    is_stale: bool,
    /// The folder that was read the last time. `None` if the path led to another folder after the reading than before.
    found: Option<Identity>,
    /// The folder whose contents are applied. `None` if its watch has ended since: another folder may have its place, also one
    /// with the same identity.
    applied: Option<Identity>,
    /// Why the folder was not applied the last time.
    unread: Option<String>,
}

/// The reason why a folder is not applied.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error("manifests folder cannot be read; its objects stay: {0}")]
    Failed(#[from] io::Error),
    #[error(
        "manifests folder has no manifest, but objects of it are stored, and stay; mount the folder if that is missing; to remove \
         the objects, put a manifest into it, which may be empty"
    )]
    Empty,
}

impl Follower {
    /// Starts to watch the folder, then applies its contents, so that no change is missed in between.
    pub async fn start(api: Arc<Api>, path: PathBuf) -> io::Result<Self> {
        Self::start_beside(api, path, Reserved::default()).await
    }

    /// Does the same as [`Follower::start`]. Objects that are reserved for another source are refused.
    ///
    /// # Errors
    /// The folder cannot be read, and the store has no object of it. Objects that are stored stay, and the folder is tried again:
    /// a mount may be late.
    pub async fn start_beside(api: Arc<Api>, path: PathBuf, reserved: Reserved) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let events = Events::of(&path).await;
        let feed = Feed::new(api.store(), Resource::kept());
        let folder = Folder { reserved, ..Folder::new(api, path) };
        let mut follower = Self {
            folder,
            events: None,
            feed,
            retry: Retry::default(),
            reread: Instant::now(),
            unsure: Unsure::default(),
            is_stale: false,
            found: None,
            applied: None,
            unread: None,
        };
        let failure = events.map(|events| follower.events = Some(events)).err();
        match follower.read().await {
            Ok(contents) => follower.begin(contents, failure).await,
            Err(error) if follower.folder.has_stored() => follower.complain(&Unread::Failed(error)),
            Err(error) => return Err(error),
        }
        follower.plan_reading();
        Ok(follower)
    }

    /// Applies the first contents. `failure` says why the folder cannot be watched.
    async fn begin(&mut self, contents: Contents, failure: Option<io::Error>) {
        // A folder that is not there is an error of the reading.
        if let Some(error) = failure {
            warn_of_reading(&self.folder.path, &error);
        }
        if self.is_emptied(&contents) {
            self.complain(&Unread::Empty);
        } else {
            self.retry.after(self.folder.sync(contents).await, false, Instant::now());
            self.applied = self.found;
        }
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
            let due = self.due();
            let is_reported = tokio::select! {
                () = wait(&mut self.events) => true,
                () = self.feed.changed() => {
                    let seen = self.feed.take();
                    if !self.folder.observe(seen, Instant::now()) {
                        continue;
                    }
                    false
                }
                () = sleep_until(due) => false,
            };
            if let (true, Some(events)) = (is_reported, &mut self.events) {
                events.settle().await;
            }
            self.folder.release(Instant::now());
            match self.read_confirmed(is_reported).await {
                Ok(contents) => self.sync(contents).await,
                Err(error) => self.complain(&error),
            }
            self.plan_reading();
        }
    }

    /// Returns when to read the folder if nothing changes before. All times are absolute: changes of the store do not defer them.
    fn due(&self) -> Instant {
        // Documents are tried again when the folder can be read.
        let retry = self.retry.at().filter(|_| self.unread.is_none());
        [retry, self.folder.due()].into_iter().flatten().fold(self.reread, Instant::min)
    }

    async fn sync(&mut self, contents: Contents) {
        if self.unread.take().is_some() {
            tracing::info!(folder = %self.folder.path.display(), "manifests folder is read again");
        }
        let is_retry = self.retry.is_due(Instant::now());
        let result = if is_retry {
            Some(self.folder.sync(contents).await)
        } else {
            self.folder.sync_changed(contents).await
        };
        if let Some(result) = result {
            self.retry.after(result, is_retry, Instant::now());
        }
        if !self.unsure.is_any() {
            self.applied = self.found;
        }
    }

    /// Sets the time of the next reading.
    fn plan_reading(&mut self) {
        let after = match &self.events {
            _ if self.is_stale || self.unsure.is_any() || self.unread.is_some() => SOON,
            Some(_) => REREAD,
            None => UNWATCHED,
        };
        self.reread = Instant::now() + after;
    }

    /// Logs a new reason why the folder is not applied. Its objects stay.
    fn complain(&mut self, reason: &Unread) {
        let unread = reason.to_string();
        if self.unread.as_ref() != Some(&unread) {
            tracing::error!(folder = %self.folder.path.display(), "{unread}");
        }
        self.unread = Some(unread);
        self.unsure = Unsure::default();
    }

    /// Reads the folder. What no event has reported has to stay to count. What is missing in another folder than the one that
    /// was applied has to stay away without another event.
    async fn read_confirmed(&mut self, is_reported: bool) -> Result<Contents, Unread> {
        let mut contents = self.read().await?;
        if self.is_emptied(&contents) {
            return Err(Unread::Empty);
        }
        let (files, now) = (&self.folder.files, Instant::now());
        match is_reported {
            false => self.unsure.confirm(&mut contents, files, now),
            true if !self.is_applied() => self.unsure.doubt_missing(&mut contents, files, now),
            true => self.unsure = Unsure::default(),
        }
        Ok(contents)
    }

    /// Returns true if the folder that was read is the one that was applied.
    fn is_applied(&self) -> bool {
        self.found.is_some() && self.found == self.applied
    }

    /// Returns true if the folder has nothing, objects of it are stored, and it may be another one than the one that was
    /// applied: such as the folder below a mount that is missing.
    fn is_emptied(&self, contents: &Contents) -> bool {
        contents.is_empty() && !self.is_applied() && self.folder.has_stored()
    }

    /// Reads the folder while no file changes, so that no half-written file is applied.
    async fn read(&mut self) -> io::Result<Contents> {
        self.is_stale = false;
        for read in 1..=READS {
            let contents = self.contents().await?;
            let Some(events) = &mut self.events else { return Ok(contents) };
            let touched = events.take();
            if events.is_lost {
                self.watch_again().await;
            } else if touched.is_empty() {
                return Ok(contents);
            } else if read < READS {
                events.settle().await;
            } else {
                // Files that still change are read soon.
                self.is_stale = true;
                let mut contents = contents;
                for name in touched {
                    if let Some(found) = contents.get_mut(&self.folder.path.join(name)) {
                        *found = Found::Unfinished;
                    }
                }
                return Ok(contents);
            }
        }
        Err(io::Error::other("it is exchanged again and again"))
    }

    /// Reads the present contents of the folder. Watches the folder again if the path leads to another one than before.
    async fn contents(&mut self) -> io::Result<Contents> {
        if self.events.as_ref().is_none_or(|events| events.is_lost) {
            self.watch_again().await;
        }
        let writing = self.events.as_ref().map(|events| events.writing.clone()).unwrap_or_default();
        let path = self.folder.path.clone();
        let read = move || {
            let before = events::identity(&path)?;
            let contents = contents::read(&path, &writing, contents::LIMIT)?;
            let is_same = events::identity(&path)? == before;
            Ok::<_, io::Error>((is_same.then_some(before), contents))
        };
        let (found, contents) = elsewhere(read).await??;
        self.found = found;
        if let Some(events) = &mut self.events {
            events.is_lost |= Some(events.identity) != found;
        }
        Ok(contents)
    }

    /// Starts another watch. Without one the folder is read at an interval.
    async fn watch_again(&mut self) {
        // The old watch ends first, so that one is enough.
        let was_watched = self.events.take().is_some();
        if was_watched {
            self.applied = None;
        }
        match Events::of(&self.folder.path).await {
            Ok(events) => {
                self.events = Some(events);
                if !was_watched {
                    tracing::info!(folder = %self.folder.path.display(), "manifests folder is watched now");
                }
            }
            // The reading reports a folder that is gone.
            Err(error) if was_watched && error.kind() != io::ErrorKind::NotFound => {
                warn_of_reading(&self.folder.path, &error);
            }
            Err(_) => {}
        }
    }
}

/// Waits for a change, or for ever without a watch.
async fn wait(events: &mut Option<Events>) {
    match events {
        Some(events) => events.wait().await,
        None => pending().await,
    }
}

/// Warns that the folder is read at an interval because it cannot be watched, and says what mends this.
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
    let seconds = UNWATCHED.as_secs();
    tracing::warn!(folder = %path.display(), %error, "manifests folder cannot be watched; it is read every {seconds} seconds{mend}");
}

#[cfg(test)]
mod tests;
