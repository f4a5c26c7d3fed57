//! The web page that shows the documents.

use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderValue, REFERRER_POLICY};
use hyper::{Request, StatusCode};
use portolan_status::page;
use portolan_web::{self as web, Answer};

/// The media type of the page.
const HTML: &str = "text/html; charset=utf-8";

/// Answers with the page. It is the same for all agents of a version; the documents are what it asks for.
pub(super) fn answer(request: &Request<Bytes>) -> Answer {
    let mut answer = web::answer(StatusCode::OK, HTML, Bytes::new());
    let headers = answer.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(page::POLICY));
    // Another version of the agent may answer the next request.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    web::compressed(request.headers(), answer, page::HTML.to_owned())
}
