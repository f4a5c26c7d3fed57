//! The backends that one connection tries, one after the other.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::rotation::{Health, Rotation};

/// Why an attempt came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The backend said no: refused, reset, unreachable.
    Refused,
    /// The backend said nothing in time.
    TimedOut,
}

/// What one connection has tried. Takes no memory before the first failure.
#[derive(Debug, Clone, Default)]
pub struct Attempts {
    /// Said no; not asked again.
    refused: HashSet<SocketAddr>,
    /// Said nothing in this round; asked again, with more patience, when all others have failed.
    silent: HashSet<SocketAddr>,
    count: usize,
}

impl Attempts {
    /// Whom to try next, and for how long; `None` when every backend has failed. Those that were silent are tried again
    /// until the last of the time limits has been used: what takes longest may be the way there.
    pub fn next(
        &mut self,
        rotation: &mut Rotation,
        health: &mut Health,
        limits: &[Duration],
        now: Instant,
    ) -> Option<(SocketAddr, Duration)> {
        let chosen = rotation.choose(health, now, |backend| self.has_tried(backend)).or_else(|| {
            if self.silent.is_empty() || self.count >= limits.len() {
                return None;
            }
            self.silent.clear();
            rotation.choose(health, now, |backend| self.has_tried(backend))
        })?;
        Some((chosen, self.limit(limits)))
    }

    /// The time limit of the attempt that comes next.
    pub fn limit(&self, limits: &[Duration]) -> Duration {
        limits.get(self.count).or(limits.last()).copied().unwrap_or(Duration::MAX)
    }

    /// Whether a backend is out, for now or for good.
    pub fn has_tried(&self, backend: SocketAddr) -> bool {
        self.refused.contains(&backend) || self.silent.contains(&backend)
    }

    /// An attempt failed.
    pub fn failed(&mut self, backend: SocketAddr, failure: Failure) {
        self.count = self.count.saturating_add(1);
        let tried = match failure {
            Failure::Refused => &mut self.refused,
            Failure::TimedOut => &mut self.silent,
        };
        tried.insert(backend);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LIMITS: [Duration; 4] = [
        Duration::from_millis(250),
        Duration::from_millis(500),
        Duration::from_secs(1),
        Duration::from_secs(2),
    ];

    /// Tries until there is nobody left; answers who was tried, with the limits in milliseconds.
    fn all(backends: u16, outcome: impl Fn(u16) -> Failure) -> Vec<(u16, u128)> {
        let (mut rotation, mut health, now) = (Rotation::default(), Health::default(), Instant::now());
        rotation.update((1..=backends).map(|n| (Ipv4Addr::LOCALHOST, n).into()));
        let mut attempts = Attempts::default();
        let mut tried = Vec::new();
        while let Some((backend, limit)) = attempts.next(&mut rotation, &mut health, &LIMITS, now) {
            tried.push((backend.port(), limit.as_millis()));
            attempts.failed(backend, outcome(backend.port()));
            health.failed(backend, now);
        }
        tried
    }

    #[test]
    fn every_backend_is_tried_once_with_growing_patience() {
        let tried = all(6, |_| Failure::TimedOut);
        assert_eq!(tried, [(1, 250), (2, 500), (3, 1000), (4, 2000), (5, 2000), (6, 2000)]);
    }

    #[test]
    fn who_refuses_is_not_asked_again() {
        assert_eq!(all(3, |_| Failure::Refused), [(1, 250), (2, 500), (3, 1000)]);
    }

    #[test]
    fn who_is_silent_is_asked_until_patience_ends() {
        assert_eq!(all(1, |_| Failure::TimedOut), [(1, 250), (1, 500), (1, 1000), (1, 2000)]);
        let mixed = all(2, |port| if port == 1 { Failure::Refused } else { Failure::TimedOut });
        assert_eq!(mixed, [(1, 250), (2, 500), (2, 1000), (2, 2000)]);
    }

    #[test]
    fn no_backends_no_attempt() {
        assert_eq!(all(0, |_| Failure::Refused), []);
    }
}
