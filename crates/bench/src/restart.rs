//! Measures changes that arrive during the comparison of a restart: how long each waits until the kernel has it.
//!
//! The Catalog and the nftables data plane run in this process, in a namespace of their own, as in [`crate::kernel`].

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::ensure;
use portolan_engine::dataplane::{Commit, Meanwhile};
use portolan_engine::table::{Changes, Table};
use portolan_engine::{Driven, Error};
use portolan_model::{Catalog, Change};
use portolan_nftables::Nftables;
use portolan_testkit::Namespace;

use crate::kernel::{catalog, endpoint_slice, settings, table};
use crate::statistics::{Sample, millis};
use crate::workload::Size;

/// Time between two changes.
const INTERVAL: Duration = Duration::from_millis(20);

/// The figures of some restarts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Restarts {
    /// Time of each comparison, with the changes.
    pub(crate) comparisons: Sample,
    /// Time from the arrival of each change until the kernel has it.
    pub(crate) waits: Sample,
}

impl Restarts {
    /// Returns the median, the 99th percentile and the longest of the waits, in milliseconds.
    pub(crate) fn waits_text(&self) -> String {
        let [median, high, longest] = [50, 99, 100].map(|percent| millis(self.waits.percentile(percent)));
        format!("{median:.2} / {high:.2} / {longest:.1}")
    }
}

impl fmt::Display for Restarts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { comparisons, waits } = self;
        let (comparison, count) = (millis(comparisons.median()), waits.len());
        write!(
            f,
            "comparison {comparison:.0} ms; {count} changes, from arrival to kernel {} ms",
            self.waits_text()
        )
    }
}

/// Restarts `count` times.
pub(crate) fn measure(size: Size, count: usize) -> anyhow::Result<Restarts> {
    Namespace::new("restart")?.run(|| {
        let mut catalog = catalog(size)?;
        let mut wanted = Table::new(settings());
        table(&mut catalog, |changes| {
            wanted.take(changes.iter().cloned(), []);
            Ok::<_, Error>(())
        })?;
        let mut dataplane = restarted(&wanted)?;
        dataplane.resync()?;
        let (mut comparisons, mut waits, mut round) = (Vec::new(), Vec::new(), 0);
        for _ in 0..count {
            dataplane = restarted(&wanted)?;
            let mut arriving = Arriving::new(&mut catalog, &mut wanted, size, &mut round);
            let begin = Instant::now();
            let commit = dataplane.resync_and_follow(&mut arriving)?;
            ensure!(commit.full, "a restart compares everything");
            comparisons.push(begin.elapsed());
            waits.extend(arriving.finish());
        }
        dataplane.remove()?;
        Ok(Restarts { comparisons: comparisons.into_iter().collect(), waits: waits.into_iter().collect() })
    })?
}

/// Returns a data plane that knows what is wanted and nothing of the kernel.
fn restarted(wanted: &Table) -> Result<Driven<Nftables>, Error> {
    let mut dataplane = Driven::new(settings(), Nftables::open(settings())?);
    dataplane.apply(&wanted.all().forwardings)?;
    Ok(dataplane)
}

/// One changed endpoint every [`INTERVAL`].
struct Arriving<'a> {
    catalog: &'a mut Catalog,
    wanted: &'a mut Table,
    size: Size,
    round: &'a mut usize,
    /// When the next change arrives.
    next: Instant,
    /// When those arrived that are not in the kernel.
    waiting: Vec<Instant>,
    waits: Vec<Duration>,
}

impl<'a> Arriving<'a> {
    fn new(catalog: &'a mut Catalog, wanted: &'a mut Table, size: Size, round: &'a mut usize) -> Self {
        let next = Instant::now();
        Self { catalog, wanted, size, round, next, waiting: Vec::new(), waits: Vec::new() }
    }

    /// Returns the changes of the next slice. The workload's slices can be read.
    fn change(&mut self) -> Vec<Change> {
        *self.round = self.round.saturating_add(1);
        if let Ok(event) = endpoint_slice(&self.size.change(*self.round)) {
            self.catalog.apply(event);
        }
        self.wanted.take(self.catalog.take_changes().changes, []).forwardings
    }

    /// Returns the waits. The comparison has written what is left.
    fn finish(mut self) -> Vec<Duration> {
        self.waits.extend(self.waiting.iter().map(Instant::elapsed));
        self.waits
    }
}

impl Meanwhile for Arriving<'_> {
    fn arrived(&mut self) -> Option<Changes> {
        let mut forwardings = Vec::new();
        while self.next <= Instant::now() {
            self.waiting.push(self.next);
            self.next += INTERVAL;
            forwardings.extend(self.change());
        }
        (!forwardings.is_empty()).then(|| Changes { forwardings, health_checks: Vec::new() })
    }

    fn written(&mut self, _commit: Commit) {
        let waits = self.waiting.drain(..).map(|arrival| arrival.elapsed());
        self.waits.extend(waits);
    }
}
