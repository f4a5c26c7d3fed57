//! The metrics of the node agent, and the server that exposes them.
//!
//! The building blocks are plain atomics: [`Counter`], [`Seconds`], [`Gauge`], [`Histogram`]. The label values of a
//! [`Vector`] are known when it is created, and its members appear after their first use, or all at once with
//! [`Vector::show_all`]. A [`DynamicVector`] learns label values at run time. A [`Registry`] prints metrics. [`ProxyMetrics`] lists the metrics of this program. There are
//! no globals.

#![allow(clippy::cast_precision_loss, reason = "every number of the text format is an f64")]

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use portolan_web::metrics::{Collect, MetricKind, Page};

pub use self::build::BuildInfo;
pub use self::dynamic::DynamicVector;
pub use self::labels::{NodeWrite, ObjectKind, Reload, Resource, TrafficPolicy};
pub use self::pages::{AGENT_PAGES, AgentPages, Pages, PagesSettings, SERVICE_METRICS, SetVerbosity, server};
pub use self::process::ProcessMetrics;
pub use self::proxy::{IptablesMeasures, PacketCounters, ProxyMetrics, RelayMeasures};
use crate::address::Family;

mod build;
mod dynamic;
mod labels;
mod pages;
mod process;
mod proxy;
mod stability;
#[cfg(test)]
pub(crate) mod tests;

/// A count that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds a number.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    /// Sets the count to one that is kept elsewhere.
    pub fn set(&self, count: u64) {
        self.0.store(count, Relaxed);
    }
}

/// A sum of times that only grows, in seconds.
#[derive(Debug, Default)]
pub struct Seconds(AtomicU64);

impl Seconds {
    /// Sets the sum to one that is kept elsewhere.
    pub fn set(&self, total: Duration) {
        self.0.store(total.as_secs_f64().to_bits(), Relaxed);
    }
}

/// A value that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets the value.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Relaxed);
    }

    /// Adds to the value.
    pub fn add(&self, value: f64) {
        add_float(&self.0, value);
    }
}

/// Counts of observations up to fixed bounds.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// The observations of each bucket alone. The last bucket is above every bound.
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    /// Creates a histogram. `bounds` are upper bounds in ascending order, without infinity.
    pub fn new(bounds: &'static [f64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, sum: AtomicU64::new(0) }
    }

    /// Counts one observation.
    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(1, Relaxed);
        }
        add_float(&self.sum, value);
    }
}

/// The values of a vector's labels.
pub trait Labels: Copy + Send + Sync + 'static {
    /// Returns every combination of values.
    fn all() -> Vec<Self>;
    /// Returns the position of a combination in [`Labels::all`].
    fn index(self) -> usize;
    /// Returns label names and values, such as `ip_family="IPv4"`.
    fn text(self) -> String;
}

/// One metric for each combination of label values. It is exposed after its first use or after [`Vector::show_all`].
pub struct Vector<L, M> {
    members: Box<[OnceLock<M>]>,
    make: fn() -> M,
    labels: PhantomData<L>,
}

impl<L: Labels, M> Vector<L, M> {
    /// Creates a vector without members. `make` creates a member.
    pub fn new(make: fn() -> M) -> Self {
        let members = L::all().iter().map(|_| OnceLock::new()).collect();
        Self { members, make, labels: PhantomData }
    }

    /// Exposes every member. `increase` and `rate` of Prometheus see no increase in a series that begins with 1, so a counter that
    /// they are used on must begin with 0.
    pub fn show_all(&self) {
        for member in &self.members {
            let _ = member.get_or_init(self.make);
        }
    }

    /// Calls `use_it` with the member of some label values.
    pub fn with(&self, labels: L, use_it: impl FnOnce(&M)) {
        // If `index()` of a type does not fit its `all()`, observations are lost. A test compares the two.
        if let Some(member) = self.members.get(labels.index()) {
            use_it(member.get_or_init(self.make));
        }
    }
}

/// A metric without its name.
pub trait Metric: Send + Sync {
    /// Returns its kind.
    fn kind(&self) -> MetricKind;
    /// Appends the samples of metric `name`, with `labels` (may be empty) before their own labels.
    fn collect(&self, name: &str, labels: &str, page: &mut Page);
}

/// The exposed metrics, by name.
#[derive(Default)]
pub struct Registry(Mutex<BTreeMap<&'static str, Shown>>);

struct Shown {
    help: String,
    metric: Arc<dyn Metric>,
}

impl Registry {
    /// Exposes `metric` under `name`, in place of a former metric of that name.
    pub fn add<M: Metric + 'static>(&self, name: &'static str, help: impl Into<String>, metric: M) -> Arc<M> {
        let metric = Arc::new(metric);
        let shown: Arc<dyn Metric> = Arc::<M>::clone(&metric);
        let mut families = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        families.insert(name, Shown { help: help.into(), metric: shown });
        metric
    }

    /// Returns the number of metrics whose help text has a prefix.
    fn count_helps(&self, prefix: &str) -> u64 {
        let families = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        families.values().filter(|shown| shown.help.starts_with(prefix)).count() as u64
    }

    /// Returns the whole page, sorted by name. Metrics without samples are left out.
    pub fn page(&self) -> String {
        let mut page = Page::with_capacity(32 * 1024);
        self.collect(&mut page);
        page.into_text()
    }
}

impl Collect for Registry {
    fn collect(&self, page: &mut Page) {
        let families = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, Shown { help, metric }) in &*families {
            page.family_with(name, metric.kind(), help, |page| metric.collect(name, "", page));
        }
    }
}

impl Metric for Counter {
    fn kind(&self) -> MetricKind {
        MetricKind::Counter
    }

    fn collect(&self, name: &str, labels: &str, page: &mut Page) {
        page.sample(name, labels, self.0.load(Relaxed) as f64);
    }
}

impl Metric for Seconds {
    fn kind(&self) -> MetricKind {
        MetricKind::Counter
    }

    fn collect(&self, name: &str, labels: &str, page: &mut Page) {
        page.sample(name, labels, f64::from_bits(self.0.load(Relaxed)));
    }
}

impl Metric for Gauge {
    fn kind(&self) -> MetricKind {
        MetricKind::Gauge
    }

    fn collect(&self, name: &str, labels: &str, page: &mut Page) {
        page.sample(name, labels, f64::from_bits(self.0.load(Relaxed)));
    }
}

impl Metric for Histogram {
    fn kind(&self) -> MetricKind {
        MetricKind::Histogram
    }

    fn collect(&self, name: &str, labels: &str, page: &mut Page) {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Relaxed));
        page.histogram(name, labels, self.bounds, counts, f64::from_bits(self.sum.load(Relaxed)));
    }
}

impl<L: Labels, M: Metric> Metric for Vector<L, M> {
    fn kind(&self) -> MetricKind {
        (self.make)().kind()
    }

    fn collect(&self, name: &str, _: &str, page: &mut Page) {
        for (labels, member) in L::all().into_iter().zip(&self.members) {
            if let Some(member) = member.get() {
                member.collect(name, &labels.text(), page);
            }
        }
    }
}

fn add_float(bits: &AtomicU64, value: f64) {
    let mut now = bits.load(Relaxed);
    let sum = |now| (f64::from_bits(now) + value).to_bits();
    while let Err(changed) = bits.compare_exchange_weak(now, sum(now), Relaxed, Relaxed) {
        now = changed;
    }
}
