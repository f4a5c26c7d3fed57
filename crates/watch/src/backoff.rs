//! How long to wait before the next request to the API server. Pure: the random number is an argument.
//!
//! A wait protects the server. A server that reports trouble is asked with client-go's back-off. A server that is
//! absent needs no protection. After any other failure the server is asked every few seconds. A watch that worked
//! is not a failure: it is reopened at once.

use std::time::Duration;

use crate::status::LONGEST_RETRY_AFTER;

/// Limits of the delays. Each value is a base: the delay is base x (1 + jitter), with a random jitter from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffLimits {
    /// Base after the first 429 or 5xx. This and `maximum` are the values of client-go's reflector, so that a fleet
    /// that moves from kube-proxy to Portolan puts the same load on an API server in trouble.
    pub initial: Duration,
    /// Maximum to which that base doubles with each further failure.
    pub maximum: Duration,
    /// Base after the first failure of any other kind.
    pub other_initial: Duration,
    /// Maximum to which it doubles. With jitter the server is asked at least every 5 s.
    pub other_maximum: Duration,
    /// Base if nothing listens or no route leads to the server. It does not grow: a refused connection costs the
    /// server nothing, and a server that returns is found within a second.
    pub refused: Duration,
    /// Maximum base if a load balancer answers for an absent server. The first base is `refused`. With jitter a
    /// request is sent at least every 1.5 s, so that a server that returns is followed within 2 s.
    pub absent_maximum: Duration,
    /// Before a watch that worked is reopened, a random part of this time passes, so that the watches of many nodes
    /// do not reconnect together.
    pub reopen: Duration,
    /// A watch that worked for this long resets all back-offs.
    pub reset_after: Duration,
}

impl Default for BackoffLimits {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(800),
            maximum: Duration::from_secs(30),
            other_initial: Duration::from_millis(500),
            other_maximum: Duration::from_millis(2500),
            refused: Duration::from_millis(500),
            absent_maximum: Duration::from_millis(750),
            reopen: Duration::from_millis(250),
            reset_after: Duration::from_secs(3),
        }
    }
}

/// What the next request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// No wait.
    None,
    /// Only a random part of `BackoffLimits::reopen`, so that many nodes do not ask together.
    Reopen,
    /// The back-off for a server in trouble, with its `Retry-After` if it sent one.
    Server(Option<Duration>),
    /// Nothing listens, or no route leads to the server.
    Refused,
    /// A load balancer answers, or the connection breaks before there is an answer.
    Absent,
    /// Any other failure.
    Other,
    /// A base that the caller gives.
    Own(Duration),
}

/// Maximum number of answers in a row whose `Retry-After` replaces the back-off. After that the delay grows anyway,
/// as in client-go (`rest/with_retry.go`, `maxRetries`).
const OBEYED: u8 = 10;

/// The state of the delays.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    limits: BackoffLimits,
    server: Ladder,
    absent: Ladder,
    other: Ladder,
    obeyed: u8,
}

impl Backoff {
    pub(crate) fn new(limits: BackoffLimits) -> Self {
        let ladder = |initial, maximum| Ladder { next: initial, maximum };
        Self {
            limits,
            server: ladder(limits.initial, limits.maximum),
            absent: ladder(limits.refused, limits.absent_maximum),
            other: ladder(limits.other_initial, limits.other_maximum),
            obeyed: 0,
        }
    }

    /// Records that a watch worked for this long. Returns true if this reset the back-offs.
    pub(crate) fn worked(&mut self, lasted: Duration) -> bool {
        let forgotten = lasted >= self.limits.reset_after;
        if forgotten {
            *self = Self::new(self.limits);
        }
        forgotten
    }

    /// Returns the delay; `jitter` is in `0.0..1.0`. Advances the back-off that it uses.
    pub(crate) fn delay(&mut self, wait: Wait, jitter: f64) -> Duration {
        let jitter = jitter.clamp(0.0, 1.0);
        match wait {
            Wait::None => Duration::ZERO,
            Wait::Reopen => self.limits.reopen.mul_f64(jitter),
            Wait::Server(Some(asked)) if self.obeyed < OBEYED => {
                self.obeyed = self.obeyed.saturating_add(1);
                // Jitter does not raise the delay above the maximum that is obeyed.
                asked.mul_f64(1.0 + jitter / 2.0).min(LONGEST_RETRY_AFTER).max(asked)
            }
            Wait::Server(asked) => jittered(self.server.step(), jitter).max(asked.unwrap_or_default()),
            Wait::Refused => jittered(self.limits.refused, jitter),
            Wait::Absent => jittered(self.absent.step(), jitter),
            Wait::Other => jittered(self.other.step(), jitter),
            Wait::Own(base) => jittered(base, jitter),
        }
    }
}

/// A base that doubles with each use.
#[derive(Debug, Clone, Copy)]
struct Ladder {
    next: Duration,
    maximum: Duration,
}

impl Ladder {
    fn step(&mut self) -> Duration {
        let base = self.next;
        self.next = base.saturating_mul(2).min(self.maximum);
        base
    }
}

fn jittered(base: Duration, jitter: f64) -> Duration {
    base.mul_f64(1.0 + jitter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(backoff: &mut Backoff, wait: Wait, jitter: f64, times: usize) -> Vec<u128> {
        (0..times).map(|_| backoff.delay(wait, jitter).as_millis()).collect()
    }

    fn backoff() -> Backoff {
        Backoff::new(BackoffLimits::default())
    }

    #[test]
    fn a_server_in_trouble_is_asked_as_client_go_would() {
        let least = delays(&mut backoff(), Wait::Server(None), 0.0, 8);
        assert_eq!(least, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        let most = delays(&mut backoff(), Wait::Server(None), 1.0, 7);
        assert_eq!(most, [1600, 3200, 6400, 12_800, 25_600, 51_200, 60_000]);
    }

    #[test]
    fn nothing_else_waits_for_more_than_five_seconds() {
        assert_eq!(delays(&mut backoff(), Wait::Other, 0.0, 5), [500, 1000, 2000, 2500, 2500]);
        assert_eq!(delays(&mut backoff(), Wait::Other, 7.0, 5), [1000, 2000, 4000, 5000, 5000]);
    }

    #[test]
    fn a_server_that_is_not_there_is_found_soon_however_long_it_was_away() {
        assert_eq!(delays(&mut backoff(), Wait::Refused, 1.0, 3), [1000; 3]);
        assert_eq!(
            delays(&mut backoff(), Wait::Refused, 0.0, 3),
            [500; 3],
            "and is not asked in a tight loop"
        );
        assert_eq!(delays(&mut backoff(), Wait::Absent, 1.0, 4), [1000, 1500, 1500, 1500]);
    }

    #[test]
    fn a_time_that_the_server_names_is_obeyed_ten_times_and_is_the_least_after_that() {
        let asked = Wait::Server(Some(Duration::from_secs(1)));
        let mut backoff = backoff();
        assert_eq!(delays(&mut backoff, asked, 0.0, 10), [1000; 10]);
        assert_eq!(delays(&mut backoff, asked, 0.0, 3), [1000, 1600, 3200]);
        assert_eq!(delays(&mut super::Backoff::new(BackoffLimits::default()), asked, 1.0, 1), [1500]);
    }

    #[test]
    fn no_time_that_a_server_names_becomes_more_than_half_a_minute() {
        for (asked, most) in [(30, 30_000), (25, 30_000), (20, 30_000), (19, 28_500)] {
            let asked = Wait::Server(Some(Duration::from_secs(asked)));
            assert_eq!(delays(&mut backoff(), asked, 1.0, 1), [most]);
        }
    }

    #[test]
    fn a_watch_that_worked_for_some_seconds_makes_all_delays_start_over() {
        let mut backoff = backoff();
        let next = |backoff: &mut Backoff| {
            [Wait::Server(None), Wait::Absent, Wait::Other].map(|wait| backoff.delay(wait, 0.0).as_millis())
        };
        assert_eq!(next(&mut backoff), [800, 500, 500]);
        assert!(!backoff.worked(Duration::from_millis(2999)));
        assert_eq!(next(&mut backoff), [1600, 750, 1000]);
        assert!(backoff.worked(Duration::from_secs(3)));
        assert_eq!(next(&mut backoff), [800, 500, 500]);
    }

    #[test]
    fn a_watch_is_opened_again_within_a_quarter_of_a_second() {
        assert_eq!(backoff().delay(Wait::Reopen, 0.0), Duration::ZERO);
        assert_eq!(backoff().delay(Wait::Reopen, 1.0), Duration::from_millis(250));
    }
}
