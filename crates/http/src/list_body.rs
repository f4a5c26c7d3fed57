//! The body of a list, sent in chunks: stored bytes joined by commas without building the whole text, or parts that
//! are already encoded.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    vec,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use portolan_store::StoredObject;

use super::chunk::{self, CHUNK};

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

    fn next_chunk(&mut self) -> Option<Bytes> {
        if self.left == 0 {
            return None;
        }
        let mut chunk = chunk::block(self.left);
        chunk.extend_from_slice(&std::mem::take(&mut self.head));
        // An object that does not fit starts the next chunk, unless the chunk is empty.
        while let Some(next) = self.objects.as_slice().first() {
            if !chunk.is_empty() && chunk.len() + next.len() + END.len() > CHUNK {
                break;
            }
            if !std::mem::take(&mut self.first) {
                chunk.push(b',');
            }
            chunk.extend_from_slice(&self.objects.next().unwrap_or_default());
        }
        if self.objects.as_slice().is_empty() {
            chunk.extend_from_slice(END);
        }
        self.left = self.left.saturating_sub(chunk.len() as u64);
        Some(chunk::sealed(chunk))
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

/// A part of an encoded list.
#[derive(Debug)]
pub(crate) enum Part {
    /// Bytes.
    Encoded(Bytes),
    /// An object that keeps its encoding, and the length of the encoding.
    Kept(Arc<StoredObject>, usize),
}

/// Streams encoded parts. Kept encodings are only copied for the chunk that they are sent with.
#[derive(Debug)]
pub(crate) struct Parts {
    head: Bytes,
    rest: vec::IntoIter<Part>,
    left: u64,
}

impl Parts {
    /// Creates a list of `head` and the parts after it.
    pub(crate) fn new(head: Bytes, parts: Vec<Part>) -> Self {
        let left = head.len() + parts.iter().map(Part::len).sum::<usize>();
        Self { head, rest: parts.into_iter(), left: left as u64 }
    }

    fn next_chunk(&mut self) -> Option<Bytes> {
        // Empty parts do not matter, so the end of the list is where no byte is left.
        if self.left == 0 {
            return None;
        }
        let head = std::mem::take(&mut self.head);
        let mut chunk = if head.is_empty() { Vec::new() } else { chunk::block(self.left) };
        chunk.extend_from_slice(&head);
        while let Some(next) = self.rest.as_slice().first() {
            if !chunk.is_empty() && chunk.len() + next.len() > CHUNK {
                break;
            }
            match self.rest.next() {
                // A whole chunk is sent without a copy.
                Some(Part::Encoded(bytes)) if chunk.is_empty() && bytes.len() > CHUNK / 2 => {
                    self.left = self.left.saturating_sub(bytes.len() as u64);
                    return Some(bytes);
                }
                Some(part) => {
                    if chunk.capacity() == 0 {
                        chunk = chunk::block(self.left);
                    }
                    part.put(&mut chunk);
                }
                None => {}
            }
        }
        self.left = self.left.saturating_sub(chunk.len() as u64);
        if chunk.is_empty() {
            // The parts are shorter than announced. The list ends, and the client finds it incomplete.
            self.left = 0;
            return None;
        }
        Some(chunk::sealed(chunk))
    }
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Self::Encoded(bytes) => bytes.len(),
            Self::Kept(_, length) => *length,
        }
    }

    fn put(&self, chunk: &mut Vec<u8>) {
        match self {
            Self::Encoded(bytes) => chunk.extend_from_slice(bytes),
            Self::Kept(object, length) => {
                chunk.reserve(*length);
                object.put_kept(chunk);
            }
        }
    }
}

impl Body for Parts {
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

#[cfg(test)]
mod tests {
    use portolan_schema::{Resource, json};
    use portolan_store::Draft;

    use super::*;

    /// Returns a part that is kept, and its bytes.
    fn kept(size: usize) -> (Part, Vec<u8>) {
        let node = json::json!({"metadata": {"name": "a", "annotations": {"x": "y".repeat(size)}}});
        let object = Arc::new(Draft::new(Resource::Node, node.as_object().unwrap()).at(7));
        let mut bytes = Vec::new();
        for _ in 0..3 {
            bytes.clear();
            let encoded = object.put_encoded(&mut bytes, |out, json| {
                out.extend(b"encoded ");
                out.extend(json);
                Ok::<_, ()>(())
            });
            encoded.unwrap();
        }
        let length = object.kept_length().unwrap();
        (Part::Kept(object, length), bytes)
    }

    #[test]
    fn kept_and_encoded_parts_are_sent_in_order() {
        let encoded = |size: usize| (Part::Encoded(vec![b'z'; size].into()), vec![b'z'; size]);
        let lists = [
            vec![],
            vec![encoded(0)],
            vec![kept(500)],
            vec![encoded(10), kept(500), encoded(CHUNK), kept(2 * CHUNK), kept(500), encoded(3)],
            (0..1000).map(|_| kept(600)).chain([encoded(0)]).collect(),
        ];
        for parts in lists {
            let (parts, bytes): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
            let mut body = Parts::new(Bytes::from_static(b"head"), parts);
            let announced = body.size_hint().exact().unwrap();
            let chunks: Vec<Bytes> = std::iter::from_fn(|| body.next_chunk()).collect();
            assert!(body.is_end_stream());
            assert_eq!(chunks.concat(), [b"head".to_vec(), bytes.concat()].concat());
            assert_eq!(chunks.concat().len() as u64, announced);
            assert!(chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() < 2 * CHUNK + 600));
            assert!(chunks.len() <= 8, "{} chunks", chunks.len());
        }
    }

    #[test]
    fn chunks_join_to_one_list_of_the_announced_length() {
        for (count, size) in [(0, 0), (1, 10), (3, CHUNK), (5000, 100), (2, 3 * CHUNK)] {
            let object = Bytes::from(format!("\"{}\"", "x".repeat(size)));
            let mut body = ListBody::new(r#"{"items":["#, vec![object; count]);
            let announced = body.size_hint().exact().unwrap();
            let chunks: Vec<Bytes> = std::iter::from_fn(|| body.next_chunk()).collect();
            let text = chunks.concat();
            assert_eq!(text.len() as u64, announced);
            let list: json::Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(list["items"].as_array().unwrap().len(), count);
            assert!(chunks.iter().all(|chunk| chunk.len() <= CHUNK + size + 100));
        }
    }
}
