//! The body of a list, sent in chunks: stored bytes joined by commas without building the whole text, or parts that
//! are already encoded.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    vec,
};

use bytes::{BufMut, Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};

/// Maximum number of bytes that are copied together for one write to the socket, unless a single object is larger.
pub(crate) const CHUNK: usize = 128 << 10;
const END: &[u8] = b"]}\n";

/// Streams a list whose length is known in advance.
#[derive(Debug)]
pub(crate) struct ListBody {
    head: Bytes,
    objects: vec::IntoIter<Bytes>,
    first: bool,
    left: u64,
}

impl ListBody {
    /// Creates a list of `objects`. `head` is the text before the first of them.
    pub(crate) fn new(head: &str, objects: Vec<Bytes>) -> Self {
        let bodies: usize = objects.iter().map(Bytes::len).sum();
        let left = head.len() + bodies + objects.len().saturating_sub(1) + END.len();
        Self {
            head: Bytes::copy_from_slice(head.as_bytes()),
            objects: objects.into_iter(),
            first: true,
            left: left as u64,
        }
    }

    /// Returns the whole list.
    pub(crate) fn collect_now(mut self) -> Vec<u8> {
        std::iter::from_fn(|| self.next_chunk()).flatten().collect()
    }

    fn next_chunk(&mut self) -> Option<Bytes> {
        if self.left == 0 {
            return None;
        }
        let mut chunk =
            BytesMut::with_capacity(usize::try_from(self.left).map_or(CHUNK, |left| left.min(CHUNK)));
        chunk.put(std::mem::take(&mut self.head));
        // An object that does not fit starts the next chunk, unless the chunk is empty.
        while let Some(next) = self.objects.as_slice().first() {
            if !chunk.is_empty() && chunk.len() + next.len() + END.len() > CHUNK {
                break;
            }
            if !std::mem::take(&mut self.first) {
                chunk.put_u8(b',');
            }
            chunk.extend(self.objects.next());
        }
        if self.objects.as_slice().is_empty() {
            chunk.put(END);
        }
        self.left = self.left.saturating_sub(chunk.len() as u64);
        Some(chunk.freeze())
    }
}

impl Body for ListBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.next_chunk().map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Streams encoded parts, each about as long as a chunk.
#[derive(Debug)]
pub(crate) struct Parts {
    parts: vec::IntoIter<Bytes>,
    left: u64,
}

impl Parts {
    pub(crate) fn new(parts: Vec<Bytes>) -> Self {
        let left: usize = parts.iter().map(Bytes::len).sum();
        Self { parts: parts.into_iter(), left: left as u64 }
    }
}

impl Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.parts.next();
        self.left = self.left.saturating_sub(next.as_ref().map_or(0, Bytes::len) as u64);
        Poll::Ready(next.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.as_slice().is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use portolan_schema::json::Value;

    use super::*;

    #[test]
    fn chunks_join_to_one_list_of_the_announced_length() {
        for (count, size) in [(0, 0), (1, 10), (3, CHUNK), (5000, 100), (2, 3 * CHUNK)] {
            let object = Bytes::from(format!("\"{}\"", "x".repeat(size)));
            let mut body = ListBody::new(r#"{"items":["#, vec![object; count]);
            let announced = body.size_hint().exact().unwrap();
            let chunks: Vec<Bytes> = std::iter::from_fn(|| body.next_chunk()).collect();
            let text = chunks.concat();
            assert_eq!(text.len() as u64, announced);
            let list: Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(list["items"].as_array().unwrap().len(), count);
            assert!(chunks.iter().all(|chunk| chunk.len() <= CHUNK + size + 100));
        }
    }
}
