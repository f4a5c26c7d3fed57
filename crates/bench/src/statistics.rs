//! Order statistics of durations.

use std::time::Duration;

/// Durations in ascending order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample(Vec<Duration>);

impl Sample {
    /// Returns the value that half of the sample does not exceed.
    pub(crate) fn median(&self) -> Duration {
        self.percentile(50)
    }

    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the values in ascending order.
    pub(crate) fn values(&self) -> impl Iterator<Item = Duration> {
        self.0.iter().copied()
    }

    /// Returns the smallest value that this many hundredths of the sample do not exceed (nearest rank).
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let rank = self.0.len().saturating_mul(percent).div_ceil(100).saturating_sub(1);
        self.0.get(rank).copied().unwrap_or_default()
    }
}

impl FromIterator<Duration> for Sample {
    fn from_iter<I: IntoIterator<Item = Duration>>(durations: I) -> Self {
        let mut sorted: Vec<Duration> = durations.into_iter().collect();
        sorted.sort_unstable();
        Self(sorted)
    }
}

/// Returns `value` divided by `base`.
pub(crate) fn ratio(value: Duration, base: Duration) -> f64 {
    value.as_secs_f64() / base.as_secs_f64()
}

/// Returns a duration in milliseconds.
pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Returns a number of bytes in MiB.
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    // Memory and response sizes are far below 2^52 bytes.
    u32::try_from(bytes >> 10).map_or(f64::MAX, f64::from) / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let sample: Sample = (1..=50).rev().map(Duration::from_millis).collect();
        assert_eq!(sample.median(), Duration::from_millis(25));
        assert_eq!(sample.percentile(99), Duration::from_millis(50));
        assert_eq!(sample.percentile(98), Duration::from_millis(49));
        assert_eq!(Sample::default().median(), Duration::ZERO);
    }
}
