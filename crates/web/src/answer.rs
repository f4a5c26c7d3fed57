//! Complete answers with a text body.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Request, Response, StatusCode};

/// A function from a request with its complete body to the reply. It must not block.
pub type Handler = Arc<dyn Fn(&Request<Bytes>) -> Reply + Send + Sync>;
/// A complete response.
pub type Answer = Response<Full<Bytes>>;
/// An answer that is not ready yet. It is dropped if its client closes the connection.
pub type Promise = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// What a [`Handler`] returns.
pub enum Reply {
    /// The answer.
    Now(Answer),
    /// The answer follows. Other connections are served meanwhile.
    Later(Promise),
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self::Now(answer)
    }
}

impl Reply {
    /// Waits for the answer.
    pub async fn answer(self) -> Answer {
        match self {
            Self::Now(answer) => answer,
            Self::Later(promise) => promise.await,
        }
    }
}

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
