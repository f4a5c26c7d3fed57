//! The backends that one connection tries, one after the other.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::rotation::{Health, Rotation};

/// How an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The backend refused or reset the connection, or is unreachable.
    Refused,
    /// The backend did not answer within the time limit.
    TimedOut,
    /// The backend was not tried, because no source port of this host is free for it.
    NoPort,
}

/// The attempts of one connection. Allocates nothing before the first failure.
#[derive(Debug, Clone, Default)]
pub struct Attempts {
    /// Backends that refused, or for which no port was free. They are not tried again.
    refused: HashSet<SocketAddr>,
    /// Backends that did not answer in this round. They are tried again, with a longer limit, when all others have
    /// failed.
    silent: HashSet<SocketAddr>,
    count: usize,
    /// Backends for which no port was free.
    skipped: usize,
}

impl Attempts {
    /// Returns the backend to try next, and the time limit; `None` if every backend has failed. Backends that did not
    /// answer are tried again until the last time limit has been used: the delay may be on the way there.
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

    /// Returns the time limit of the next attempt.
    pub fn limit(&self, limits: &[Duration]) -> Duration {
        limits.get(self.count).or(limits.last()).copied().unwrap_or(Duration::MAX)
    }

    /// Returns true if a backend must not be tried, in this round or at all.
    pub fn has_tried(&self, backend: SocketAddr) -> bool {
        self.refused.contains(&backend) || self.silent.contains(&backend)
    }

    /// Returns true if no source port was free for any backend.
    pub const fn lacked_only_ports(&self) -> bool {
        self.skipped > 0 && self.count == 0
    }

    /// Records that an attempt failed.
    pub fn failed(&mut self, backend: SocketAddr, failure: Failure) {
        let (tried, count) = match failure {
            Failure::Refused => (&mut self.refused, &mut self.count),
            Failure::TimedOut => (&mut self.silent, &mut self.count),
            // Not an attempt: the next one has the same time limit.
            Failure::NoPort => (&mut self.refused, &mut self.skipped),
        };
        tried.insert(backend);
        *count = count.saturating_add(1);
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

    /// Tries until no backend is left. Returns the backends in order, with the limits in milliseconds.
    fn all(backends: u16, outcome: impl Fn(u16) -> Failure) -> Vec<(u16, u128)> {
        let (mut rotation, mut health, now) = (Rotation::default(), Health::default(), Instant::now());
        rotation.update((1..=backends).map(|n| (Ipv4Addr::LOCALHOST, n).into()));
        let mut attempts = Attempts::default();
        let mut tried = Vec::new();
        while let Some((backend, limit)) = attempts.next(&mut rotation, &mut health, &LIMITS, now) {
            tried.push((backend.port(), limit.as_millis()));
            attempts.failed(backend, outcome(backend.port()));
            health.failed(backend, now, now);
        }
        tried
    }

    #[test]
    fn every_backend_is_tried_once_with_growing_time_limits() {
        let tried = all(6, |_| Failure::TimedOut);
        assert_eq!(tried, [(1, 250), (2, 500), (3, 1000), (4, 2000), (5, 2000), (6, 2000)]);
    }

    #[test]
    fn a_backend_that_refuses_is_not_tried_again() {
        assert_eq!(all(3, |_| Failure::Refused), [(1, 250), (2, 500), (3, 1000)]);
    }

    #[test]
    fn a_silent_backend_is_tried_until_the_last_time_limit() {
        assert_eq!(all(1, |_| Failure::TimedOut), [(1, 250), (1, 500), (1, 1000), (1, 2000)]);
        let mixed = all(2, |port| if port == 1 { Failure::Refused } else { Failure::TimedOut });
        assert_eq!(mixed, [(1, 250), (2, 500), (2, 1000), (2, 2000)]);
    }

    #[test]
    fn a_backend_without_a_free_port_costs_no_time_limit() {
        let of = |port| if port < 3 { Failure::NoPort } else { Failure::TimedOut };
        assert_eq!(all(3, of), [(1, 250), (2, 250), (3, 250), (3, 500), (3, 1000), (3, 2000)]);
        let mut attempts = Attempts::default();
        assert!(!attempts.lacked_only_ports());
        attempts.failed((Ipv4Addr::LOCALHOST, 1).into(), Failure::NoPort);
        assert!(attempts.lacked_only_ports());
        attempts.failed((Ipv4Addr::LOCALHOST, 2).into(), Failure::Refused);
        assert!(!attempts.lacked_only_ports());
    }

    #[test]
    fn without_backends_there_is_no_attempt() {
        assert_eq!(all(0, |_| Failure::Refused), []);
    }
}
