//! Notices when writes to etcd fail or are not shown to this server, and when they succeed again.
//!
//! A server that says so gets no more writes, so it tries one of its own.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use tracing::{error, info};

use super::{Shared, follow::write_head, layout::revision, unsigned};
use crate::CommitError;

/// Between two tries.
const PAUSE: Duration = Duration::from_secs(1);

impl Shared {
    /// Notes a transaction that failed. One that is refused for what is in it says nothing about the next one.
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

    /// Notes that a write was carried out. A transaction that writes nothing succeeds on a full etcd, too.
    pub(super) fn mended(&self) {
        if self.trouble.clear() {
            info!("writes to etcd succeed again");
        }
    }
}

/// Writes `head` from time to time while other writes fail, until etcd does it.
pub(super) async fn probe(shared: Arc<Shared>) {
    loop {
        shared.failing.notified().await;
        while shared.trouble.reason().is_some() {
            sleep(PAUSE).await;
            if let Err(reason) = shared.write_and_see().await {
                shared.trouble.set(&reason);
            } else {
                shared.mended();
            }
        }
    }
}
