//! A document that is kept compressed, because clients fetch it rarely and keep it.

use std::io::{Read, Write};

use bytes::Bytes;
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use portolan_web::accepts_gzip;

use super::{tag_of, tagged};
use crate::Answer;

/// A document as gzip, with the `ETag` of its text.
#[derive(Debug)]
pub(super) struct Packed {
    gzip: Bytes,
    /// Length of the text in bytes.
    length: usize,
    /// The `ETag`, without quotes.
    pub(super) tag: String,
}

impl Packed {
    pub(super) fn new(text: &[u8]) -> Self {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        // Writing to memory cannot fail.
        let gzip = encoder.write_all(text).and_then(|()| encoder.finish()).unwrap_or_default();
        Self { gzip: gzip.into(), length: text.len(), tag: tag_of(text) }
    }

    /// Answers with the document, compressed if the client accepts that, or with 304 if the client has it.
    pub(super) fn answer(&self, media_type: &'static str, headers: &HeaderMap) -> Answer {
        let packed = accepts_gzip(headers);
        let body = || if packed { self.gzip.clone() } else { self.text().into() };
        let mut answer = tagged(&self.tag, media_type, headers, body);
        let has_body = answer.status() == StatusCode::OK;
        let fields = answer.headers_mut();
        fields.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        if packed && has_body {
            fields.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        answer
    }

    /// Returns the text.
    fn text(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(self.length);
        // What was compressed above can be read again.
        let _ = GzDecoder::new(&*self.gzip).read_to_end(&mut text);
        text
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[test]
    fn clients_get_the_text_in_the_form_that_they_accept() {
        let text = "{\"a\":1}".repeat(1000);
        let packed = Packed::new(text.as_bytes());
        assert!(packed.gzip.len() < 200, "{}", packed.gzip.len());
        assert_eq!(packed.text(), text.as_bytes());
        let accepting = HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"))]);
        for (headers, encoding, length) in
            [(HeaderMap::new(), None, text.len()), (accepting, Some("gzip"), packed.gzip.len())]
        {
            let answer = packed.answer("application/json", &headers);
            let shown = answer.headers().get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap());
            assert_eq!(shown, encoding);
            assert_eq!(answer.headers().get_all(header::VARY).iter().count(), 2);
            let body = futures::executor::block_on(answer.into_body().collect()).unwrap().to_bytes();
            assert_eq!(body.len(), length);
        }
    }
}
