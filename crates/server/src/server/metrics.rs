//! Metrics in Prometheus' text format 0.0.4, and the registry for the metrics of other modules.

use std::fmt::{self, Write as _};
use std::sync::{Arc, PoisonError, RwLock};

/// A source of metrics.
pub trait Collect: Send + Sync {
    /// Appends the metrics to the page.
    fn collect(&self, page: &mut Page);
}

/// The sources shown at `/metrics`. Clones share them.
#[derive(Clone, Default)]
pub struct Metrics(Arc<RwLock<Vec<Arc<dyn Collect>>>>);

/// Kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// Observations counted by upper bound.
    Histogram,
}

/// The text of a page. The samples of a metric must follow its [`Page::family`].
#[derive(Debug, Default)]
pub struct Page(String);

/// Observations counted by upper bound.
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
}

impl Metrics {
    /// Adds a source after the existing ones.
    pub fn register(&self, source: Arc<dyn Collect>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(source);
    }

    /// Returns the text of all metrics.
    pub fn render(&self) -> String {
        let mut page = Page::default();
        self.collect(&mut page);
        page.0
    }
}

impl Collect for Metrics {
    fn collect(&self, page: &mut Page) {
        let sources = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        for source in sources {
            source.collect(page);
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Page {
    /// Starts a metric.
    pub fn family(&mut self, name: &str, kind: MetricKind, help: &str) {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// Adds one sample of a metric.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.line(format_args!("{}{label}=\"{}\"", if index == 0 { '{' } else { ',' }, escaped(text)));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        self.line(format_args!("{close} {value}\n"));
    }

    /// Appends metrics that are already in the text format.
    pub fn append(&mut self, text: &str) {
        self.0.push_str(text);
    }

    /// Adds a metric with a single sample.
    pub fn single(&mut self, name: &str, kind: MetricKind, help: &str, value: f64) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// Adds the samples of a histogram.
    #[expect(clippy::cast_precision_loss, reason = "every number of the format is one")]
    pub fn histogram(&mut self, name: &str, labels: &[(&str, &str)], histogram: &Histogram) {
        let mut count: u64 = 0;
        let bounds = histogram.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, bucket) in bounds.zip(&histogram.buckets) {
            count = count.saturating_add(*bucket);
            let labels: Vec<(&str, &str)> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.sample(&format!("{name}_bucket"), &labels, count as f64);
        }
        self.sample(&format!("{name}_sum"), labels, histogram.sum);
        self.sample(&format!("{name}_count"), labels, count as f64);
    }

    fn line(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.0.write_fmt(text);
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Two;

    impl Collect for Two {
        fn collect(&self, page: &mut Page) {
            page.family("a_total", MetricKind::Counter, "What it counts.");
            page.sample("a_total", &[("x", "1"), ("y", "q\"\\\n")], 3.0);
            page.single("b", MetricKind::Gauge, "What it is.", 0.5);
            page.family("c", MetricKind::Histogram, "How long.");
            let mut histogram = Histogram::new(&[0.5, 1.0]);
            for value in [0.25, 0.5, 0.75, 2.0] {
                histogram.observe(value);
            }
            page.histogram("c", &[("x", "1")], &histogram);
        }
    }

    #[test]
    fn the_text() {
        let metrics = Metrics::default();
        metrics.clone().register(Arc::new(Two));
        let expected = "# HELP a_total What it counts.\n# TYPE a_total counter\na_total{x=\"1\",y=\"q\\\"\\\\\\n\"} 3\n\
                        # HELP b What it is.\n# TYPE b gauge\nb 0.5\n\
                        # HELP c How long.\n# TYPE c histogram\nc_bucket{x=\"1\",le=\"0.5\"} 2\n\
                        c_bucket{x=\"1\",le=\"1\"} 3\nc_bucket{x=\"1\",le=\"+Inf\"} 4\n\
                        c_sum{x=\"1\"} 3.5\nc_count{x=\"1\"} 4\n";
        assert_eq!(metrics.render(), expected);
    }
}
