//! Timeouts and delays of the reflectors, each with the reason for its value.

use std::time::Duration;

use crate::backoff::BackoffLimits;

/// Timeouts and delays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Delays after failures.
    pub backoff: BackoffLimits,
    /// How long an answer may take to begin, from when its request is sent, and a list to go on.
    pub answer: Duration,
    /// How long a streamed list may pause before its end mark. A server that does not know streamed lists
    /// but does not refuse them either would never send one.
    pub stream_pause: Duration,
    /// The server is asked to close a watch after this many seconds, times a random factor between 1 and 2,
    /// so that the watches of many nodes do not end together.
    pub watch_seconds: u64,
    /// A watch in which nothing came for its length and this much more is dead.
    pub watch_grace: Duration,
    /// A watch in which neither event nor bookmark came for this long is replaced by a list: the server may have
    /// lost its history, and wait for a version that will not come. kube-apiserver looks once in 1 to 1.25 s which
    /// bookmarks are due, one each minute (`storage/cacher`, `defaultBookmarkFrequency`), so that half a minute
    /// is left for the way. The time runs while a watch is open, over all answers that it takes. A list that shows
    /// that nothing was lost doubles it, up to eight times, so that a server which sends no bookmarks while nothing
    /// changes is seldom listed.
    pub bookmark_silence: Duration,
    /// An empty list of Services or EndpointSlices, where more than one was known, is not believed; one that is asked
    /// for after this time and is empty, too, is. In between a list is asked for every few seconds. Zero believes
    /// the first.
    pub empty_list_hold: Duration,
    /// A collection that the server does not have is asked for at this interval, times 1 to 2.
    pub unavailable_retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            backoff: BackoffLimits::default(),
            answer: Duration::from_secs(60),
            stream_pause: Duration::from_secs(30),
            watch_seconds: 300,
            watch_grace: Duration::from_secs(30),
            bookmark_silence: Duration::from_secs(90),
            empty_list_hold: Duration::from_secs(30),
            unavailable_retry: Duration::from_secs(60),
        }
    }
}
