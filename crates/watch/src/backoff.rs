//! How long to wait before asking a troubled API server again.

use std::time::{Duration, Instant};

/// Limits of the growing delay. The defaults are those of client-go's reflector, so that a fleet which
/// changes from kube-proxy to Portolan puts the same load on an API server in trouble. One thing is different:
/// where nobody listens there is nobody to protect, and after a minute without an API server a node should not
/// stay away for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffLimits {
    /// Base delay before the first retry.
    pub initial: Duration,
    /// The base delay doubles up to this much; jitter may double it once more.
    pub maximum: Duration,
    /// The same while no connection can be made at all.
    pub unreachable_maximum: Duration,
    /// After this long without a failure the base delay starts again at `initial`.
    pub reset_after: Duration,
}

impl Default for BackoffLimits {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(800),
            maximum: Duration::from_secs(30),
            unreachable_maximum: Duration::from_secs(5),
            reset_after: Duration::from_secs(120),
        }
    }
}

/// The delay's state: pure, the clock and the random number are arguments.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    limits: BackoffLimits,
    next: Duration,
    next_unreachable: Duration,
    healthy_since: Option<Instant>,
}

impl Backoff {
    pub(crate) fn new(limits: BackoffLimits) -> Self {
        let next = limits.initial;
        Self { limits, next, next_unreachable: next, healthy_since: None }
    }

    /// The server answered as it should.
    pub(crate) fn healthy(&mut self, now: Instant) {
        self.next_unreachable = self.limits.initial;
        self.healthy_since.get_or_insert(now);
    }

    /// Something failed: the delay is base x (1 + `jitter`), where `jitter` is in `0.0..1.0`. Doubles the
    /// base for the time after.
    pub(crate) fn failed(&mut self, now: Instant, jitter: f64) -> Duration {
        self.health_ends(now);
        let base = self.next;
        self.next = base.saturating_mul(2).min(self.limits.maximum);
        jittered(base, jitter)
    }

    /// As [`Self::failed`], where no connection could be made. Says nothing about how the server is once it is
    /// back, so that the first failure after that is not punished for it.
    pub(crate) fn unreachable(&mut self, now: Instant, jitter: f64) -> Duration {
        self.health_ends(now);
        let base = self.next_unreachable;
        self.next_unreachable = base.saturating_mul(2).min(self.limits.unreachable_maximum);
        jittered(base, jitter)
    }

    fn health_ends(&mut self, now: Instant) {
        let healthy = self.healthy_since.take().map(|since| now.saturating_duration_since(since));
        if healthy.is_some_and(|span| span >= self.limits.reset_after) {
            self.next = self.limits.initial;
        }
    }
}

fn jittered(base: Duration, jitter: f64) -> Duration {
    base.mul_f64(1.0 + jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_the_maximum() {
        let now = Instant::now();
        let mut backoff = Backoff::new(BackoffLimits::default());
        let delays: Vec<u128> = (0..8).map(|_| backoff.failed(now, 0.0).as_millis()).collect();
        assert_eq!(delays, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
    }

    #[test]
    fn jitter_at_most_doubles() {
        let mut backoff = Backoff::new(BackoffLimits::default());
        assert_eq!(backoff.failed(Instant::now(), 1.0), Duration::from_millis(1600));
        assert_eq!(backoff.failed(Instant::now(), 7.0), Duration::from_millis(3200));
    }

    #[test]
    fn two_healthy_minutes_start_over() {
        let start = Instant::now();
        let mut backoff = Backoff::new(BackoffLimits::default());
        backoff.failed(start, 0.0);
        backoff.healthy(start);
        assert_eq!(backoff.failed(start + Duration::from_secs(119), 0.0), Duration::from_millis(1600));
        backoff.healthy(start);
        backoff.healthy(start + Duration::from_secs(100));
        assert_eq!(backoff.failed(start + Duration::from_secs(120), 0.0), Duration::from_millis(800));
    }

    #[test]
    fn time_spent_failing_is_not_health() {
        let start = Instant::now();
        let mut backoff = Backoff::new(BackoffLimits::default());
        backoff.failed(start, 0.0);
        assert_eq!(backoff.failed(start + Duration::from_secs(500), 0.0), Duration::from_millis(1600));
    }

    #[test]
    fn where_nobody_listens_the_wait_stays_short_and_is_forgotten() {
        let now = Instant::now();
        let mut backoff = Backoff::new(BackoffLimits::default());
        let delays: Vec<u128> = (0..6).map(|_| backoff.unreachable(now, 0.0).as_millis()).collect();
        assert_eq!(delays, [800, 1600, 3200, 5000, 5000, 5000]);
        assert_eq!(
            backoff.failed(now, 0.0),
            Duration::from_millis(800),
            "a server that is back is no ill one"
        );
        assert_eq!(backoff.failed(now, 0.0), Duration::from_millis(1600));
        backoff.healthy(now);
        assert_eq!(backoff.unreachable(now, 0.0), Duration::from_millis(800));
        assert_eq!(backoff.failed(now, 0.0), Duration::from_millis(3200), "being away is no cure");
    }
}
