//! Watch events as bytes: one JSON object a line, the stored bytes inside.

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::json;

use crate::{error::ApiError, resource::Resource};

/// Bytes that are collected for one write to the socket.
const CHUNK: usize = 64 << 10;

/// Events on their way into one chunk.
#[derive(Debug, Default)]
pub(super) struct Frames(BytesMut);

impl Frames {
    pub(super) fn push(&mut self, kind: &str, object: &[u8]) {
        self.0.reserve(object.len() + 40);
        self.0.put(&b"{\"type\":\""[..]);
        self.0.put(kind.as_bytes());
        self.0.put(&b"\",\"object\":"[..]);
        self.0.put(object);
        self.0.put(&b"}\n"[..]);
    }

    /// A bookmark: an object of the watched kind with nothing but a revision.
    pub(super) fn push_bookmark(&mut self, resource: Resource, revision: u64, initial_events_end: bool) {
        let info = resource.info();
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if let (true, Some(metadata)) = (initial_events_end, metadata.as_object_mut()) {
            metadata.insert("annotations".to_owned(), json!({"k8s.io/initial-events-end": "true"}));
        }
        let object = json!({"kind": info.kind, "apiVersion": info.api_version, "metadata": metadata});
        self.push("BOOKMARK", object.to_string().as_bytes());
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= CHUNK
    }

    /// The collected bytes, if there are any.
    pub(super) fn finish(self) -> Option<Bytes> {
        (!self.0.is_empty()).then(|| self.0.freeze())
    }

    /// One bookmark alone.
    pub(super) fn bookmark(resource: Resource, revision: u64, initial_events_end: bool) -> Bytes {
        let mut frames = Self::default();
        frames.push_bookmark(resource, revision, initial_events_end);
        frames.0.freeze()
    }

    /// An ERROR event; its object is always a Status.
    pub(super) fn error(error: &ApiError) -> Bytes {
        let mut frames = Self::default();
        frames.push("ERROR", error.to_status().to_string().as_bytes());
        frames.0.freeze()
    }
}
