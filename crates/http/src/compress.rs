//! gzip of large answers, for clients that accept it. The body is compressed chunk by chunk while it is sent.

use std::{
    convert::Infallible,
    io::Write,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderValue, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};

use super::Answer;

/// Minimum size in bytes. Compressing smaller answers is not worth the time (upstream's `defaultGzipThresholdBytes`).
const THRESHOLD: u64 = 128 << 10;
/// Upstream's `defaultGzipContentEncodingLevel`. Higher levels gain little.
const LEVEL: u32 = 1;

/// Compresses the answer if it is known to be large. Watches have no known size and are never compressed.
pub(super) fn pack(answer: Answer) -> Answer {
    if answer.body().size_hint().lower() < THRESHOLD
        || answer.headers().contains_key(header::CONTENT_ENCODING)
    {
        return answer;
    }
    let (mut head, body) = answer.into_parts();
    head.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    head.headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    head.headers.remove(header::CONTENT_LENGTH);
    let encoder = Some(GzEncoder::new(Vec::new(), Compression::new(LEVEL)));
    Answer::from_parts(head, Packed { body, encoder }.boxed_unsync())
}

struct Packed {
    body: UnsyncBoxBody<Bytes, Infallible>,
    /// `None` after the end of the stream has been written.
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl Body for Packed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            let Some(encoder) = &mut self.encoder else { return Poll::Ready(None) };
            // Writing to a `Vec` cannot fail.
            let packed = match frame {
                Some(Ok(frame)) => {
                    let _ = frame.data_ref().map(|data| encoder.write_all(data));
                    std::mem::take(encoder.get_mut())
                }
                None => self.encoder.take().and_then(|encoder| encoder.finish().ok()).unwrap_or_default(),
            };
            if !packed.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(packed.into()))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use http::Response;
    use http_body_util::Full;

    use super::*;

    fn sent(size: usize) -> (bool, Vec<u8>) {
        let answer = pack(Response::new(Full::new(Bytes::from(vec![b'x'; size])).boxed_unsync()));
        let packed = answer.headers().contains_key(header::CONTENT_ENCODING);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        (packed, runtime.block_on(answer.into_body().collect()).unwrap().to_bytes().to_vec())
    }

    #[test]
    #[expect(clippy::cast_possible_truncation, reason = "a small constant")]
    fn only_large_answers_are_packed() {
        assert_eq!(sent(100), (false, vec![b'x'; 100]));
        let size = THRESHOLD as usize * 3;
        let (packed, body) = sent(size);
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(body.as_slice()).read_to_end(&mut text).unwrap();
        assert!(packed && body.len() < size / 100);
        assert_eq!(text, vec![b'x'; size]);
    }
}
