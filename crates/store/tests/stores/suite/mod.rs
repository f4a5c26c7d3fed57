//! Tests that every store must pass.

pub mod concurrent;
pub mod conditions;
pub mod history;
pub mod random;

use std::sync::Arc;

use portolan_schema::Resource;
use portolan_store::{Change, Expired, History, Store};

/// A history short enough for a test to exceed it.
pub const HISTORY: History = History { max_changes: 2000, max_superseded_bytes: 4 << 20 };

/// Reads changes after `after`, a few at a time, until `through`.
pub fn changes(
    store: &dyn Store,
    resource: Resource,
    mut after: u64,
    limit: usize,
) -> Result<Vec<Change>, Expired> {
    let (mut all, end) = (Vec::new(), store.revision());
    while after < end {
        let part = store.changes(resource, after, limit)?;
        assert!(part.through > after, "no progress after {after}");
        after = part.through;
        all.extend(part.changes);
    }
    Ok(all)
}

/// Follows a resource from `after` on until `done`. Checks that no change is missing, repeated or out of order.
pub async fn follow(
    store: Arc<dyn Store>,
    resource: Resource,
    mut after: u64,
    mut done: impl FnMut(&[Change]) -> bool,
) -> Vec<Change> {
    let mut signal = store.subscribe(resource);
    let mut seen: Vec<Change> = Vec::new();
    let mut current = std::collections::HashMap::new();
    loop {
        signal.borrow_and_update();
        loop {
            let part = store.changes(resource, after, 3).unwrap();
            for change in &part.changes {
                assert!(change.revision > after, "{} after {after}", change.revision);
                after = change.revision;
                let object = change.new.as_ref().or(change.old.as_ref()).unwrap();
                let old = change.old.as_ref().map(|old| old.revision());
                if let Some(before) =
                    current.insert(object.key().to_owned(), change.new.as_ref().map(|new| new.revision()))
                {
                    assert_eq!(before, old, "a change of {} is missing", object.key());
                }
            }
            let empty = part.changes.is_empty();
            seen.extend(part.changes);
            after = after.max(part.through);
            if empty {
                break;
            }
        }
        if done(&seen) {
            return seen;
        }
        tokio::time::timeout(std::time::Duration::from_secs(120), signal.changed())
            .await
            .expect("a change")
            .unwrap();
    }
}
