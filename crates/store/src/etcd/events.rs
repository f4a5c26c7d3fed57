//! Converts etcd's watch events into changes. Pure.

use std::sync::Arc;

use portolan_schema::Resource;
use tracing::error;

use super::{
    layout::{self, KeyMeaning, Layout, position, revision, revision_after, unsigned},
    messages::{EtcdEvent, EventType, KeyValue},
};
use crate::{Change, StoredObject, published::Publication, tables::Tables, transaction::Write};

/// The events of a transaction have no order that every server would derive in the same way, so another program wrote
/// them. The state must be read again as a whole.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Disorder;

/// Splits events by their revisions.
pub(super) fn by_revision(events: &[EtcdEvent]) -> impl Iterator<Item = (u64, &[EtcdEvent])> {
    let chunks = events.chunk_by(|one, other| mod_revision(one) == mod_revision(other));
    chunks.map(|chunk| (chunk.first().map_or(0, mod_revision), chunk))
}

fn mod_revision(event: &EtcdEvent) -> u64 {
    event.kv.as_ref().map_or(0, |kv| unsigned(kv.mod_revision))
}

/// Converts the events of one transaction into changes of the published state `tables`.
pub(super) fn publication(
    layout: &Layout,
    at: u64,
    events: &[EtcdEvent],
    tables: &Tables,
) -> Result<Publication, Disorder> {
    let mut writes: Vec<Write> = Vec::new();
    for (index, event) in events.iter().enumerate() {
        let Some(kv) = &event.kv else { continue };
        let KeyMeaning::Object(resource, key) = layout.place(&kv.key) else { continue };
        let old = tables.get(resource, &key);
        let new = if event.r#type == EventType::Put as i32 { object(resource, &key, kv) } else { None };
        if old.is_none() && new.is_none() {
            continue;
        }
        // A deletion has no value to hold its position. Its index serves instead, because etcd keeps the order of the
        // operations.
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

/// Decodes the object in a value. Logs a value that cannot be decoded and returns `None`, as if the object did not
/// exist.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Draft, History};

    const NODE: Resource = Resource::Node;

    fn layout() -> Layout {
        Layout::new("/p")
    }

    fn event(r#type: EventType, key: &str, at: i64, value: impl Into<bytes::Bytes>) -> EtcdEvent {
        let kv = KeyValue { key: format!("/p/{key}").into(), mod_revision: at, value: value.into() };
        EtcdEvent { r#type: r#type.into(), kv: Some(kv) }
    }

    fn put(name: &str, at: i64, position: u8) -> EtcdEvent {
        let value = portolan_schema::json::json!({"metadata": {"name": name}});
        let draft = Draft::new(NODE, value.as_object().unwrap());
        event(EventType::Put, &format!("nodes/{name}"), at, layout::encode(&draft, position))
    }

    fn delete(name: &str, at: i64) -> EtcdEvent {
        event(EventType::Delete, &format!("nodes/{name}"), at, "")
    }

    /// Publishes all events. Returns the revisions and keys of the changes.
    fn publish(tables: &mut Tables, events: &[EtcdEvent]) -> Result<Vec<(u64, String)>, Disorder> {
        let mut seen = Vec::new();
        for (at, events) in by_revision(events) {
            let Publication { writes, through } = publication(&layout(), at, events, tables)?;
            for Write { resource, change } in writes {
                let key = change.new.as_ref().or(change.old.as_ref()).unwrap().key().to_owned();
                seen.push((change.revision, key));
                tables.apply(resource, change, &mut Vec::new());
            }
            tables.complete(through);
        }
        Ok(seen)
    }

    #[test]
    fn changes_are_at_their_place_in_the_transaction() {
        let mut tables = Tables::new(History::default(), revision_after(1));
        let head = |at| event(EventType::Put, "head", at, "1");
        let events = [
            put("a", 2, 0),
            put("b", 2, 1),
            head(2),
            delete("a", 4),
            put("c", 4, 1),
            delete("b", 4),
            head(4),
        ];
        let seen = publish(&mut tables, &events).unwrap();
        let at = |at, position, key: &str| (revision(at, position), key.to_owned());
        assert_eq!(seen, [at(2, 0, "a"), at(2, 1, "b"), at(4, 0, "a"), at(4, 1, "c"), at(4, 2, "b")]);
        assert_eq!((tables.revision(), tables.count(NODE)), (revision_after(4), 1));
        // A server that starts writes only `head`.
        assert_eq!(publish(&mut tables, &[head(9)]), Ok(Vec::new()));
        assert_eq!(tables.revision(), revision_after(9));
    }

    #[test]
    fn an_unreadable_value_counts_as_missing() {
        let mut tables = Tables::new(History::default(), revision_after(1));
        let nonsense = |at| event(EventType::Put, "nodes/a", at, "nonsense");
        let unknown = event(EventType::Put, "what/is/this", 2, "1");
        assert_eq!(publish(&mut tables, &[unknown, nonsense(3), delete("b", 4)]), Ok(Vec::new()));
        let seen = publish(&mut tables, &[put("a", 5, 0), nonsense(6)]).unwrap();
        assert_eq!(seen.len(), 2);
        assert_eq!(tables.count(NODE), 0);
    }

    #[test]
    fn events_without_a_known_order_are_an_error() {
        let begin = || Tables::new(History::default(), revision_after(1));
        assert_eq!(publish(&mut begin(), &[put("a", 2, 1), put("b", 2, 1)]), Err(Disorder));
        assert_eq!(publish(&mut begin(), &[put("a", 1, 0)]), Err(Disorder));
        let names: Vec<String> = (0..300).map(|number| number.to_string()).collect();
        let mut tables = begin();
        for (name, at) in names.iter().zip(2..) {
            publish(&mut tables, &[put(name, at, 0)]).unwrap();
        }
        let all = |count| names.iter().take(count).map(|name| delete(name, 1000)).collect::<Vec<_>>();
        assert_eq!(publish(&mut tables, &all(256)), Err(Disorder));
        assert_eq!(publish(&mut tables, &all(255)).unwrap().len(), 255);
    }
}
