//! Timeouts and delays of the reflectors, each with the reason for its value.

use std::time::Duration;

use crate::backoff::BackoffLimits;

/// Timeouts and delays of the reflectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Delays after failures.
    pub backoff: BackoffLimits,
    /// Maximum time from the sending of a request to the head of its answer, and between two chunks of a page of a
    /// list.
    pub answer: Duration,
    /// Maximum pause in a streamed list before its end bookmark. A server that neither supports nor refuses
    /// streamed lists never sends that bookmark.
    pub stream_pause: Duration,
    /// Maximum time in a streamed list from its first event that is no object of the list (a change, a deletion, an
    /// ordinary bookmark) to its end bookmark. A server that neither supports nor refuses streamed lists sends such
    /// events without an end. kube-apiserver sends all objects first, and asks etcd every 100 ms for the revision
    /// that the end bookmark waits for, so little comes between. The time of the objects themselves is not limited:
    /// a big list over a slow connection takes minutes.
    pub stream_end: Duration,
    /// The server is asked to close a watch after this many seconds, times a random factor between 1 and 2, so that
    /// the watches of many nodes do not end together.
    pub watch_seconds: u64,
    /// A watch without any data for its requested length plus this time is given up.
    pub watch_grace: Duration,
    /// A watch with neither an event nor a bookmark for this long is replaced by a list: the server may have lost
    /// its history and wait for a version that never comes. kube-apiserver sends one bookmark a minute and checks
    /// every 1 to 1.25 s which are due (`storage/cacher`, `defaultBookmarkFrequency`), so about half a minute is
    /// left for the network. The time runs while a watch is open and is summed over all its answers. Each list that
    /// shows that nothing was lost doubles it, up to eight times the value, so that a server that sends no
    /// bookmarks is seldom listed. A [`Watcher`](crate::Watcher) adds up to a sixth to it, at random.
    pub bookmark_silence: Duration,
    /// Time for which an empty list of Services or EndpointSlices is held if more than one object was known. An
    /// empty list that begins after this time is accepted. Until then a list is requested every few seconds. Zero
    /// accepts the first empty list.
    pub empty_list_hold: Duration,
    /// A collection that may not be read is requested again after this time, times 1 to 2. One that the server does not
    /// have is requested again after this time, times 1 to 1.5; the time doubles with each such answer, up to ten times the
    /// value.
    pub unavailable_retry: Duration,
}

impl Timing {
    /// Returns the times of one node: its bookmark silence is up to a sixth longer. If a server sends no bookmarks, its nodes
    /// would otherwise list at the same moment. `random` is in `0.0..1.0`.
    pub(crate) fn of_one_node(self, random: f64) -> Self {
        Self { bookmark_silence: self.bookmark_silence.mul_f64(1.0 + random / 6.0), ..self }
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            backoff: BackoffLimits::default(),
            answer: Duration::from_secs(60),
            stream_pause: Duration::from_secs(30),
            stream_end: Duration::from_secs(60),
            watch_seconds: 300,
            watch_grace: Duration::from_secs(30),
            bookmark_silence: Duration::from_secs(90),
            empty_list_hold: Duration::from_secs(30),
            unavailable_retry: Duration::from_secs(60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_do_not_list_at_the_same_moment() {
        let silence = |random| Timing::default().of_one_node(random).bookmark_silence;
        assert_eq!(silence(0.0), Duration::from_secs(90));
        assert_eq!(silence(0.5), Duration::from_millis(97_500));
        // Eight times the longest is less than the 15 minutes after which an alert reports a stale watch.
        assert_eq!(silence(1.0), Duration::from_secs(105));
    }
}
