//! Watch events as bytes: in JSON one object a line, in protobuf one frame after its length.

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};

use crate::{
    error::ApiError,
    http::{accept::Encoding, present::Presenter, protobuf},
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
    /// Adds a finished frame.
    pub(super) fn push(&mut self, frame: &[u8]) {
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
    pub(super) fn new(presenter: Presenter) -> Self {
        Self { presenter, first: true }
    }

    pub(super) fn encoding(&self) -> Encoding {
        self.presenter.format.encoding
    }

    /// Adds the event of an object, whose stored form is given.
    pub(super) fn push(&mut self, frames: &mut Frames, kind: EventKind, stored: &Bytes) {
        let object = self.presenter.event_object(stored, std::mem::take(&mut self.first));
        self.frame(frames, kind, &object);
    }

    /// A bookmark: an object of the watched kind with nothing but a revision.
    pub(super) fn bookmark(&mut self, revision: u64, initial_events_end: bool) -> Bytes {
        let info = self.presenter.resource.info();
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if let (true, Some(metadata)) = (initial_events_end, metadata.as_object_mut()) {
            metadata.insert("annotations".to_owned(), json!({"k8s.io/initial-events-end": "true"}));
        }
        let object = json!({"kind": info.kind, "apiVersion": info.api_version, "metadata": metadata});
        let mut frames = Frames::default();
        self.push(&mut frames, EventKind::Bookmark, &object.to_string().into());
        frames.0.freeze()
    }

    /// An ERROR event; its object is always a Status.
    pub(super) fn error(&self, error: &ApiError) -> Bytes {
        let status: Value = error.to_status();
        let object = match self.encoding() {
            Encoding::Protobuf => protobuf::status(&status),
            Encoding::Json | Encoding::Yaml => status.to_string().into(),
        };
        let mut frames = Frames::default();
        self.frame(&mut frames, EventKind::Error, &object);
        frames.0.freeze()
    }

    fn frame(&self, frames: &mut Frames, kind: EventKind, object: &[u8]) {
        match self.encoding() {
            Encoding::Protobuf => protobuf::push_event(&mut frames.0, kind.name(), object),
            Encoding::Json | Encoding::Yaml => frames.push_json(kind, object),
        }
    }
}
