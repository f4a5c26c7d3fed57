//! The write of a slice: a JSON patch (RFC 6902) of the conditions that change.
//!
//! A merge patch would have to repeat the whole list of endpoints. A JSON patch names single fields, so everything else
//! stays as it is, and the write is as large as the change. The patch sets the resource version that was observed, so
//! the API server answers with a conflict if the slice has another one; the positions of endpoints are valid only for
//! that version.

use serde_json::{Map, Value, json};

use crate::object::{Conditions, Key, MARKER};

/// A write of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceWrite {
    /// Namespace and name.
    pub key: Key,
    /// UID.
    pub uid: String,
    /// The version that is changed.
    pub resource_version: String,
    /// The endpoints that change.
    pub endpoints: Vec<EndpointWrite>,
    /// True if all of this was written before, and another client has changed it back.
    pub is_repeat: bool,
    pub(super) marker: MarkerChange,
}

/// New conditions of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointWrite {
    /// Position in the slice.
    pub index: usize,
    /// Its number in the plan. `None` if it is not probed.
    pub(super) number: Option<u64>,
    /// The conditions that it has; `None` if it has none.
    pub old: Option<Conditions>,
    /// The condition `ready`; `None` removes it.
    pub ready: Option<bool>,
    /// The condition `serving`; `None` removes it.
    pub serving: Option<bool>,
}

/// What happens to the annotation [`MARKER`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkerChange {
    None,
    Add {
        /// True if the slice has annotations.
        annotations: bool,
    },
    Remove,
}

impl SliceWrite {
    /// Returns the JSON patch.
    pub fn json_patch(&self) -> Value {
        let version =
            json!({"op": "replace", "path": "/metadata/resourceVersion", "value": self.resource_version});
        let mut operations = vec![version];
        let marker = format!("/metadata/annotations/{}", MARKER.replace('~', "~0").replace('/', "~1"));
        match self.marker {
            MarkerChange::None => {}
            MarkerChange::Add { annotations: true } => {
                operations.push(json!({"op": "add", "path": marker, "value": "true"}));
            }
            MarkerChange::Add { annotations: false } => {
                operations
                    .push(json!({"op": "add", "path": "/metadata/annotations", "value": {MARKER: "true"}}));
            }
            MarkerChange::Remove => operations.push(json!({"op": "remove", "path": marker})),
        }
        self.endpoints.iter().for_each(|endpoint| endpoint.patch(&mut operations));
        Value::Array(operations)
    }
}

impl EndpointWrite {
    fn patch(&self, operations: &mut Vec<Value>) {
        let path = format!("/endpoints/{}/conditions", self.index);
        let old = self.old.unwrap_or_default();
        let fields = [("ready", old.ready, self.ready), ("serving", old.serving, self.serving)];
        if self.old.is_none() {
            let all = fields.into_iter().filter_map(|(name, _, new)| Some((name.to_owned(), new?.into())));
            let all: Map<String, Value> = all.collect();
            operations.push(json!({"op": "add", "path": path, "value": all}));
            return;
        }
        for (name, old, new) in fields {
            let path = format!("{path}/{name}");
            match new {
                Some(value) if old != new => {
                    operations.push(json!({"op": "add", "path": path, "value": value}));
                }
                None if old.is_some() => {
                    operations.push(json!({"op": "remove", "path": path}));
                }
                _ => {}
            }
        }
    }
}
