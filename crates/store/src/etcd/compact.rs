//! Compacts etcd's history. Without compaction, etcd grows with every write until it refuses writes.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use tracing::{debug, warn};

use super::{Shared, messages::RangeRequest};

/// Compacts etcd once per `window`, to the revision of one `window` before. Never returns. Servers do not coordinate:
/// compacting what is already compacted has no effect.
pub(super) async fn compact(shared: Arc<Shared>, window: Duration) {
    let mut before = None;
    loop {
        let request = RangeRequest { key: shared.layout.head(), ..RangeRequest::default() };
        let header = shared.client.range(request).await.ok().and_then(|answer| answer.header);
        if let Some(revision) = before {
            match shared.client.compact(revision).await {
                Ok(_) => debug!(revision, "etcd compacted"),
                Err(failure) if failure.text().contains("has been compacted") => {}
                Err(failure) => warn!(reason = failure.text(), "etcd could not be compacted"),
            }
        }
        before = header.map(|header| header.revision);
        sleep(window).await;
    }
}
