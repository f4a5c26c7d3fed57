//! Real servers that are no longer endpoints but still have connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::frontend::Key;

/// A time in seconds since the machine started, which no virtual server outlives. The kernel stores it as the upper
/// threshold of connections of a real server of weight 0, where it has no effect. So a restarted agent finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UptimeSecs(u32);

impl UptimeSecs {
    pub(super) fn now() -> Self {
        // Never 0: that threshold means no limit.
        Self(u32::try_from(rustix::system::sysinfo().uptime).unwrap_or(u32::MAX).max(1))
    }

    pub(super) fn after(self, period: Duration) -> Self {
        Self(self.0.saturating_add(u32::try_from(period.as_secs()).unwrap_or(u32::MAX)))
    }

    /// Returns the time that an upper threshold stands for; `None` for 0.
    pub(super) const fn of_threshold(threshold: u32) -> Option<Self> {
        if threshold == 0 { None } else { Some(Self(threshold)) }
    }

    /// Returns the upper threshold that stands for this time.
    pub(super) const fn threshold(self) -> u32 {
        self.0
    }
}

/// The draining real servers. They get no new connections, and go when their connections have ended or at their
/// deadline.
#[derive(Debug, Default)]
pub(super) struct Draining {
    servers: BTreeMap<Key, BTreeMap<SocketAddr, UptimeSecs>>,
}

impl Draining {
    pub(super) fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// Returns the number of draining real servers.
    pub(super) fn len(&self) -> usize {
        self.servers.values().map(BTreeMap::len).sum()
    }

    /// Returns those of a virtual server, with their deadlines.
    pub(super) fn of(&self, key: &Key) -> impl Iterator<Item = (SocketAddr, UptimeSecs)> {
        self.servers.get(key).into_iter().flatten().map(|(place, until)| (*place, *until))
    }

    /// Returns those of each virtual server, with their deadlines.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &BTreeMap<SocketAddr, UptimeSecs>)> {
        self.servers.iter()
    }

    pub(super) fn add(&mut self, key: Key, place: SocketAddr, until: UptimeSecs) {
        self.servers.entry(key).or_default().insert(place, until);
    }

    pub(super) fn remove(&mut self, key: &Key, place: SocketAddr) {
        if let Some(places) = self.servers.get_mut(key) {
            places.remove(&place);
            if places.is_empty() {
                self.servers.remove(key);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.servers.clear();
    }
}
