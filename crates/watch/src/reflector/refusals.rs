//! Counts requests that the server refuses although it may answer another one: a role may lack the permission to watch,
//! and a proxy before the server may refuse or cut every request with `watch=true`.

use std::time::{Duration, Instant};

/// After this many streamed lists in a row that a server or a load balancer refused as unavailable, pages are tried once.
const STREAMS: u8 = 5;

/// The refusals in a row.
#[derive(Debug)]
pub(super) struct Refusals {
    /// How long watches may be refused before the collection is listed again.
    patience: Duration,
    /// When a watch was refused first since the last list, refused or not, and the last open watch.
    since: Option<Instant>,
    /// Streamed lists that were refused as unavailable.
    streams: u8,
}

impl Refusals {
    pub(super) const fn new(patience: Duration) -> Self {
        Self { patience, since: None, streams: 0 }
    }

    /// Records that a watch is open, or that a list is complete.
    pub(super) const fn ended(&mut self) {
        (self.since, self.streams) = (None, 0);
    }

    /// Records a refused watch. Returns true if the collection is to be listed again: changes would not be seen otherwise.
    /// A short outage does not make all nodes list when it ends.
    pub(super) fn watch(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        now.saturating_duration_since(since) >= self.patience
    }

    /// Returns true if a list in progress replaces a watch that was refused.
    pub(super) const fn has_refused_watch(&self) -> bool {
        self.since.is_some()
    }

    /// Records that the server or the way to it is away for a list, too. Returns true if the list was to replace a watch. That
    /// watch is to be tried again, and the wait for the next list begins anew: when the server comes back, most nodes then
    /// need no list.
    pub(super) const fn list(&mut self, now: Instant) -> bool {
        let replaces = self.since.is_some();
        if replaces {
            self.since = Some(now);
        }
        replaces
    }

    /// Records a refused streamed list. Returns true if pages are to be tried.
    pub(super) const fn stream(&mut self) -> bool {
        self.streams = self.streams.saturating_add(1);
        let is_enough = self.streams >= STREAMS;
        if is_enough {
            self.streams = 0;
        }
        is_enough
    }
}
