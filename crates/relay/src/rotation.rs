//! Round robin over the backends of one set, and back-off of backends that failed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long a backend is set aside after its first failure. The time doubles each time that it fails again after it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest time for which a backend is set aside.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The order of turns. Backends that stay keep their places. A new one has its turn after all others have had theirs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rotation {
    order: Vec<SocketAddr>,
    next: usize,
}

impl Rotation {
    /// Replaces the set of backends.
    pub fn update(&mut self, backends: impl Iterator<Item = SocketAddr> + Clone) {
        let still: std::collections::HashSet<SocketAddr> = backends.clone().collect();
        let served = self.order.iter().take(self.next).filter(|backend| still.contains(backend)).count();
        self.order.retain(|backend| still.contains(backend));
        let known: std::collections::HashSet<SocketAddr> = self.order.iter().copied().collect();
        let fresh: Vec<SocketAddr> = backends.filter(|backend| !known.contains(backend)).collect();
        let count = fresh.len();
        self.order.splice(served..served, fresh);
        self.next = served.saturating_add(count);
        self.wrap();
    }

    /// Returns the number of backends.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns true if there are no backends.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the next backend for which `out` is false: the next one that is not set aside or, if all are, the one
    /// whose back-off ends first.
    pub fn choose(
        &mut self,
        health: &mut Health,
        now: Instant,
        out: impl Fn(SocketAddr) -> bool,
    ) -> Option<SocketAddr> {
        let (before, after) = self.order.split_at_checked(self.next).unwrap_or((&self.order, &[]));
        let turn = after.iter().chain(before).copied().enumerate().filter(|&(_, backend)| !out(backend));
        let sound = turn.clone().find(|&(_, backend)| !health.is_aside(backend, now));
        let (steps, chosen) = match sound {
            Some(sound) => sound,
            None => turn.min_by_key(|&(_, backend)| health.pause(backend, now))?,
        };
        self.next = self.next.saturating_add(steps).saturating_add(1).checked_rem(self.order.len())?;
        health.chosen(chosen, now);
        Some(chosen)
    }

    fn wrap(&mut self) {
        if self.next >= self.order.len() {
            self.next = 0;
        }
    }
}

/// The backends that failed at their last attempt.
#[derive(Debug, Clone, Default)]
pub struct Health {
    failing: HashMap<SocketAddr, Failing>,
}

#[derive(Debug, Clone, Copy)]
struct Failing {
    /// The number of failures in a row.
    failures: u32,
    /// When the last one of these was recorded.
    since: Instant,
    /// Until when no attempt is made, unless no other backend is left.
    until: Instant,
}

impl Health {
    /// Records the failure of an attempt that began at `began`, and sets the backend aside.
    ///
    /// Attempts that began before the end of the last failure's pause change nothing. They were under way when that
    /// failure was recorded, or were made because no other backend was left. So many of them say no more than one. The
    /// first attempt after the pause does say more: the backend is still dead after that time.
    pub fn failed(&mut self, backend: SocketAddr, began: Instant, now: Instant) {
        let new = || Failing { failures: 0, since: now, until: now };
        let failing = self.failing.entry(backend).or_insert_with(new);
        if failing.failures > 0 && began < failing.since + failing.pause() {
            return;
        }
        failing.failures = failing.failures.saturating_add(1);
        failing.since = now;
        failing.until = now + failing.pause();
    }

    /// Records that a backend answered.
    pub fn succeeded(&mut self, backend: SocketAddr) {
        if !self.is_spotless() {
            self.failing.remove(&backend);
        }
    }

    /// Records that a connection that began at `began` has lasted for some time, although nothing came from the backend.
    /// This is no success if another attempt has failed since then: the backend may have died meanwhile. Returns true if the
    /// backend has not failed now.
    pub fn lasted(&mut self, backend: SocketAddr, began: Instant) -> bool {
        if self.failing.get(&backend).is_some_and(|failing| failing.since <= began) {
            self.failing.remove(&backend);
        }
        !self.failing.contains_key(&backend)
    }

    /// Records that the attempt that began at `began` has no result: its client left, or this host lacked something. If this
    /// attempt was to show whether the backend works again, the next one may show it.
    pub fn undecided(&mut self, backend: SocketAddr, began: Instant, now: Instant) {
        if let Some(failing) = self.failing.get_mut(&backend)
            && began >= failing.since + failing.pause()
        {
            failing.until = failing.until.min(now);
        }
    }

    /// Returns true if a backend is set aside.
    pub fn is_aside(&self, backend: SocketAddr, now: Instant) -> bool {
        self.pause(backend, now) > Duration::ZERO
    }

    /// Removes entries of former backends.
    pub fn retain(&mut self, is_backend: impl Fn(SocketAddr) -> bool) {
        self.failing.retain(|&backend, _| is_backend(backend));
    }

    /// Returns the number of backends that failed at their last attempt.
    pub fn failing(&self) -> usize {
        self.failing.len()
    }

    fn is_spotless(&self) -> bool {
        self.failing.is_empty()
    }

    fn pause(&self, backend: SocketAddr, now: Instant) -> Duration {
        self.failing
            .get(&backend)
            .map_or(Duration::ZERO, |failing| failing.until.saturating_duration_since(now))
    }

    /// Sets a backend that is tried again aside, so that no other connection tries it until the result is known. Does
    /// nothing for a backend that has not failed.
    pub fn chosen(&mut self, backend: SocketAddr, now: Instant) {
        if let Some(failing) = self.failing.get_mut(&backend) {
            failing.until = failing.until.max(now + failing.pause());
        }
    }
}

impl Failing {
    fn pause(self) -> Duration {
        let doublings = self.failures.saturating_sub(1);
        FIRST_PAUSE.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests;
