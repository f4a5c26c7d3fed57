//! Encodes watch events: in JSON one object per line, in protobuf one frame preceded by its length.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use portolan_api::ApiError;
use portolan_schema::json::json;
use portolan_store::StoredObject;

use super::shared::{Key, SharedFrames};
use crate::{
    accept::{Encoding, View},
    present::Presenter,
    protobuf,
};

/// A chunk is full when it has this many bytes. A chunk is sent with one write to the socket.
const CHUNK: usize = 64 << 10;

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum EventKind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

/// Events that are collected into one chunk.
#[derive(Debug, Default)]
pub(super) struct Frames(BytesMut);

/// Encodes the events of one watch.
#[derive(Debug)]
pub(super) struct Framing {
    presenter: Presenter,
    shared: Arc<SharedFrames>,
    /// True until the first event is encoded.
    first: bool,
}

impl EventKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
            Self::Bookmark => "BOOKMARK",
            Self::Error => "ERROR",
        }
    }
}

impl Frames {
    fn push(&mut self, frame: &[u8]) {
        self.0.put(frame);
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= CHUNK
    }

    /// Returns the collected bytes; `None` if there are none.
    pub(super) fn finish(self) -> Option<Bytes> {
        (!self.0.is_empty()).then(|| self.0.freeze())
    }

    fn push_json(&mut self, kind: EventKind, object: &[u8]) {
        self.0.reserve(object.len() + 40);
        self.0.put(&b"{\"type\":\""[..]);
        self.0.put(kind.name().as_bytes());
        self.0.put(&b"\",\"object\":"[..]);
        self.0.put(object);
        self.0.put(&b"}\n"[..]);
    }
}

impl Framing {
    pub(super) fn new(presenter: Presenter, shared: Arc<SharedFrames>) -> Self {
        Self { presenter, shared, first: true }
    }

    pub(super) fn encoding(&self) -> Encoding {
        self.presenter.format.encoding
    }

    /// Adds the event of a change. Other watches send the same event, so its frame is shared.
    pub(super) fn push_change(
        &mut self,
        frames: &mut Frames,
        kind: EventKind,
        revision: u64,
        stored: &Bytes,
    ) -> Result<(), ApiError> {
        let format = self.presenter.format;
        // A Table row contains an age, and the first row of a watch the column definitions. So rows cannot be shared.
        if self.presenter.passes_stored_bytes() || matches!(format.view, View::Table(_)) {
            return self.push(frames, kind, stored);
        }
        let shared = Arc::clone(&self.shared);
        let key = Key { resource: self.presenter.resource, revision, kind, format };
        let frame = shared.get_or_make(key, || {
            let mut frames = Frames::default();
            self.push(&mut frames, kind, stored)?;
            Ok(frames.0.freeze())
        })?;
        frames.push(&frame);
        Ok(())
    }

    /// Adds an event with an object of the store, which many watches begin with.
    pub(super) fn push_stored(
        &mut self,
        frames: &mut Frames,
        kind: EventKind,
        stored: &StoredObject,
    ) -> Result<(), ApiError> {
        if self.encoding() != Encoding::Protobuf {
            return self.push(frames, kind, stored.body());
        }
        self.first = false;
        frames.push(&self.presenter.stored_event_protobuf(kind.name(), stored)?);
        Ok(())
    }

    /// Adds an event with an object in its stored form.
    pub(super) fn push(
        &mut self,
        frames: &mut Frames,
        kind: EventKind,
        stored: &Bytes,
    ) -> Result<(), ApiError> {
        let first = std::mem::take(&mut self.first);
        match self.encoding() {
            Encoding::Protobuf => {
                frames.push(&self.presenter.event_protobuf(kind.name(), stored)?);
            }
            Encoding::Json | Encoding::Yaml => {
                frames.push_json(kind, &self.presenter.event_json(stored, first));
            }
        }
        Ok(())
    }

    /// Adds a bookmark: an object of the watched kind with only a revision.
    pub(super) fn push_bookmark(
        &mut self,
        frames: &mut Frames,
        revision: u64,
        initial_events_end: bool,
    ) -> Result<(), ApiError> {
        let info = self.presenter.resource.info();
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if let (true, Some(metadata)) = (initial_events_end, metadata.as_object_mut()) {
            metadata.insert("annotations".to_owned(), json!({"k8s.io/initial-events-end": "true"}));
        }
        let object = json!({"kind": info.kind, "apiVersion": info.api_version, "metadata": metadata});
        self.push(frames, EventKind::Bookmark, &object.to_string().into())
    }

    /// Returns an ERROR event. Its object is always a Status.
    pub(super) fn error(&self, error: &ApiError) -> Bytes {
        let status = error.to_status();
        let message = status.as_object().filter(|_| self.encoding() == Encoding::Protobuf);
        if let Some(frame) = message.and_then(|status| protobuf::event(EventKind::Error.name(), status).ok())
        {
            return frame;
        }
        let mut frames = Frames::default();
        frames.push_json(EventKind::Error, status.to_string().as_bytes());
        frames.0.freeze()
    }
}
