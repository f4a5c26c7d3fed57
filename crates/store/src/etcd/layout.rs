//! The keys and values in etcd, and the mapping between etcd's revisions and the store's. Pure.
//!
//! | key | value |
//! |---|---|
//! | `PREFIX/head` | the version of this layout, in decimal |
//! | `PREFIX/RESOURCE/KEY` | byte 0: value version, 1; byte 1: position in the transaction; rest: JSON without resourceVersion |
//!
//! `RESOURCE` is the resource's name as in `names`, `KEY` is `namespace/name` or `name`.
//!
//! Each transaction that writes an object also writes `head`, so etcd's revision of `head` is that of the last write
//! of any server, whatever other programs write to the same etcd. A server that starts also writes `head`: the state
//! that it then reads has a revision that all servers know.
//!
//! All changes of one transaction have the same revision in etcd. The store's revision is that number followed by 8
//! bits for the position within the transaction. Position 255 stands for the whole transaction.

use bytes::Bytes;
use portolan_schema::Resource;

use crate::{
    Draft, StoredObject,
    names::{by_stored_name, stored_name},
};

/// The newest layout that this version can read.
pub(super) const KNOWN_FORMAT: u64 = 1;
const VALUE_VERSION: u8 = 1;
/// The part of `head`'s key after the prefix.
const HEAD: &str = "head";
/// Number of bits of the position.
const POSITION_BITS: u32 = 8;
/// The greatest position of a change.
const LAST_POSITION: usize = 254;

/// The keys below one prefix.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// Ends with a slash.
    prefix: String,
}

/// What a key refers to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeyMeaning {
    Head,
    Object(Resource, String),
    /// A key of a newer version or of another program.
    Unknown,
}

impl Layout {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: format!("{prefix}/") }
    }

    /// Returns the range of all keys: the first key, and the end, which is not included.
    pub(super) fn range(&self) -> (Bytes, Bytes) {
        let mut end = self.prefix.clone().into_bytes();
        // The last byte is a slash.
        if let Some(last) = end.last_mut() {
            *last = last.saturating_add(1);
        }
        (Bytes::from(self.prefix.clone()), end.into())
    }

    pub(super) fn head(&self) -> Bytes {
        format!("{}{HEAD}", self.prefix).into()
    }

    pub(super) fn key(&self, resource: Resource, key: &str) -> Bytes {
        format!("{}{}/{key}", self.prefix, stored_name(resource)).into()
    }

    pub(super) fn place(&self, key: &[u8]) -> KeyMeaning {
        let name = std::str::from_utf8(key).ok().and_then(|key| key.strip_prefix(&self.prefix));
        let Some(name) = name else { return KeyMeaning::Unknown };
        if name == HEAD {
            return KeyMeaning::Head;
        }
        // A resource name starts with an API group if its first part contains a dot: groups have dots, plurals have
        // none.
        let slashes = usize::from(name.split('/').next().is_some_and(|first| first.contains('.')));
        let end = name.match_indices('/').nth(slashes).map(|(position, _)| position);
        let split = end.and_then(|end| name.split_at_checked(end));
        let object =
            split.and_then(|(resource, key)| Some((by_stored_name(resource)?, key.strip_prefix('/')?)));
        object.map_or(KeyMeaning::Unknown, |(resource, key)| KeyMeaning::Object(resource, key.to_owned()))
    }
}

/// Returns the value of `head`.
pub(super) fn head_value() -> Bytes {
    KNOWN_FORMAT.to_string().into()
}

/// Returns the layout version in the value of `head`; `None` if it is not a number.
pub(super) fn format_of(head: &[u8]) -> Option<u64> {
    std::str::from_utf8(head).ok()?.parse().ok()
}

/// Returns the value of an object.
pub(super) fn encode(draft: &Draft, position: u8) -> Bytes {
    [&[VALUE_VERSION, position], draft.body()].concat().into()
}

/// Returns the position in a value; 0 if the store did not write it.
pub(super) fn position_of(value: &[u8]) -> u8 {
    match value {
        [VALUE_VERSION, position, ..] => *position,
        _ => 0,
    }
}

/// Decodes the object in a value. The error is a text for people.
pub(super) fn decode(
    resource: Resource,
    key: &str,
    mod_revision: u64,
    value: &[u8],
) -> Result<StoredObject, String> {
    let [VALUE_VERSION, position, body @ ..] = value else {
        return Err(format!("the value does not begin with its version, {VALUE_VERSION}"));
    };
    let draft = Draft::decode(resource, body).map_err(|error| error.to_string())?;
    if draft.key() != key {
        return Err(format!("the object in it calls itself {:?}", draft.key()));
    }
    Ok(draft.at(revision(mod_revision, *position)))
}

/// Returns the store's revision of the change at a position of a transaction.
pub(super) fn revision(mod_revision: u64, position: u8) -> u64 {
    (mod_revision << POSITION_BITS) | u64::from(position)
}

/// Returns the store's revision when a transaction is published as a whole.
pub(super) fn revision_after(mod_revision: u64) -> u64 {
    revision(mod_revision, u8::MAX)
}

/// Returns the position of the change with this index in its transaction; `None` if the index is too large.
pub(super) fn position(index: usize) -> Option<u8> {
    u8::try_from(index).ok().filter(|position| usize::from(*position) <= LAST_POSITION)
}

/// Returns etcd's part of a revision.
pub(super) fn mod_revision(revision: u64) -> u64 {
    revision >> POSITION_BITS
}

/// Converts a number from etcd, which is never negative.
pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// Converts a number for etcd. The store's revisions always fit.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_leads_back_to_its_object() {
        let layout = Layout::new("/portolan/v1");
        for resource in Resource::ALL.into_iter().filter(|resource| resource.is_stored()) {
            for key in ["a", "ns/a"] {
                let place = layout.place(&layout.key(resource, key));
                assert_eq!(place, KeyMeaning::Object(resource, key.to_owned()));
            }
        }
        assert_eq!(
            layout.key(Resource::EndpointSlice, "n/a"),
            "/portolan/v1/discovery.k8s.io/endpointslices/n/a"
        );
        assert_eq!(layout.place(&layout.head()), KeyMeaning::Head);
        for key in
            ["/portolan/v1/", "/portolan/v1/services", "/portolan/v1/pods/a/b", "/portolan/v2/services/a/b"]
        {
            assert_eq!(layout.place(key.as_bytes()), KeyMeaning::Unknown, "{key}");
        }
        let (start, end) = layout.range();
        assert!(start < layout.head() && layout.head() < end && end == "/portolan/v10");
    }

    #[test]
    fn revisions_order_by_transaction_then_position() {
        let order = [revision(7, 0), revision(7, 1), revision(7, 254), revision_after(7), revision(8, 0)];
        assert!(order.is_sorted_by(|a, b| a < b));
        assert!(order[..4].iter().all(|revision| mod_revision(*revision) == 7));
        assert_eq!(
            (position(0), position(254), position(255), position(256)),
            (Some(0), Some(254), None, None)
        );
    }

    #[test]
    fn values_say_what_is_wrong_with_them() {
        let value = portolan_schema::json::json!({"metadata": {"name": "a", "namespace": "n"}});
        let draft = Draft::new(Resource::Service, value.as_object().unwrap());
        let value = encode(&draft, 3);
        assert_eq!(position_of(&value), 3);
        assert_eq!(decode(Resource::Service, "n/a", 9, &value).unwrap().revision(), revision(9, 3));
        assert!(decode(Resource::Service, "n/b", 9, &value).unwrap_err().contains("\"n/a\""));
        assert!(decode(Resource::Service, "n/a", 9, b"{}").unwrap_err().contains("version"));
        assert!(decode(Resource::Service, "n/a", 9, b"").unwrap_err().contains("version"));
    }
}
