//! Refusals of the API server: the `Status` object in the body of an answer or in an `ERROR` event.

use std::time::Duration;

use http::HeaderMap;
use http::header::RETRY_AFTER;
use portolan_model::object::Encoded;
use portolan_model::object::message::{Fields, Malformed, Value};
use serde::Deserialize;

use crate::content_type::is_protobuf;
use crate::message::opened;

/// A refusal of the API server: the fields of `metav1.Status` that decide what to do next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApiStatus {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason, such as `Expired`; empty if the body was not a `Status`.
    pub reason: Box<str>,
    /// Text for people, at most 256 characters.
    pub message: Box<str>,
    /// How long the server asks clients to wait; `None` if it does not say. At most 30 s.
    pub retry_after: Option<Duration>,
    /// True if the requested resource version is newer than the server's: the server was restored from a backup, or
    /// it is a replica that lags behind.
    pub too_large: bool,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    code: u16,
    reason: String,
    message: String,
    details: Option<Details>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    retry_after_seconds: u32,
    causes: Vec<Cause>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Cause {
    reason: String,
}

impl Wire {
    /// Reads a message `Status` (apimachinery `meta/v1/generated.proto`).
    fn read(message: &[u8]) -> Result<Self, Malformed> {
        let text = |value: Value<'_>| value.text().unwrap_or_default().to_owned();
        let mut status = Self::default();
        for field in Fields::new(message) {
            match field? {
                (3, value) => status.message = text(value),
                (4, value) => status.reason = text(value),
                (5, Value::Bytes(message)) => status.details = Some(Details::read(message)?),
                (6, Value::Number(code)) => status.code = u16::try_from(code).unwrap_or_default(),
                _ => {}
            }
        }
        Ok(status)
    }
}

impl Details {
    fn read(message: &[u8]) -> Result<Self, Malformed> {
        let mut details = Self::default();
        for field in Fields::new(message) {
            match field? {
                (4, Value::Bytes(cause)) => {
                    for field in Fields::new(cause) {
                        if let (1, value) = field? {
                            let reason = value.text().unwrap_or_default().to_owned();
                            details.causes.push(Cause { reason });
                        }
                    }
                }
                (5, Value::Number(seconds)) => {
                    details.retry_after_seconds = u32::try_from(seconds).unwrap_or_default();
                }
                _ => {}
            }
        }
        Ok(details)
    }
}

/// Maximum wait that is obeyed. A longer one is reduced to this.
pub(crate) const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(30);

impl ApiStatus {
    /// Reads the object of an `ERROR` event. A status without a code counts as 500.
    pub(crate) fn from_event(object: Encoded<'_>) -> Self {
        let status = Self::from_object(object);
        if status.code == 0 { Self { code: 500, ..status } } else { status }
    }

    /// Reads an answer other than 200. The code is that of the status line; the body adds the reason.
    pub(crate) fn from_answer(code: u16, headers: &HeaderMap, body: &[u8]) -> Self {
        let body = if is_protobuf(headers) { opened(body).ok() } else { Some(Encoded::Json(body)) };
        let status = body.map(Self::from_object).unwrap_or_default();
        let header = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        Self { code, retry_after: header.map(seconds).or(status.retry_after), ..status }
    }

    fn from_object(object: Encoded<'_>) -> Self {
        let wire = match object {
            Encoded::Json(body) => serde_json::from_slice(body).unwrap_or_default(),
            Encoded::Protobuf { message, .. } => Wire::read(message).unwrap_or_default(),
        };
        let details = wire.details.unwrap_or_default();
        let retry_after = details.retry_after_seconds;
        Self {
            code: wire.code,
            reason: wire.reason.into(),
            message: wire.message.chars().take(256).collect(),
            retry_after: (retry_after > 0).then(|| seconds(retry_after)),
            too_large: details.causes.iter().any(|cause| cause.reason == "ResourceVersionTooLarge"),
        }
    }

    /// Returns true if the requested resource version is gone from the server's history.
    pub(crate) fn expired(&self) -> bool {
        self.code == 410 || matches!(&*self.reason, "Expired" | "Gone")
    }

    /// Returns true if the server knows streamed lists but cannot make one, because its etcd is too old to report
    /// the progress of a watch (`storage/cacher`: "the required storage feature `RequestWatchProgress` is
    /// disabled").
    pub(crate) fn lacks_streamed_lists(&self) -> bool {
        self.code == 500 && self.message.contains("RequestWatchProgress")
    }

    /// Returns true if the server is in trouble and needs fewer requests.
    pub(crate) fn is_trouble(&self) -> bool {
        (self.code == 429 || self.code >= 500) && !self.expired() && !self.too_large && !self.is_of_gateway()
    }

    /// Returns true if a load balancer answers for an absent server. An API server gives a reason in a `Status`, or
    /// sends `Retry-After`.
    pub(crate) fn is_of_gateway(&self) -> bool {
        let says_nothing = self.reason.is_empty() && self.message.is_empty() && self.retry_after.is_none();
        matches!(self.code, 502..=504) && says_nothing && !self.too_large
    }
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into()).min(LONGEST_RETRY_AFTER)
}

impl std::fmt::Display for ApiStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.code)?;
        if !self.reason.is_empty() {
            write!(f, " {}", self.reason)?;
        }
        if !self.message.is_empty() {
            write!(f, " ({})", self.message)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_full_status() {
        let status = ApiStatus::from_event(Encoded::Json(
            br#"{"kind":"Status","code":504,"reason":"Timeout","message":"Too large resource version",
                "details":{"retryAfterSeconds":1,"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#,
        ));
        assert_eq!(status.to_string(), "504 Timeout (Too large resource version)");
        assert_eq!(status.retry_after, Some(Duration::from_secs(1)));
        assert!(status.too_large && !status.expired());
    }

    #[test]
    fn a_status_in_protobuf() {
        let details =
            [0x22, 27, 0x0a, 23].into_iter().chain(*b"ResourceVersionTooLarge").chain([0x12, 0, 0x28, 9]);
        let details: Vec<u8> = details.collect();
        let mut message = vec![0x1a, 1, b'm', 0x22, 1, b'r', 0x2a, u8::try_from(details.len()).unwrap()];
        message.extend(details);
        message.extend([0x30, 0xf8, 0x03]);
        let status = ApiStatus::from_event(Encoded::Protobuf { kind: "Status", message: &message });
        assert_eq!(status.to_string(), "504 r (m)");
        assert_eq!((status.retry_after, status.too_large), (Some(Duration::from_secs(9)), true));
        let unreadable = ApiStatus::from_event(Encoded::Protobuf { kind: "Status", message: b"{}" });
        assert_eq!(unreadable, ApiStatus { code: 500, ..ApiStatus::default() });
    }

    #[test]
    fn an_answer_that_is_no_status() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_static(" 7 "));
        let status = ApiStatus::from_answer(503, &headers, b"<html>");
        assert_eq!(status.to_string(), "503");
        assert_eq!(status.retry_after, Some(Duration::from_secs(7)));
        headers.insert(RETRY_AFTER, HeaderValue::from_static("Wed, 21 Oct 2026 07:28:00 GMT"));
        assert_eq!(ApiStatus::from_answer(503, &headers, b"").retry_after, None);
    }

    #[test]
    fn a_day_of_retry_after_is_half_a_minute() {
        let status = ApiStatus::from_event(Encoded::Json(br#"{"details":{"retryAfterSeconds":86400}}"#));
        assert_eq!((status.code, status.retry_after), (500, Some(LONGEST_RETRY_AFTER)));
    }

    #[test]
    fn a_load_balancer_is_distinguished_from_an_api_server_in_trouble() {
        let status = |code, body: &str| ApiStatus::from_answer(code, &HeaderMap::new(), body.as_bytes());
        for code in [502, 503, 504] {
            let gateway = status(code, "<html>no server</html>");
            assert!(gateway.is_of_gateway() && !gateway.is_trouble(), "{code}");
            let server = status(code, r#"{"kind":"Status","message":"shutting down"}"#);
            assert!(!server.is_of_gateway() && server.is_trouble(), "{code}");
        }
        for code in [429, 500, 501] {
            assert!(status(code, "Too many requests").is_trouble(), "{code}");
        }
        assert!(![400, 401, 403, 404, 410, 422].iter().any(|code| status(*code, "").is_trouble()));
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        assert!(ApiStatus::from_answer(503, &headers, b"").is_trouble(), "it names a time");
    }

    #[test]
    fn gone_by_code_or_by_reason() {
        assert!(ApiStatus::from_event(Encoded::Json(br#"{"code":410}"#)).expired());
        assert!(ApiStatus::from_event(Encoded::Json(br#"{"code":400,"reason":"Expired"}"#)).expired());
        assert!(!ApiStatus::from_event(Encoded::Json(b"[]")).expired());
    }
}
