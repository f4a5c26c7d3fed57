//! Why a request did not go to its ordinary end.

use std::error::Error;
use std::io;
use std::time::Duration;

use crate::frame::Garbage;
use crate::status::ApiStatus;

/// Why a request to the API server did not go to its ordinary end.
#[derive(Debug, thiserror::Error)]
pub enum RestartReason {
    /// An answer other than 200.
    #[error("the API server answered {0}")]
    Refused(ApiStatus),
    /// An `ERROR` event in a watch.
    #[error("the API server ended the watch with {0}")]
    ErrorEvent(ApiStatus),
    /// A watch was closed at once, or a streamed list before its end mark.
    #[error("the API server closed the watch early")]
    Closed,
    /// The body ended in the middle of an object.
    #[error("the answer ended in the middle of an object")]
    Truncated,
    /// No connection could be made.
    #[error("no connection: {}", causes(&**.0))]
    Unreachable(#[source] Box<dyn Error + Send + Sync>),
    /// There is no token, or an exec plug-in failed: nothing was sent.
    #[error("no credentials: {}", causes(&**.0))]
    Credentials(#[source] Box<dyn Error + Send + Sync>),
    /// The connection broke, or what came over it was no HTTP.
    #[error("the connection failed: {}", causes(&**.0))]
    Broken(#[source] Box<dyn Error + Send + Sync>),
    /// Nothing came for this long.
    #[error("the API server was silent for {} s", .0.as_secs())]
    Silent(Duration),
    /// A watch was open for this long without an event or a bookmark.
    #[error("neither an event nor a bookmark came for {} s: the API server may have lost its history", .0.as_secs())]
    NoBookmarks(Duration),
    /// A watch went on at an older resource version.
    #[error("resource version {seen} came after {known}: the API server has lost its history")]
    WentBack {
        /// The newest version that was known.
        known: Box<str>,
        /// The one that came.
        seen: Box<str>,
    },
    /// A list is empty although objects are known. It is asked for again before it is believed.
    #[error("the list is empty, where {known} objects are known: it is not believed yet")]
    Emptied {
        /// How many objects are known.
        known: usize,
        /// Whether this is the first of such lists in a row.
        first: bool,
    },
    /// The answer is not what an API server sends.
    #[error("{0}")]
    Garbage(#[from] Garbage),
}

impl RestartReason {
    /// Nothing listens where the API server should be, or there is no way to it. A certificate that is no use is not
    /// that: such a server is there.
    pub(super) fn is_absent_host(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
        let absent = |kind| {
            matches!(kind, ConnectionRefused | HostUnreachable | NetworkDown | NetworkUnreachable | TimedOut)
        };
        matches!(self, Self::Unreachable(error) if is_io(&**error, &absent))
    }
}

/// Whether nothing listened, as an error inside this one says.
pub(crate) fn is_refused(error: &(dyn Error + 'static)) -> bool {
    is_io(error, &|kind| kind == io::ErrorKind::ConnectionRefused)
}

/// Whether this error, or one inside it, is an I/O error of a kind.
fn is_io(error: &(dyn Error + 'static), wanted: &dyn Fn(io::ErrorKind) -> bool) -> bool {
    let io = error.downcast_ref::<io::Error>();
    // What an I/O error is made of is not its source.
    let below = io.and_then(io::Error::get_ref).map(|inner| inner as &(dyn Error + 'static));
    io.is_some_and(|io| wanted(io.kind()))
        || below.or(error.source()).is_some_and(|below| is_io(below, wanted))
}

/// An error with what lies below it: hyper's say little without. What an error repeats of its cause comes once.
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
