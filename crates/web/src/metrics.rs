//! Metrics in Prometheus' text format 0.0.4: the text of a page ([`Page`]), and the sources of a page ([`Sources`]).

use std::fmt::{self, Write as _};
use std::sync::{Arc, PoisonError, RwLock};

/// The media type of a page.
pub const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A source of metrics.
pub trait Collect: Send + Sync {
    /// Appends the metrics to the page.
    fn collect(&self, page: &mut Page);
}

/// The sources of a page, in their order on it. Clones share them.
#[derive(Clone, Default)]
pub struct Sources(Arc<RwLock<Vec<Arc<dyn Collect>>>>);

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

/// The text of a page.
#[derive(Debug, Default)]
pub struct Page(String);

impl Sources {
    /// Adds a source after the existing ones.
    pub fn register(&self, source: Arc<dyn Collect>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(source);
    }

    /// Returns the text of all metrics.
    pub fn render(&self) -> String {
        let mut page = Page::default();
        self.collect(&mut page);
        page.into_text()
    }
}

impl Collect for Sources {
    fn collect(&self, page: &mut Page) {
        let sources = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        for source in sources {
            source.collect(page);
        }
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Sources").finish_non_exhaustive()
    }
}

impl MetricKind {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

impl Page {
    /// Creates an empty page with room for this many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self(String::with_capacity(bytes))
    }

    /// Returns the text of the page.
    pub fn into_text(self) -> String {
        self.0
    }

    /// Starts a metric. Its samples must follow.
    pub fn family(&mut self, name: &str, kind: MetricKind, help: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.name()));
    }

    /// Adds a metric with the samples that `samples` writes. Adds nothing if it writes none.
    pub fn family_with(&mut self, name: &str, kind: MetricKind, help: &str, samples: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.family(name, kind, help);
        let head = self.0.len();
        samples(self);
        if self.0.len() == head {
            self.0.truncate(start);
        }
    }

    /// Adds one sample of a metric. `labels` is the text of its labels, see [`labels_text`].
    pub fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let value = number(value);
        if labels.is_empty() {
            self.line(format_args!("{name} {value}\n"));
        } else {
            self.line(format_args!("{name}{{{labels}}} {value}\n"));
        }
    }

    /// Adds a metric with a single sample.
    pub fn single(&mut self, name: &str, kind: MetricKind, help: &str, value: f64) {
        self.family(name, kind, help);
        self.sample(name, "", value);
    }

    /// Adds the samples of a histogram. `bounds` are the upper bounds of its buckets, in ascending order, without
    /// infinity. `counts` are the observations of each bucket alone; the last one is above every bound.
    #[expect(clippy::cast_precision_loss, reason = "every number of the format is an f64")]
    pub fn histogram(
        &mut self,
        name: &str,
        labels: &str,
        bounds: &[f64],
        counts: impl IntoIterator<Item = u64>,
        sum: f64,
    ) {
        let (bucket, comma) = (format!("{name}_bucket"), if labels.is_empty() { "" } else { "," });
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        let mut total: u64 = 0;
        for (bound, count) in bounds.zip(counts) {
            total = total.saturating_add(count);
            let labels = format!("{labels}{comma}le=\"{}\"", number(bound));
            self.sample(&bucket, &labels, total as f64);
        }
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, total as f64);
    }

    fn line(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.0.write_fmt(text);
    }
}

/// Returns label names and values as a sample has them, such as `ip_family="IPv4",table="nat"`.
pub fn labels_text<const N: usize>(labels: [(&str, &str); N]) -> String {
    labels.map(|(name, value)| format!("{name}=\"{}\"", escape(value))).join(",")
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Formats a number as Go's `%g` does, which is what scrapers of Kubernetes' components see: `0.001`, `1.7e+09`
/// (exponents from a million on), `+Inf`.
fn number(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    let scientific = format!("{value:e}");
    let Some((digits, Ok(exponent))) = scientific.split_once('e').map(|(d, e)| (d, e.parse::<i32>())) else {
        return scientific;
    };
    if (-4..6).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Two;

    impl Collect for Two {
        fn collect(&self, page: &mut Page) {
            page.family("a_total", MetricKind::Counter, "What it counts.");
            page.sample("a_total", &labels_text([("x", "1"), ("y", "q\"\\\n")]), 3.0);
            page.single("b", MetricKind::Gauge, "What it is.", 0.5);
            page.family("c", MetricKind::Histogram, "How long.");
            page.histogram("c", &labels_text([("x", "1")]), &[0.5, 1.0], [2, 1, 1], 3.5);
            page.family_with("d", MetricKind::Gauge, "What has no sample.", |_| {});
            page.family_with("e", MetricKind::Gauge, "What has one.", |page| page.sample("e", "", 1e6));
        }
    }

    #[test]
    fn the_text() {
        let sources = Sources::default();
        sources.clone().register(Arc::new(Two));
        let expected = "# HELP a_total What it counts.\n# TYPE a_total counter\na_total{x=\"1\",y=\"q\\\"\\\\\\n\"} 3\n\
                        # HELP b What it is.\n# TYPE b gauge\nb 0.5\n\
                        # HELP c How long.\n# TYPE c histogram\nc_bucket{x=\"1\",le=\"0.5\"} 2\n\
                        c_bucket{x=\"1\",le=\"1\"} 3\nc_bucket{x=\"1\",le=\"+Inf\"} 4\n\
                        c_sum{x=\"1\"} 3.5\nc_count{x=\"1\"} 4\n\
                        # HELP e What has one.\n# TYPE e gauge\ne 1e+06\n";
        assert_eq!(sources.render(), expected);
    }

    #[test]
    fn numbers_print_as_go_prints_them() {
        let table = [
            (0.0, "0"),
            (1.0, "1"),
            (-2.5, "-2.5"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (16.384, "16.384"),
            (300.0, "300"),
            (999_999.0, "999999"),
            (1_000_000.0, "1e+06"),
            (1_772_359_200.5, "1.7723592005e+09"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ];
        for (value, want) in table {
            assert_eq!(number(value), want);
        }
    }
}
