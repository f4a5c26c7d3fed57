//! Real servers that are no endpoints any more but still have connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::frontend::Key;

/// They take nothing new, and go when their connections have ended, or when their time is over.
#[derive(Debug, Default)]
pub(super) struct Draining {
    servers: BTreeMap<Key, BTreeMap<SocketAddr, Instant>>,
}

impl Draining {
    pub(super) fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    pub(super) fn of(&self, key: &Key) -> impl Iterator<Item = SocketAddr> {
        self.servers.get(key).into_iter().flat_map(BTreeMap::keys).copied()
    }

    /// Those of each virtual server, with when their time is over.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &BTreeMap<SocketAddr, Instant>)> {
        self.servers.iter()
    }

    /// One that has a time already keeps it.
    pub(super) fn add(&mut self, key: Key, place: SocketAddr, until: Instant) {
        self.servers.entry(key).or_default().entry(place).or_insert(until);
    }

    pub(super) fn remove(&mut self, key: &Key, place: SocketAddr) {
        if let Some(places) = self.servers.get_mut(key) {
            places.remove(&place);
            if places.is_empty() {
                self.servers.remove(key);
            }
        }
    }

    /// Forgets all that a comparison with the kernel did not find.
    pub(super) fn keep(&mut self, found: &[(Key, SocketAddr)]) {
        let former = std::mem::take(&mut self.servers);
        for (key, place) in found {
            if let Some(until) = former.get(key).and_then(|places| places.get(place)) {
                self.add(*key, *place, *until);
            }
        }
    }
}

/// When the time of a real server is over that begins to drain now.
pub(super) fn deadline(drain: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(drain).unwrap_or(now)
}
