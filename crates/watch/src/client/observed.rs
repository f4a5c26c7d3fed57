//! Reports the result of each request, for metrics.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Method;

/// A request that was answered or failed, with the data of client-go's `rest_client` metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestDone {
    /// The HTTP method: `GET` for lists and watches, `POST`, `PATCH`.
    pub verb: &'static str,
    /// Host and port of the API server.
    pub host: Arc<str>,
    /// Status code of the answer; `None` if there was no answer.
    pub code: Option<u16>,
    /// Time from the sending of the request to the head of the answer, without the wait for the rate limit.
    pub duration: Duration,
    /// Time that the request waited for the rate limit (`clientConnection.qps`).
    pub throttled: Duration,
}

impl RequestDone {
    /// Returns the `code` label: the number, or `<error>`.
    pub fn code_label(&self) -> String {
        self.code.map_or_else(|| "<error>".to_owned(), |code| code.to_string())
    }
}

/// Called after each request, on the task that sent it, even if the request is cancelled before its answer. Must not
/// block.
pub type RequestHook = Arc<dyn Fn(&RequestDone) + Send + Sync>;

/// A request in progress. It is reported on drop, because a request whose deadline passes is only dropped.
pub(super) struct Underway<'a> {
    pub(super) hook: Option<&'a RequestHook>,
    pub(super) verb: &'static str,
    pub(super) host: &'a Arc<str>,
    pub(super) throttled: Duration,
    pub(super) start: Instant,
    /// Status code of the answer; `None` until there is one.
    pub(super) code: Option<u16>,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        if let Some(hook) = self.hook {
            hook(&RequestDone {
                verb: self.verb,
                host: Arc::clone(self.host),
                code: self.code,
                duration: self.start.elapsed(),
                throttled: self.throttled,
            });
        }
    }
}

/// Returns the `verb` label of a method.
pub(super) fn verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "OTHER",
    }
}
