//! The content types that are sent and asked for.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

/// The content type of everything that is sent, and of lists in pages.
pub(crate) const JSON: &str = "application/json";

/// The content type of watches, if it is configured: kube-proxy's default.
pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The content types of a watch, the preferred one first.
pub(crate) const PROTOBUF_OR_JSON: &str = "application/vnd.kubernetes.protobuf,application/json";

/// Returns true if an answer is in protobuf.
pub(crate) fn is_protobuf(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(PROTOBUF.as_bytes()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn answers_in_protobuf() {
        let of = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(value));
            is_protobuf(&headers)
        };
        assert!(of("application/vnd.kubernetes.protobuf;stream=watch") && of(PROTOBUF));
        assert!(!of("application/json") && !is_protobuf(&HeaderMap::new()));
    }
}
