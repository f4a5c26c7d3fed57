//! A cache of frames that several watches send: the first watch encodes a frame, and the others reuse it.
//!
//! A change wakes every watch of its resource at about the same time, so the cache needs only the last few frames.
//! Plain JSON is not cached, because its frames are copies of the stored bytes.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use portolan_api::ApiError;
use portolan_schema::Resource;

use super::frames::EventKind;
use crate::accept::Format;

/// Maximum number of cached frames, about as many as the writes that are published at once.
const KEPT: usize = 256;
/// Maximum number of cached bytes.
const KEPT_BYTES: usize = 1 << 20;

/// Everything that a frame depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) resource: Resource,
    pub(super) revision: u64,
    pub(super) kind: EventKind,
    pub(super) format: Format,
}

/// The most recent frames.
#[derive(Debug, Default)]
pub(crate) struct SharedFrames(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    frames: VecDeque<(Key, Bytes)>,
    bytes: usize,
}

impl SharedFrames {
    /// Returns the frame of `key`. Calls `make` if it is not cached.
    pub(super) fn get_or_make(
        &self,
        key: Key,
        make: impl FnOnce() -> Result<Bytes, ApiError>,
    ) -> Result<Bytes, ApiError> {
        // Made under the lock, because the other watches need the same frame. After a panic at worst a frame is
        // missing.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Newer frames are more likely to match.
        if let Some((_, frame)) = kept.frames.iter().rev().find(|(it, _)| *it == key) {
            return Ok(frame.clone());
        }
        let frame = make()?;
        kept.bytes = kept.bytes.saturating_add(frame.len());
        kept.frames.push_back((key, frame.clone()));
        while kept.frames.len() > KEPT || kept.bytes > KEPT_BYTES {
            let Some((_, oldest)) = kept.frames.pop_front() else { break };
            kept.bytes = kept.bytes.saturating_sub(oldest.len());
        }
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::{Encoding, View};

    fn key(revision: u64) -> Key {
        let format = Format { encoding: Encoding::Protobuf, view: View::Whole };
        Key { resource: Resource::Service, revision, kind: EventKind::Added, format }
    }

    #[test]
    fn a_frame_is_encoded_once_and_evicted_later() {
        let shared = SharedFrames::default();
        let make = |revision, text: &'static str| {
            shared.get_or_make(key(revision), || Ok(Bytes::from_static(text.as_bytes()))).unwrap()
        };
        assert_eq!(make(1, "made"), "made");
        assert_eq!(make(1, "not made"), "made");
        for revision in 2..=(KEPT as u64 + 1) {
            make(revision, "other");
        }
        assert_eq!(make(1, "made again"), "made again");
        let large = || Ok(Bytes::from(vec![0; KEPT_BYTES + 1]));
        shared.get_or_make(key(0), large).unwrap();
        assert_eq!(shared.0.lock().unwrap().frames.len(), 0);
    }

    #[test]
    fn a_failed_frame_is_not_cached() {
        let shared = SharedFrames::default();
        assert_eq!(shared.get_or_make(key(1), || Err(ApiError::UnknownPath)), Err(ApiError::UnknownPath));
        assert_eq!(shared.get_or_make(key(1), || Ok(Bytes::new())), Ok(Bytes::new()));
    }
}
