//! Why a request to the API server ended and a new one is needed.

use std::error::Error;
use std::io;
use std::time::Duration;

use crate::frame::InvalidBody;
use crate::status::ApiStatus;

/// Why a request to the API server ended and a new one is needed.
#[derive(Debug, thiserror::Error)]
pub enum RestartReason {
    /// The answer had another status than 200.
    #[error("the API server answered {0}")]
    Refused(ApiStatus),
    /// An `ERROR` event came in a watch.
    #[error("the API server ended the watch with {0}")]
    ErrorEvent(ApiStatus),
    /// The server closed a watch, or a streamed list before its end bookmark.
    #[error("the API server closed the watch early")]
    Closed,
    /// The body ended in the middle of an object.
    #[error("the answer ended in the middle of an object")]
    Truncated,
    /// No connection could be made.
    #[error("no connection: {}", causes(&**.0))]
    Unreachable(#[source] Box<dyn Error + Send + Sync>),
    /// There is no token, or an exec plug-in failed. Nothing was sent.
    #[error("no credentials: {}", causes(&**.0))]
    Credentials(#[source] Box<dyn Error + Send + Sync>),
    /// The connection broke, or its data was not HTTP.
    #[error("the connection failed: {}", causes(&**.0))]
    Broken(#[source] Box<dyn Error + Send + Sync>),
    /// No data came for this long.
    #[error("the API server was silent for {} s", .0.as_secs())]
    Silent(Duration),
    /// For this long changes came in a streamed list, and no end bookmark.
    #[error("the list did not end within {} s of its first change: the API server may not support streamed lists", .0.as_secs())]
    NoEnd(Duration),
    /// A watch was open for this long without an event or a bookmark.
    #[error("neither an event nor a bookmark came for {} s: the API server may have lost its history", .0.as_secs())]
    NoBookmarks(Duration),
    /// A watch continued at an older resource version.
    #[error("resource version {seen} came after {known}: the API server has lost its history")]
    WentBack {
        /// The newest known version.
        known: Box<str>,
        /// The older version that came.
        seen: Box<str>,
    },
    /// A list is empty although objects are known. Another list is requested before it is accepted.
    #[error("the list is empty, where {known} objects are known: it is not believed yet")]
    Emptied {
        /// Number of known objects.
        known: usize,
        /// True for the first of such lists in a row.
        first: bool,
    },
    /// The answer is not in the form that an API server sends.
    #[error("{0}")]
    InvalidBody(#[from] InvalidBody),
}

impl RestartReason {
    /// Returns true if nothing listens at the API server's address, or no route leads there. An unusable
    /// certificate does not count: such a server is present.
    pub(super) fn is_absent_host(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
        let absent = |kind| {
            matches!(kind, ConnectionRefused | HostUnreachable | NetworkDown | NetworkUnreachable | TimedOut)
        };
        matches!(self, Self::Unreachable(error) if is_io(&**error, &absent))
    }
}

/// Returns true if this error, or one of its sources, is a refused connection.
pub(crate) fn is_refused(error: &(dyn Error + 'static)) -> bool {
    is_io(error, &|kind| kind == io::ErrorKind::ConnectionRefused)
}

/// Returns true if this error, or one of its sources, is an I/O error of a wanted kind.
fn is_io(error: &(dyn Error + 'static), wanted: &dyn Fn(io::ErrorKind) -> bool) -> bool {
    let io = error.downcast_ref::<io::Error>();
    // The inner error of an I/O error is not its source.
    let below = io.and_then(io::Error::get_ref).map(|inner| inner as &(dyn Error + 'static));
    io.is_some_and(|io| wanted(io.kind()))
        || below.or(error.source()).is_some_and(|below| is_io(below, wanted))
}

/// Returns an error's text followed by those of its sources, because hyper's errors say little alone. A source
/// whose text is already contained is left out.
fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}
