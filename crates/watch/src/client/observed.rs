//! What became of each request, for whoever counts them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Method;

/// One request that was answered or failed, as client-go's `rest_client` metrics see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestDone {
    /// The HTTP method: `GET` for lists and watches, `POST`, `PATCH`.
    pub verb: &'static str,
    /// Host and port of the API server.
    pub host: Arc<str>,
    /// Status code of the answer, or nothing where there was none.
    pub code: Option<u16>,
    /// From the first byte sent until the head of the answer, without the wait for a turn.
    pub duration: Duration,
    /// How long the request waited for its turn (`clientConnection.qps`).
    pub throttled: Duration,
}

impl RequestDone {
    /// The `code` label: the number, or `<error>`.
    pub fn code_label(&self) -> String {
        self.code.map_or_else(|| "<error>".to_owned(), |code| code.to_string())
    }
}

/// Called after each request on the task that made it, also where nobody waits for the answer any more; it must
/// not block.
pub type RequestHook = Arc<dyn Fn(&RequestDone) + Send + Sync>;

/// A request on its way. It is reported when this is dropped: where a deadline passes, all that still happens is
/// that the request is dropped.
pub(super) struct Underway<'a> {
    pub(super) hook: Option<&'a RequestHook>,
    pub(super) verb: &'static str,
    pub(super) host: &'a Arc<str>,
    pub(super) throttled: Duration,
    pub(super) start: Instant,
    /// Nothing until there is an answer.
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

/// The `verb` label of a method.
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
