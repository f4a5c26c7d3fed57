//! Watch events as bytes: in JSON one object a line, in protobuf one frame after its length.

use std::sync::Arc;

use crate::json::json;
use bytes::{BufMut, Bytes, BytesMut};

use super::shared::{Key, SharedFrames};
use crate::{
    error::ApiError,
    http::{
        accept::{Encoding, View},
        present::Presenter,
        protobuf,
    },
};

/// Bytes that are collected for one write to the socket.
const CHUNK: usize = 64 << 10;

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum EventKind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

/// Events on their way into one chunk.
#[derive(Debug, Default)]
pub(super) struct Frames(BytesMut);

/// Makes the frames of one watch.
#[derive(Debug)]
pub(super) struct Framing {
    presenter: Presenter,
    shared: Arc<SharedFrames>,
    /// Whether nothing has been sent yet.
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

    /// The collected bytes, if there are any.
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

    /// Adds the event of a change, which other watches will send, too.
    pub(super) fn push_change(
        &mut self,
        frames: &mut Frames,
        kind: EventKind,
        revision: u64,
        stored: &Bytes,
    ) -> Result<(), ApiError> {
        let format = self.presenter.format;
        // Rows of tables hold ages and, the first one, columns.
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

    /// Adds the event of an object, whose stored form is given.
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

    /// Adds a bookmark: an object of the watched kind with nothing but a revision.
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

    /// An ERROR event; its object is always a Status.
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
