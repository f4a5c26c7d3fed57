//! One entry of the log: what a change wrote. Its key in the log is the revision of the change.
//!
//! | bytes | meaning |
//! |---|---|
//! | 1 | 1: an object was written; 2: an object was deleted |
//! | 1 | length of the resource's name |
//! | n | the resource's name, as in `names` |
//! | rest | the object's JSON without resourceVersion; of a deleted one, its key |

use portolan_schema::Resource;

use crate::{
    Draft,
    names::{by_stored_name, stored_name},
    transaction::Write,
};

const WRITTEN: u8 = 1;
const DELETED: u8 = 2;

/// A decoded entry.
#[derive(Debug)]
pub(super) enum Entry {
    Written(Resource, Draft),
    Deleted(Resource, Box<str>),
}

/// Encodes a change. Returns `None` if the change has neither an old nor a new object.
pub(super) fn encode(write: &Write) -> Option<Vec<u8>> {
    let (tag, head, tail) = match (&write.change.new, &write.change.old) {
        (Some(new), _) => {
            let (head, tail) = new.around_revision();
            (WRITTEN, head, tail)
        }
        (None, Some(old)) => (DELETED, old.key().as_bytes(), &[][..]),
        (None, None) => return None,
    };
    let name = stored_name(write.resource);
    let length = u8::try_from(name.len()).ok()?;
    Some([&[tag, length], name.as_bytes(), head, tail].concat())
}

/// Decodes an entry. The error is a text for people.
pub(super) fn decode(entry: &[u8]) -> Result<Entry, String> {
    let short = || "it is cut off".to_owned();
    let (&[tag, length], rest) = entry.split_first_chunk().ok_or_else(short)?;
    let (name, rest) = rest.split_at_checked(length.into()).ok_or_else(short)?;
    let name = String::from_utf8_lossy(name);
    let resource = by_stored_name(&name)
        .ok_or_else(|| format!("it is of resource {name:?}, unknown to this version"))?;
    match tag {
        WRITTEN => Draft::decode(resource, rest)
            .map(|draft| Entry::Written(resource, draft))
            .map_err(|error| format!("its JSON: {error}")),
        DELETED => std::str::from_utf8(rest)
            .map(|key| Entry::Deleted(resource, key.into()))
            .map_err(|error| format!("its key: {error}")),
        other => Err(format!("its first byte is {other}")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::Change;

    fn draft() -> Draft {
        let value = portolan_schema::json::json!({"metadata": {"name": "a", "namespace": "n"}, "spec": {"type": "ClusterIP"}});
        Draft::new(Resource::Service, value.as_object().unwrap())
    }

    #[test]
    fn entries_are_read_as_they_were_written() {
        let new = Arc::new(draft().at(7));
        let change = Change { revision: 7, old: None, new: Some(Arc::clone(&new)) };
        let entry = encode(&Write { resource: Resource::Service, change }).unwrap();
        let Ok(Entry::Written(Resource::Service, back)) = decode(&entry) else { panic!("{entry:?}") };
        assert_eq!(back.at(7).body(), new.body());

        let change = Change { revision: 8, old: Some(new), new: None };
        let entry = encode(&Write { resource: Resource::Service, change }).unwrap();
        assert!(matches!(decode(&entry), Ok(Entry::Deleted(Resource::Service, key)) if &*key == "n/a"));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_with_a_reason(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Err(reason) = decode(&bytes) {
                prop_assert!(!reason.is_empty());
            }
        }
    }
}
