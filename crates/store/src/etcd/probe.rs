//! Detects when writes to etcd fail or are not delivered back to this server, and when they succeed again.
//!
//! While writes fail, the server reports itself as not ready and clients' writes go to other servers. The probe
//! therefore writes by itself.

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

    /// Notes a successful write. Must not be called for a transaction that writes nothing, because it succeeds on a
    /// full etcd, too.
    pub(super) fn mended(&self) {
        if self.trouble.clear() {
            info!("writes to etcd succeed again");
        }
    }
}

/// While writes fail, writes `head` periodically until that succeeds. Never returns.
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
