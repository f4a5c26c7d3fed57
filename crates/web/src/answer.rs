//! Complete answers with a text body.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Request, Response, StatusCode};

/// A function from a request with its complete body to the response. It must not block.
pub type Handler = Arc<dyn Fn(&Request<Bytes>) -> Answer + Send + Sync>;
/// A complete response.
pub type Answer = Response<Full<Bytes>>;

/// The media type of JSON.
pub const JSON: &str = "application/json";
/// The media type of text for people.
pub const PLAIN: &str = "text/plain; charset=utf-8";

/// Creates a response with a body and with `X-Content-Type-Options: nosniff`.
pub fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Creates the response of Go's servers for an unknown path.
pub fn not_found() -> Answer {
    answer(StatusCode::NOT_FOUND, PLAIN, "404 page not found\n")
}
