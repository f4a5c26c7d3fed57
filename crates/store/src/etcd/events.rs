//! What etcd says, as changes. Pure.

use std::sync::Arc;

use portolan_schema::Resource;
use tracing::error;

use super::{
    layout::{self, Layout, Place, position, revision, revision_after, unsigned},
    messages::{Event, EventType, KeyValue},
};
use crate::{Change, StoredObject, published::Publication, tables::Tables, transaction::Write};

/// The events of one transaction cannot be put into an order that every server gives them: it is not one of ours. All
/// has to be read anew.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Disorder;

/// Splits events at their revisions.
pub(super) fn by_revision(events: &[Event]) -> impl Iterator<Item = (u64, &[Event])> {
    let chunks = events.chunk_by(|one, other| mod_revision(one) == mod_revision(other));
    chunks.map(|chunk| (chunk.first().map_or(0, mod_revision), chunk))
}

fn mod_revision(event: &Event) -> u64 {
    event.kv.as_ref().map_or(0, |kv| unsigned(kv.mod_revision))
}

/// The changes that the events of one transaction make of what is published.
pub(super) fn publication(
    layout: &Layout,
    at: u64,
    events: &[Event],
    tables: &Tables,
) -> Result<Publication, Disorder> {
    let mut writes: Vec<Write> = Vec::new();
    for (index, event) in events.iter().enumerate() {
        let Some(kv) = &event.kv else { continue };
        let Place::Object(resource, key) = layout.place(&kv.key) else { continue };
        let old = tables.get(resource, &key);
        let new = if event.r#type == EventType::Put as i32 { object(resource, &key, kv) } else { None };
        if old.is_none() && new.is_none() {
            continue;
        }
        // A deletion leaves no value to have a position in; etcd keeps the order of the operations.
        let revision = match &new {
            Some(new) => new.revision(),
            None => revision(at, position(index).ok_or(Disorder)?),
        };
        if writes.last().is_some_and(|last| last.change.revision >= revision) || tables.revision() >= revision
        {
            return Err(Disorder);
        }
        writes.push(Write { resource, change: Change { revision, old, new } });
    }
    Ok(Publication { writes, through: revision_after(at) })
}

/// The object in a value. One that cannot be read harms only itself: it is as if it were not there.
pub(super) fn object(resource: Resource, key: &str, kv: &KeyValue) -> Option<Arc<StoredObject>> {
    match layout::decode(resource, key, unsigned(kv.mod_revision), &kv.value) {
        Ok(object) => Some(Arc::new(object)),
        Err(reason) => {
            let key = String::from_utf8_lossy(&kv.key);
            error!(%key, %reason, "a value in etcd cannot be read and is left out; delete the key or write it again");
            None
        }
    }
}
