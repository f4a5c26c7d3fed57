//! The body of a list in YAML or in indented JSON. Each object is encoded when its part of the body is sent: the whole
//! text takes several times the memory of the stored objects, and encoding it at once would hold up all other requests.
//! Only the first chunk is encoded at once. It shows whether the list is large, which decides whether it is compressed.

use std::{
    convert::Infallible,
    mem,
    pin::Pin,
    task::{Context, Poll},
    vec,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use portolan_schema::json::{Object, Value};

use super::chunk::CHUNK;

/// How a list is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// Indented JSON.
    Pretty,
    /// YAML.
    Yaml,
}

/// Streams a list. Its length is known in advance if it has one chunk.
pub(crate) struct TextList<F> {
    style: Style,
    /// The text before the first item. Empty after it was encoded.
    head: String,
    /// The first chunk, until it is sent.
    first: Option<Bytes>,
    objects: vec::IntoIter<Bytes>,
    /// Converts a stored object into an item of the list.
    item: F,
    is_first: bool,
    /// True if other tasks have had their turn since the last chunk.
    is_rested: bool,
    /// True if the last chunk is encoded.
    has_ended: bool,
}

impl<F: FnMut(&Bytes) -> Value> TextList<F> {
    /// Creates a list of `objects`. `head` has all members of the list but the items, which get the name `items`.
    pub(crate) fn new(style: Style, head: &Object, items: &str, objects: Vec<Bytes>, item: F) -> Self {
        let is_empty = objects.is_empty();
        let head = match style {
            Style::Pretty => {
                let text = serde_json::to_string_pretty(head).unwrap_or_default();
                format!("{},\n  \"{items}\": [", text.strip_suffix("\n}").unwrap_or(&text))
            }
            Style::Yaml => {
                let text = serde_saphyr::to_string(head).unwrap_or_default();
                format!("{text}{items}:{}\n", if is_empty { " []" } else { "" })
            }
        };
        let objects = objects.into_iter();
        let (is_first, is_rested, has_ended) = (true, true, false);
        let mut list = Self { style, head, first: None, objects, item, is_first, is_rested, has_ended };
        list.first = Some(list.next_chunk());
        list
    }

    fn next_chunk(&mut self) -> Bytes {
        let mut chunk = mem::take(&mut self.head);
        while chunk.len() < CHUNK {
            let Some(stored) = self.objects.next() else {
                self.end(&mut chunk);
                break;
            };
            let item = (self.item)(&stored);
            let is_first = mem::take(&mut self.is_first);
            match self.style {
                Style::Pretty => {
                    chunk.push_str(if is_first { "\n    " } else { ",\n    " });
                    // Within texts, JSON has no line breaks.
                    let text = serde_json::to_string_pretty(&item).unwrap_or_default();
                    chunk.push_str(&text.replace('\n', "\n    "));
                }
                // Sequences of one item each, one after another, are one sequence.
                Style::Yaml => chunk.push_str(&serde_saphyr::to_string(&[item]).unwrap_or_default()),
            }
        }
        chunk.into()
    }

    fn end(&mut self, chunk: &mut String) {
        self.has_ended = true;
        if self.style == Style::Pretty {
            chunk.push_str(if self.is_first { "]\n}\n" } else { "\n  ]\n}\n" });
        }
    }
}

impl<F: FnMut(&Bytes) -> Value + Unpin> Body for TextList<F> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            self.is_rested = false;
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if self.has_ended {
            return Poll::Ready(None);
        }
        if !mem::replace(&mut self.is_rested, true) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.is_rested = false;
        Poll::Ready(Some(Ok(Frame::data(self.next_chunk()))))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended && self.first.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let encoded = self.first.as_ref().map_or(0, Bytes::len) as u64;
        let mut hint = SizeHint::new();
        hint.set_lower(encoded);
        if self.has_ended {
            hint.set_upper(encoded);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read, task::Waker};

    use http::{Response, header};
    use http_body_util::BodyExt;
    use portolan_schema::json::json;

    use super::*;
    use crate::compress::pack;

    fn list(style: Style, objects: Vec<Bytes>) -> TextList<impl FnMut(&Bytes) -> Value + Unpin> {
        let head = json!({"kind": "List", "metadata": {"resourceVersion": "7"}});
        let item = |stored: &Bytes| serde_json::from_slice(stored).unwrap();
        TextList::new(style, head.as_object().unwrap(), "items", objects, item)
    }

    /// Returns the chunks of a list, and how often other tasks had their turn.
    fn sent(style: Style, objects: Vec<Bytes>) -> (Vec<Bytes>, usize) {
        let mut list = list(style, objects);
        let (mut chunks, mut turns) = (Vec::new(), 0);
        loop {
            match Pin::new(&mut list).poll_frame(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Some(frame)) => chunks.push(frame.unwrap().into_data().unwrap()),
                Poll::Ready(None) => return (chunks, turns),
                Poll::Pending => turns += 1,
            }
        }
    }

    #[test]
    fn the_text_is_the_whole_list_in_chunks() {
        let object = |number: usize| {
            json!({"metadata": {"name": format!("a{number}"), "annotations": {"x": "one: 'two'\n- three\n", "y": ""}},
                "spec": {"ports": [{"port": 80}, {"port": 81, "name": null}], "none": [], "empty": {}}})
        };
        for count in [0, 1, 3, 3000] {
            let objects: Vec<Value> = (0..count).map(object).collect();
            let stored: Vec<Bytes> = objects.iter().map(|object| object.to_string().into()).collect();
            let expected =
                json!({"kind": "List", "metadata": {"resourceVersion": "7"}, "items": objects.clone()});
            for style in [Style::Pretty, Style::Yaml] {
                let (chunks, turns) = sent(style, stored.clone());
                let text = String::from_utf8(chunks.concat()).unwrap();
                let found: Value = match style {
                    Style::Pretty => serde_json::from_str(&text).unwrap(),
                    Style::Yaml => serde_saphyr::from_str(&text).unwrap(),
                };
                assert_eq!(found, expected, "{style:?} {count}");
                assert!(text.ends_with('\n'));
                assert_eq!(turns, chunks.len() - 1);
                assert!(chunks.iter().all(|chunk| chunk.len() < CHUNK + 1000));
                assert_eq!(chunks.len() > 1, count == 3000);
            }
        }
    }

    #[tokio::test]
    async fn large_lists_are_compressed_and_the_length_of_others_is_known() {
        let object = |number: usize| json!({"metadata": {"name": format!("a{number}")}}).to_string().into();
        for style in [Style::Pretty, Style::Yaml] {
            let small: Vec<Bytes> = (0..10).map(object).collect();
            let length = sent(style, small.clone()).0.concat().len();
            assert_eq!(list(style, small.clone()).size_hint().exact(), Some(length as u64));
            let answer = pack(Response::new(list(style, small).boxed_unsync()));
            assert!(!answer.headers().contains_key(header::CONTENT_ENCODING));

            let large: Vec<Bytes> = (0..20_000).map(object).collect();
            let text = sent(style, large.clone()).0.concat();
            assert_eq!(list(style, large.clone()).size_hint().exact(), None);
            let answer = pack(Response::new(list(style, large).boxed_unsync()));
            assert_eq!(answer.headers()[header::CONTENT_ENCODING], "gzip");
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let mut found = Vec::new();
            flate2::read::GzDecoder::new(&*body).read_to_end(&mut found).unwrap();
            assert!(found == text, "{style:?}");
        }
    }

    #[test]
    fn json_is_indented_as_a_whole() {
        let object = json!({"metadata": {"name": "a"}});
        let (chunks, _) = sent(Style::Pretty, vec![object.to_string().into(); 2]);
        let text = String::from_utf8(chunks.concat()).unwrap();
        let members: Value = serde_json::from_str(&text).unwrap();
        let mut lines: Vec<String> =
            serde_json::to_string_pretty(&members).unwrap().lines().map(str::to_owned).collect();
        let mut found: Vec<String> = text.lines().map(str::to_owned).collect();
        for lines in [&mut lines, &mut found] {
            for line in lines.iter_mut() {
                *line = line.trim_end_matches(',').to_owned();
            }
            lines.sort();
        }
        assert_eq!(found, lines);
    }
}
