//! Observations counted by upper bound.

/// Counts of observations up to fixed bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// Counts per bucket. One more than there are bounds, for larger values.
    buckets: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// Creates an empty histogram. The bounds must increase.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, buckets: vec![0; bounds.len().saturating_add(1)], sum: 0.0 }
    }

    /// Adds an observation.
    pub fn observe(&mut self, value: f64) {
        if let Some(bucket) = self.buckets.get_mut(self.bounds.partition_point(|bound| *bound < value)) {
            *bucket = bucket.saturating_add(1);
        }
        self.sum += value;
    }

    /// Returns the upper bounds, without infinity.
    pub fn bounds(&self) -> &'static [f64] {
        self.bounds
    }

    /// Returns the number of observations in each bucket alone. The last one is above every bound.
    pub fn counts(&self) -> &[u64] {
        &self.buckets
    }

    /// Returns the sum of all observations.
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let mut histogram = Histogram::new(&[0.5, 1.0]);
        for value in [0.25, 0.5, 0.75, 2.0] {
            histogram.observe(value);
        }
        assert_eq!((histogram.counts(), histogram.sum().to_bits()), (&[2, 1, 1][..], 3.5_f64.to_bits()));
    }
}
