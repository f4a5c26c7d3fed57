//! Detects when etcd cannot be read or followed, when writes to it fail or are not delivered back to this server, and
//! when that is over.
//!
//! During that time, the server reports itself as not ready and clients' requests go to other servers. The probe
//! therefore reads and writes by itself.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use tracing::{error, info};

use super::{Shared, follow::write_head, layout::revision, unsigned};
use crate::CommitError;

/// Pause between two probes.
const PAUSE: Duration = Duration::from_secs(1);

impl Shared {
    /// Notes a failed transaction. A transaction that is refused because of its content does not count, because it
    /// does not predict the outcome of the next one.
    pub(super) fn note(&self, error: &CommitError) {
        if let CommitError::Unavailable(reason) | CommitError::Unknown(reason) = error {
            self.fails(reason);
        }
    }

    /// Writes `head`, and waits until this server has published that write.
    async fn write_and_see(&self) -> Result<(), String> {
        let header = write_head(self).await.map_err(|error| error.to_string())?;
        let deadline = self.client.deadline();
        if self.has_published(revision(unsigned(header.revision), 0), deadline).await {
            Ok(())
        } else {
            Err("etcd does not show its writes to this server".to_owned())
        }
    }

    fn fails(&self, reason: &str) {
        if self.trouble.set(reason) {
            error!(reason, "a write to etcd failed");
        }
        self.failing.notify_one();
    }

    /// Notes that no changes arrive from etcd. Reads may succeed meanwhile.
    pub(super) fn cannot_follow(&self, reason: &str) {
        if self.unfollowed.set(reason) {
            error!(reason, "etcd cannot be followed");
        }
    }

    /// Notes that changes arrive from etcd.
    pub(super) fn follows(&self) {
        if self.unfollowed.clear() {
            info!("etcd is followed again");
        }
    }

    /// Notes that the current state cannot be read from etcd.
    pub(super) fn cannot_read(&self, reason: &str) {
        if self.unreadable.set(reason) {
            error!(reason, "etcd cannot be read");
        }
        self.failing.notify_one();
    }

    fn can_read(&self) {
        if self.unreadable.clear() {
            info!("etcd can be read again");
        }
    }

    /// Notes a successful write. Must not be called for a transaction that writes nothing, because it succeeds on a
    /// full etcd, too.
    pub(super) fn mended(&self) {
        if self.trouble.clear() {
            info!("writes to etcd succeed again");
        }
    }
}

/// While reads or writes fail, reads or writes `head` periodically until that succeeds. Never returns.
pub(super) async fn probe(shared: Arc<Shared>) {
    loop {
        shared.failing.notified().await;
        loop {
            let (reads_fail, writes_fail) =
                (shared.unreadable.reason().is_some(), shared.trouble.reason().is_some());
            if !reads_fail && !writes_fail {
                break;
            }
            sleep(PAUSE).await;
            if reads_fail && shared.refresh().await.is_ok() {
                shared.can_read();
            }
            if !writes_fail {
                continue;
            }
            if let Err(reason) = shared.write_and_see().await {
                shared.trouble.set(&reason);
            } else {
                shared.mended();
            }
        }
    }
}
