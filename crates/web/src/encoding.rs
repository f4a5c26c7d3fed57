//! Compression of responses for clients that accept gzip.

use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderMap, HeaderValue, VARY};

use crate::Answer;

/// Sets the body of a response, compressed if the request's headers ask for it.
pub fn compressed(request: &HeaderMap, mut answer: Answer, body: String) -> Answer {
    answer.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    let body = match accepts_gzip(request).then(|| gzip(body.as_bytes())) {
        Some(Ok(small)) => {
            answer.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            small.into()
        }
        // A write to memory does not fail.
        Some(Err(_)) | None => Bytes::from(body),
    };
    *answer.body_mut() = body.into();
    answer
}

/// Returns true if `Accept-Encoding` names gzip, or everything, with a weight above 0 (RFC 9110, 12.5.3).
pub fn accepts_gzip(request: &HeaderMap) -> bool {
    let texts = request.get_all(ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    let mut any = false;
    for item in texts.flat_map(|text| text.split(',')) {
        let (name, parameters) = item.split_once(';').unwrap_or((item, ""));
        let weight = parameters.split(';').find_map(|parameter| parameter.trim().strip_prefix("q="));
        let weight = weight.map_or(Ok(1.0), str::parse::<f32>);
        let wanted = weight.is_ok_and(|weight| weight > 0.0);
        match name.trim() {
            "gzip" => return wanted,
            "*" => any = wanted,
            _ => {}
        }
    }
    any
}

fn gzip(body: &[u8]) -> std::io::Result<Vec<u8>> {
    // Every scrape costs this time. The text is repetitive, so that the fastest level already saves most of the size.
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 4), Compression::fast());
    encoder.write_all(body)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_used_only_where_it_is_asked_for() {
        let table = [
            ("", false),
            ("gzip", true),
            ("deflate, gzip;q=0.5", true),
            ("br", false),
            ("gzip;q=0", false),
            ("gzip; level=1; q=0.0", false),
            ("gzip;q=0, *", false),
            ("*", true),
            ("*;q=0", false),
            ("identity", false),
            ("gzip;q=rubbish", false),
        ];
        for (text, want) in table {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(text));
            assert_eq!(accepts_gzip(&headers), want, "{text:?}");
        }
    }
}
