//! One object as it is stored: its JSON bytes, and the few texts that label and field selectors use.
//!
//! The resourceVersion is the first member of `metadata`, at a known offset. Without decoding, it can therefore be
//! replaced (in a DELETED event), or the rest can be compared (to detect a write that changes nothing).

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use bytes::Bytes;
use portolan_schema::json::Value;
use serde::Deserialize;

use crate::delta::Delta;

use portolan_schema::{
    Resource,
    json::{self, Object},
};

const REVISION_PREFIX: &[u8] = b"\"resourceVersion\":\"";
const REVISION_SUFFIX: &[u8] = b"\",";

/// An object ready to be stored, without resourceVersion.
#[derive(Debug, Clone)]
pub struct Draft {
    key: Box<str>,
    body: Vec<u8>,
    metadata_start: usize,
    labels: Pairs,
    fields: Pairs,
    is_ending: bool,
}

/// Number of times that another encoding is made before the result is kept.
const ENCODED_ONLY: u32 = 2;

/// An object in the store.
#[derive(Debug)]
pub struct StoredObject {
    key: Box<str>,
    revision: u64,
    body: Bytes,
    metadata_start: u32,
    labels: Pairs,
    fields: Pairs,
    /// Length in bytes of the other encoding if it is kept. Before, the number of times that it was made, up to [`ENCODED_ONLY`].
    encoded_length: AtomicU32,
    /// The other encoding, if keeping it takes little memory.
    encoding: OnceLock<Option<Delta>>,
}

/// Small read-only map from text to text in one allocation: names and values, each terminated by a zero byte.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pairs(Box<str>);

impl Draft {
    /// Encodes `object` without its resourceVersion. The caller must have checked the names.
    pub fn new(resource: Resource, object: &Object) -> Self {
        let metadata = json::object(object, "metadata");
        let info = resource.info();
        let mut body = Vec::with_capacity(1024);
        body.extend_from_slice(b"{\"apiVersion\":");
        write_json(&mut body, &Value::from(info.api_version));
        body.extend_from_slice(b",\"kind\":");
        write_json(&mut body, &Value::from(info.kind));
        body.extend_from_slice(b",\"metadata\":{");
        let metadata_start = body.len();
        write_members(&mut body, metadata, &["resourceVersion"]);
        body.push(b'}');
        for (name, value) in object {
            if !matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                body.push(b',');
                write_member(&mut body, name, value);
            }
        }
        body.push(b'}');
        Self {
            key: key_of(resource, metadata),
            body,
            metadata_start,
            labels: labels(metadata),
            fields: selectable_fields(resource, object),
            is_ending: metadata.is_some_and(|it| it.get("deletionTimestamp").is_some_and(Value::is_string)),
        }
    }

    /// Returns true if the object has a deletionTimestamp.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Decodes JSON from [`Draft::body`] or an equivalent object.
    pub(crate) fn decode(resource: Resource, body: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice::<Object>(body).map(|object| Self::new(resource, &object))
    }

    /// Returns the object as JSON, without resourceVersion.
    #[cfg(feature = "etcd")]
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Converts to JSON, without resourceVersion.
    pub fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// Returns the size of the object in bytes, as stored.
    pub fn size(&self) -> usize {
        self.body.len()
    }

    /// Returns `namespace/name`, or the name alone for cluster-scoped objects.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the stored form at `revision`.
    #[expect(clippy::cast_possible_truncation, reason = "a body has at most some MiB")]
    pub fn at(self, revision: u64) -> StoredObject {
        let (head, tail) = self.body.split_at_checked(self.metadata_start).unwrap_or((&self.body, &[]));
        let body = spliced(head, revision, tail);
        StoredObject {
            key: self.key,
            revision,
            body,
            metadata_start: self.metadata_start as u32,
            labels: self.labels,
            fields: self.fields,
            encoded_length: AtomicU32::new(0),
            encoding: OnceLock::new(),
        }
    }

    /// Returns true if storing this would change only the resourceVersion.
    pub fn is_same_as(&self, stored: &StoredObject) -> bool {
        let (head, tail) = stored.around_revision();
        self.body.len() == head.len() + tail.len() && self.body.starts_with(head) && self.body.ends_with(tail)
    }
}

impl StoredObject {
    /// Returns `namespace/name`, or the name alone for cluster-scoped objects.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the namespace; empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        self.key.split_once('/').map_or(&self.key, |(_, name)| name)
    }

    /// Returns the revision of the last change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the whole object as JSON.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the object as JSON, with another resourceVersion.
    pub fn body_at(&self, revision: u64) -> Bytes {
        if revision == self.revision {
            return self.body.clone();
        }
        let (head, tail) = self.around_revision();
        spliced(head, revision, tail)
    }

    /// Returns the labels.
    pub fn labels(&self) -> &Pairs {
        &self.labels
    }

    /// Returns the value of a selectable field; empty if it is unset.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).unwrap_or_default()
    }

    /// Appends the object in another encoding, which `encode` makes from the JSON. Every call must use the same encoding:
    /// from the third call on, the result may be kept.
    pub fn put_encoded<E>(
        &self,
        out: &mut Vec<u8>,
        encode: impl FnOnce(&mut Vec<u8>, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.put_kept(out) {
            return Ok(());
        }
        let start = out.len();
        encode(out, &self.body)?;
        let encoded = out.get(start..).unwrap_or_default();
        // To keep the result takes longer than to make it, which is not worth it for a few times.
        let calls = self.encoded_length.load(Relaxed);
        if calls < ENCODED_ONLY {
            // If another thread was faster, this call does not count.
            let _ = self.encoded_length.compare_exchange(calls, calls + 1, Relaxed, Relaxed);
        } else if self.encoding.get().is_none() {
            self.encoded_length.store(u32::try_from(encoded.len()).unwrap_or_default(), Relaxed);
            // Another thread may have kept the same.
            let _ = self.encoding.set(Delta::of(encoded, &self.body));
        }
        Ok(())
    }

    /// Returns the length in bytes of the other encoding if it is kept. Once it is kept, it stays.
    pub fn kept_length(&self) -> Option<usize> {
        self.encoding.get()?.as_ref().map(|_| self.encoded_length.load(Relaxed) as usize)
    }

    /// Appends the other encoding if it is kept. Returns false if it is not.
    pub fn put_kept(&self, out: &mut Vec<u8>) -> bool {
        let Some(Some(delta)) = self.encoding.get() else { return false };
        delta.put(out, &self.body);
        true
    }

    /// Decodes `metadata` alone, without parsing the rest. Returns `None` if it does not match `T`.
    pub fn metadata<'a, T: Deserialize<'a>>(&'a self) -> Option<T> {
        let start = (self.metadata_start as usize).checked_sub(1)?;
        let mut values = serde_json::Deserializer::from_slice(self.body.get(start..)?).into_iter();
        values.next()?.ok()
    }

    /// Decodes the object.
    pub fn decode(&self) -> Object {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Returns the bytes before and after the member `resourceVersion`.
    pub(crate) fn around_revision(&self) -> (&[u8], &[u8]) {
        let start = self.metadata_start as usize;
        let member = REVISION_PREFIX.len() + digits(self.revision) + REVISION_SUFFIX.len();
        let head = self.body.get(..start).unwrap_or_default();
        let tail = self.body.get(start.saturating_add(member)..).unwrap_or_default();
        (head, tail)
    }
}

impl Pairs {
    /// Packs pairs. Leaves out pairs that contain a zero byte.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut packed = String::new();
        for (name, value) in pairs {
            if !name.contains('\0') && !value.contains('\0') {
                packed.extend([name, "\0", value, "\0"]);
            }
        }
        Self(packed.into_boxed_str())
    }

    /// Returns the value of `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find_map(|(key, value)| (key == name).then_some(value))
    }

    /// Returns all pairs.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut parts = self.0.split_terminator('\0');
        std::iter::from_fn(move || Some((parts.next()?, parts.next()?)))
    }
}

fn key_of(resource: Resource, metadata: Option<&Object>) -> Box<str> {
    let part = |key| metadata.and_then(|map| json::text(map, key)).unwrap_or_default();
    if resource.info().namespaced {
        format!("{}/{}", part("namespace"), part("name")).into_boxed_str()
    } else {
        part("name").into()
    }
}

fn labels(metadata: Option<&Object>) -> Pairs {
    let labels = metadata.and_then(|map| json::object(map, "labels"));
    Pairs::new(
        labels.into_iter().flatten().filter_map(|(name, value)| Some((name.as_str(), value.as_str()?))),
    )
}

fn selectable_fields(resource: Resource, object: &Object) -> Pairs {
    let values: Vec<(&str, String)> = resource
        .info()
        .selectable
        .iter()
        .filter_map(|path| {
            let (outer, inner) = path.rsplit_once('.').unwrap_or(("", path));
            let parent = if outer.is_empty() { Some(object) } else { json::object(object, outer) };
            let value = parent.and_then(|parent| parent.get(inner)).map(selectable_text);
            let value = value.filter(|value| !value.is_empty());
            Some((*path, value.or_else(|| selected_instead(path, object))?))
        })
        .collect();
    Pairs::new(values.iter().map(|(name, value)| (*name, value.as_str())))
}

/// Returns the value that a selector finds for a field that is absent, if it is not the empty text. As upstream
/// (`pkg/registry/core/node/strategy.go` and `event/strategy.go`).
fn selected_instead(path: &str, object: &Object) -> Option<String> {
    match path {
        "spec.unschedulable" => Some("false".to_owned()),
        "deprecatedSource.component" => json::text(object, "reportingController").map(str::to_owned),
        _ => None,
    }
}

fn selectable_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.to_string(),
        other => other.to_string(),
    }
}

fn spliced(head: &[u8], revision: u64, tail: &[u8]) -> Bytes {
    let number = revision.to_string();
    let parts = [head, REVISION_PREFIX, number.as_bytes(), REVISION_SUFFIX, tail];
    Bytes::from(parts.concat().into_boxed_slice())
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

fn write_members(body: &mut Vec<u8>, members: Option<&Object>, except: &[&str]) {
    let mut first = true;
    for (name, value) in members.into_iter().flatten() {
        if except.contains(&name.as_str()) {
            continue;
        }
        if !std::mem::take(&mut first) {
            body.push(b',');
        }
        write_member(body, name, value);
    }
}

fn write_member(body: &mut Vec<u8>, name: &str, value: &Value) {
    // A `Value` and a `str` always encode, and writing to a `Vec` cannot fail.
    let _ = serde_json::to_writer(&mut *body, name);
    body.push(b':');
    write_json(body, value);
}

fn write_json(body: &mut Vec<u8>, value: &Value) {
    let _ = serde_json::to_writer(body, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(port: u16) -> Draft {
        let value = portolan_schema::json::json!({
            "metadata": {"name": "a", "namespace": "n", "resourceVersion": "7", "labels": {"x": "1", "y": ""}},
            "spec": {"type": "ClusterIP", "clusterIP": "10.0.0.1", "ports": [{"port": port}]},
        });
        Draft::new(Resource::Service, value.as_object().unwrap())
    }

    #[test]
    fn stored_bytes_are_json_with_the_given_revision() {
        let stored = draft(80).at(9999);
        assert_eq!(
            (stored.namespace(), stored.name(), stored.field("spec.clusterIP")),
            ("n", "a", "10.0.0.1")
        );
        assert_eq!(stored.labels().iter().collect::<Vec<_>>(), [("x", "1"), ("y", "")]);
        for revision in [1, 9, 10, 9999, 10_000, u64::MAX] {
            let value: Value = serde_json::from_slice(&stored.body_at(revision)).unwrap();
            assert_eq!(value["metadata"]["resourceVersion"], revision.to_string());
            assert_eq!(value["spec"]["ports"][0]["port"], 80);
            assert_eq!((&value["apiVersion"], &value["kind"]), (&"v1".into(), &"Service".into()));
        }
    }

    #[test]
    fn absent_fields_are_selected_as_upstream_does() {
        let field = |resource, value: Value, field: &str| {
            Draft::new(resource, value.as_object().unwrap()).at(1).field(field).to_owned()
        };
        let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        for (text, expected) in [
            (r#"{"metadata": {"name": "a"}}"#, "false"),
            (r#"{"metadata": {"name": "a"}, "spec": {"unschedulable": true}}"#, "true"),
        ] {
            assert_eq!(field(Resource::Node, json(text), "spec.unschedulable"), expected);
        }
        for (text, expected) in [
            (r#"{"metadata": {"name": "a"}, "reportingController": "c"}"#, "c"),
            (
                r#"{"metadata": {"name": "a"}, "reportingController": "c", "deprecatedSource": {"component": ""}}"#,
                "c",
            ),
            (
                r#"{"metadata": {"name": "a"}, "reportingController": "c", "deprecatedSource": {"component": "d"}}"#,
                "d",
            ),
        ] {
            assert_eq!(field(Resource::Event, json(text), "deprecatedSource.component"), expected);
        }
    }

    #[test]
    fn another_encoding_is_kept_from_the_third_time_on() {
        let long =
            portolan_schema::json::json!({"metadata": {"name": "a", "annotations": {"x": "y".repeat(1000)}}});
        let stored = Draft::new(Resource::Node, long.as_object().unwrap()).at(7);
        let mut calls = 0;
        for round in 0..5 {
            let length = (round >= 3).then_some("encoded ".len() + stored.body.len());
            assert_eq!(stored.kept_length(), length);
            assert_eq!(stored.put_kept(&mut Vec::new()), length.is_some());
            let mut out = b"before".to_vec();
            let encoded = stored.put_encoded(&mut out, |out, json| {
                calls += 1;
                out.extend(b"encoded ");
                out.extend(json);
                Ok::<_, ()>(())
            });
            assert_eq!(encoded, Ok(()));
            assert_eq!(out, [b"beforeencoded ", &stored.body()[..]].concat());
        }
        assert_eq!(calls, 3);
        let refused = draft(80).at(1);
        for _ in 0..3 {
            assert_eq!(refused.put_encoded(&mut Vec::new(), |_, _| Err("refused")), Err("refused"));
        }
    }

    #[test]
    fn same_content_is_recognised_whatever_the_revision() {
        for revision in [1, 10, 12_345] {
            assert!(draft(80).is_same_as(&draft(80).at(revision)));
            assert!(!draft(81).is_same_as(&draft(80).at(revision)));
            assert!(!draft(8080).is_same_as(&draft(80).at(revision)));
        }
    }
}
