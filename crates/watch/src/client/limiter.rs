//! The rate limit: one token bucket for all requests of the process.
//!
//! The bucket itself is pure. It behaves like client-go's (`util/flowcontrol`): it starts full, every request takes
//! a token, and a request that finds none waits for its token, first come, first served. In contrast to client-go, the
//! pages of one list take a token together ([`Continued`]).

#[cfg(test)]
mod tests;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::time;

/// client-go's defaults (`rest.DefaultQPS`, `rest.DefaultBurst`).
pub(super) const DEFAULT_QPS: f32 = 5.0;
pub(super) const DEFAULT_BURST: i32 = 10;

/// A wait of at least this long is logged, as in client-go.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// Request extension: the request goes on with what an earlier one has begun, and takes no token. Otherwise each page would
/// wait for a token, and a list of many pages would take seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Continued;

/// Why the two numbers form no valid limit.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "a limit of {qps} requests a second with a burst of {burst}: no request could ever be sent; set the burst to at least 1, or qps to a negative number for no limit"
)]
pub struct LimitError {
    qps: f32,
    burst: i32,
}

/// The number of tokens at a time. A negative number means that requests wait.
#[derive(Debug)]
struct Bucket {
    rate: f64,
    burst: f64,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// Creates a bucket. Returns `None` for no limit, which a negative `qps` selects. A `qps` of 0 selects
    /// client-go's default. client-go then gives each API group its own bucket; here there is always one.
    fn new(qps: f32, burst: i32, now: Instant) -> Result<Option<Self>, LimitError> {
        if qps < 0.0 || qps == f32::INFINITY {
            return Ok(None);
        }
        let (rate, size) = if qps == 0.0 {
            (DEFAULT_QPS, if burst == 0 { DEFAULT_BURST } else { burst })
        } else {
            (qps, burst)
        };
        if size <= 0 || rate.is_nan() {
            return Err(LimitError { qps, burst });
        }
        let burst = f64::from(size);
        Ok(Some(Self { rate: rate.into(), burst, tokens: burst, at: now }))
    }

    /// Takes a token. Returns the wait before it may be used.
    fn take(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.rate).min(self.burst) - 1.0;
        self.at = now;
        let debt = (-self.tokens).max(0.0);
        Duration::try_from_secs_f64(debt / self.rate).unwrap_or(Duration::MAX)
    }

    /// Returns a token that will not be used.
    fn give_back(&mut self) {
        self.tokens = (self.tokens + 1.0).min(self.burst);
    }
}

/// The bucket, shared by all requests.
#[derive(Debug)]
pub(super) struct Limiter(Option<Mutex<Bucket>>);

impl Limiter {
    pub(super) fn new(qps: f32, burst: i32) -> Result<Self, LimitError> {
        Ok(Self(Bucket::new(qps, burst, now())?.map(Mutex::new)))
    }

    /// Waits for a token and returns how long that took. If the future is dropped before, the token goes back.
    pub(super) async fn turn(&self) -> Duration {
        let Some(bucket) = &self.0 else { return Duration::ZERO };
        let wait = bucket.lock().unwrap_or_else(PoisonError::into_inner).take(now());
        if wait.is_zero() {
            return wait;
        }
        if wait >= LONG_WAIT {
            tracing::info!(?wait, "request waits for its turn: clientConnection.qps and burst limit them");
        }
        let taken = Taken(Some(bucket));
        time::sleep(wait).await;
        taken.used();
        wait
    }

    /// Returns the token of a request that was not sent.
    pub(super) fn give_back(&self) {
        if let Some(bucket) = &self.0 {
            bucket.lock().unwrap_or_else(PoisonError::into_inner).give_back();
        }
    }
}

/// A token that is returned on drop unless it was used.
struct Taken<'a>(Option<&'a Mutex<Bucket>>);

impl Taken<'_> {
    fn used(mut self) {
        self.0 = None;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(bucket) = self.0 {
            bucket.lock().unwrap_or_else(PoisonError::into_inner).give_back();
        }
    }
}

/// Returns the time of tokio's clock, which tests can pause.
fn now() -> Instant {
    time::Instant::now().into_std()
}
