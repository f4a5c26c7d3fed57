//! Notices when etcd carries out no writes, and when it does again.
//!
//! A server that says so gets no more writes, so it tries one of its own.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use tracing::{error, info};

use super::{Shared, follow::write_head};
use crate::{CommitError, Committed};

/// Between two tries.
const PAUSE: Duration = Duration::from_secs(1);

impl Shared {
    /// What the outcome of a write says about the next one. A write that is refused for what is in it says nothing.
    pub(super) fn note(&self, outcome: &Result<Committed, CommitError>) {
        match outcome {
            // A transaction without a write has asked etcd, too, but a full one answers it.
            Ok(done) if done.objects.is_empty() => {}
            Ok(_) => self.mended(),
            Err(CommitError::Unavailable(reason) | CommitError::Unknown(reason)) => self.fails(reason),
            Err(_) => {}
        }
    }

    fn fails(&self, reason: &str) {
        if self.trouble.set(reason) {
            error!(reason, "etcd does not carry out a write");
        }
        self.failing.notify_one();
    }

    fn mended(&self) {
        if self.trouble.clear() {
            info!("etcd carries out writes again");
        }
    }
}

/// Writes `head` from time to time while other writes fail, until etcd does it.
pub(super) async fn probe(shared: Arc<Shared>) {
    loop {
        shared.failing.notified().await;
        while shared.trouble.reason().is_some() {
            sleep(PAUSE).await;
            match write_head(&shared).await {
                Ok(_) => shared.mended(),
                Err(error) => {
                    shared.trouble.set(&error.to_string());
                }
            }
        }
    }
}
