//! Measures the iptables mode: the Catalog and its data plane run in this process, and the iptables programs of both
//! variants in namespaces of their own, with the same objects.

pub(crate) mod connections;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use portolan_engine::Driven;
use portolan_engine::Table;
use portolan_iptables::{Iptables, IptablesOptions, Pieces, Planner, Present, Programs, Variant};
use portolan_model::{Catalog, Family};
use portolan_testkit::Namespace;

use crate::bars::Bar;
use crate::kernel::{catalog, endpoint_slice, settings, table};
use crate::statistics::{Sample, ratio};
use crate::table::render_rows;
use crate::workload::Size;

const SMALL: Size = Size::new(1_000, 10);
const LARGE: Size = Size::new(10_000, 10);
/// Exit code of `timeout` if it has ended a program (`timeout(1)`).
const TIMED_OUT: i32 = 124;

/// The figures of one size and variant.
#[derive(Debug)]
pub(crate) struct Figures {
    size: Size,
    variant: Variant,
    /// The first load into empty tables.
    load: Cost,
    /// A comparison that finds nothing to write.
    comparison: Cost,
    /// One endpoint change, from its Forwarding to the end of the restore.
    changes: Sample,
    /// Total cost of the changes.
    all_changes: Cost,
    /// The removal of all rules.
    removal: Cost,
    /// The parts of the removal.
    parts: Sample,
    /// The rules of the first load in one restore, as kube-proxy writes them; `None` if not measured.
    one_restore: Option<OneRestore>,
}

#[derive(Debug)]
enum OneRestore {
    Took(Cost),
    NotWithin(Duration),
}

/// The cost of an operation.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    duration: Duration,
    /// Processor time of the iptables programs in user space.
    programs: Duration,
    /// Processor time of the iptables programs in the kernel.
    kernel: Duration,
}

/// Measures each size in both variants. `limit` is the timeout of a restore of all rules at once.
pub(crate) fn measure(sizes: &[Size], changes: usize, limit: Duration) -> anyhow::Result<Vec<Figures>> {
    let mut figures = Vec::new();
    for &size in sizes {
        let catalog = catalog(size)?;
        for variant in [Variant::Nft, Variant::Legacy] {
            eprintln!("measuring the iptables mode at {size}, {}", name(variant));
            figures.push(measure_one(size, variant, &catalog, changes, limit)?);
        }
    }
    Ok(figures)
}

fn measure_one(
    size: Size,
    variant: Variant,
    catalog: &Catalog,
    changes: usize,
    limit: Duration,
) -> anyhow::Result<Figures> {
    let mut figures =
        Namespace::new("iptables")?.run(|| by_the_data_plane(size, variant, catalog.clone(), changes))??;
    let one_restore = Namespace::new("one-restore")?.run(|| one_restore(variant, catalog, limit))??;
    figures.one_restore = Some(one_restore);
    Ok(figures)
}

fn by_the_data_plane(
    size: Size,
    variant: Variant,
    mut catalog: Catalog,
    count: usize,
) -> anyhow::Result<Figures> {
    let programs = Programs::of(Family::Ipv4, variant)?;
    let dataplane = Iptables::new(programs, settings(), IptablesOptions::default());
    let mut dataplane = Driven::new(settings(), dataplane);
    table(&mut catalog, |changes| dataplane.apply(changes).map(drop))?;
    let (commit, load) = cost(|| dataplane.resync())?;
    ensure!(commit.elements > size.services, "the first load wrote {commit:?}");
    let (commit, comparison) = cost(|| dataplane.resync())?;
    ensure!(commit.elements == 0, "a comparison with nothing to write wrote {commit:?}");

    let (changes, all_changes) = cost(|| {
        (0..count).map(|round| change(&mut catalog, &mut dataplane, size, round)).collect::<Result<_, _>>()
    })?;
    let (parts, removal) = cost(|| remove(&mut dataplane, variant))?;
    Ok(Figures { size, variant, load, comparison, changes, all_changes, removal, parts, one_restore: None })
}

fn change(
    catalog: &mut Catalog,
    dataplane: &mut Driven<Iptables>,
    size: Size,
    round: usize,
) -> anyhow::Result<Duration> {
    catalog.apply(endpoint_slice(&size.change(round))?);
    let changes = catalog.take_changes().changes;
    ensure!(changes.len() == 1, "one endpoint change is {} changes", changes.len());
    let started = Instant::now();
    let commit = dataplane.apply(&changes)?;
    ensure!(commit.elements > 0 && !commit.full, "one endpoint change is no single commit: {commit:?}");
    Ok(started.elapsed())
}

fn remove(dataplane: &mut Driven<Iptables>, variant: Variant) -> anyhow::Result<Sample> {
    if variant == Variant::Legacy {
        // The parts only wait for another thread.
        dataplane.remove()?;
        return Ok(Sample::default());
    }
    let mut parts = Vec::new();
    loop {
        let started = Instant::now();
        let is_more = dataplane.remove_part(None)?;
        parts.push(started.elapsed());
        if !is_more {
            return Ok(parts.into_iter().collect());
        }
        // As in the engine, other threads get their turn.
        thread::sleep(Duration::from_millis(1));
    }
}

/// Measures a first load as kube-proxy writes it: all chains of a table, then all of its rules, in one transaction.
fn one_restore(variant: Variant, catalog: &Catalog, limit: Duration) -> anyhow::Result<OneRestore> {
    let text = one_text(catalog)?;
    let program = format!("iptables-{}-restore", name(variant));
    let (outcome, cost) = cost(|| {
        let mut child = Command::new("timeout")
            .args([
                "--signal=KILL",
                &limit.as_secs().to_string(),
                &program,
                "-w",
                "5",
                "--noflush",
                "--counters",
            ])
            .stdin(Stdio::piped())
            .spawn()
            .context("run timeout")?;
        // A program that is ended early reads no more.
        let _ = child.stdin.take().context("a pipe")?.write_all(text.as_bytes());
        anyhow::Ok(child.wait()?)
    })?;
    // When `timeout` ends a program with that signal, it ends itself with the same signal.
    if outcome.code().is_none_or(|code| code == TIMED_OUT) {
        return Ok(OneRestore::NotWithin(limit));
    }
    if !outcome.success() {
        bail!("{program} ended with {outcome}");
    }
    Ok(OneRestore::Took(cost))
}

fn one_text(catalog: &Catalog) -> anyhow::Result<String> {
    let mut wanted = Table::new(settings());
    table(&mut catalog.clone(), |changes| {
        wanted.take(changes.iter().cloned(), []);
        Ok(())
    })?;
    let (mut planner, mut text) = (Planner::new(settings(), IptablesOptions::default()), String::new());
    planner.full(&wanted, &Present::default(), Pieces::One, &mut text)?;
    let mut ordered = String::with_capacity(text.len());
    for table in text.split_inclusive("COMMIT\n") {
        let is_first = |line: &&str| line.starts_with(['*', ':']);
        for line in table.lines().filter(is_first).chain(table.lines().filter(|line| !is_first(line))) {
            writeln!(ordered, "{line}")?;
        }
    }
    Ok(ordered)
}

/// Runs an operation and returns its cost.
fn cost<T, E: Into<anyhow::Error>>(work: impl FnOnce() -> Result<T, E>) -> anyhow::Result<(T, Cost)> {
    let (before, started) = (processor_time()?, Instant::now());
    let outcome = work().map_err(Into::into)?;
    let duration = started.elapsed();
    let after = processor_time()?;
    let cost = Cost {
        duration,
        programs: after.0.saturating_sub(before.0),
        kernel: after.1.saturating_sub(before.1),
    };
    Ok((outcome, cost))
}

/// Returns the processor time of ended child processes, in user space and in the kernel (`proc_pid_stat(5)`).
fn processor_time() -> anyhow::Result<(Duration, Duration)> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The second field, a name in parentheses, may contain spaces.
    let (_, rest) = stat.rsplit_once(')').context("/proc/self/stat")?;
    let mut fields = rest.split_whitespace().skip(13);
    let per_second = rustix::param::clock_ticks_per_second();
    let mut next = || -> anyhow::Result<Duration> {
        let ticks: u64 = fields.next().context("/proc/self/stat")?.parse()?;
        let millis = ticks.saturating_mul(1_000).checked_div(per_second).unwrap_or_default();
        Ok(Duration::from_millis(millis))
    };
    Ok((next()?, next()?))
}

const fn name(variant: Variant) -> &'static str {
    match variant {
        Variant::Nft => "nft",
        Variant::Legacy => "legacy",
    }
}

/// Returns the table, with one column for each size and variant.
pub(crate) fn render(figures: &[Figures]) -> String {
    type Row = (&'static str, fn(&Figures) -> String);
    const ROWS: &[Row] = &[
        ("first load, s", |it| seconds(it.load.duration)),
        ("- of that iptables-restore, outside of the kernel / in the kernel, s", |it| shares(it.load)),
        ("comparison with nothing to write, s", |it| seconds(it.comparison.duration)),
        ("one change, median, ms", |it| millis(it.changes.median())),
        ("one change, p99, ms", |it| millis(it.changes.percentile(99))),
        ("- of that iptables-restore, outside of the kernel / in the kernel, mean, ms", |it| {
            let all = it.all_changes;
            let each =
                |duration: Duration| millis(duration / u32::try_from(it.changes.len()).unwrap_or(1).max(1));
            format!("{} / {}", each(all.programs), each(all.kernel))
        }),
        ("removal, s", |it| seconds(it.removal.duration)),
        ("- its longest part, ms", |it| match it.variant {
            Variant::Nft => millis(it.parts.percentile(100)),
            Variant::Legacy => "-".to_owned(),
        }),
        ("everything in one iptables-restore, s", |it| match &it.one_restore {
            None => "-".to_owned(),
            Some(OneRestore::Took(cost)) => seconds(cost.duration),
            Some(OneRestore::NotWithin(limit)) => format!("not within {}", limit.as_secs()),
        }),
        ("- outside of the kernel / in the kernel, s", |it| match &it.one_restore {
            Some(OneRestore::Took(cost)) => shares(*cost),
            _ => "-".to_owned(),
        }),
    ];
    let head = figures.iter().map(|it| format!("{}, {}", it.size, name(it.variant)));
    let mut lines = vec![std::iter::once("iptables mode".to_owned()).chain(head).collect()];
    lines.extend(ROWS.iter().map(|(name, cell)| {
        std::iter::once((*name).to_owned()).chain(figures.iter().map(cell)).collect::<Vec<String>>()
    }));
    render_rows(&lines)
}

fn shares(cost: Cost) -> String {
    format!("{} / {}", seconds(cost.programs), seconds(cost.kernel))
}

fn seconds(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64())
}

fn millis(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64() * 1e3)
}

/// Compares the figures with the bars: kube-proxy's times for the first load, and a part of them for changes.
pub(crate) fn bars(figures: &[Figures]) -> Vec<Bar> {
    let at = |size, variant| figures.iter().find(|it| it.size == size && it.variant == variant);
    let mut bars = Vec::new();
    for (variant, load, change) in [(Variant::Nft, 4.8, 40.0), (Variant::Legacy, 0.44, 80.0)] {
        let it = at(SMALL, variant);
        bars.push(Bar::new(
            format!("iptables-{}, first load at {SMALL}", name(variant)),
            " s",
            load,
            it.map(|it| it.load.duration.as_secs_f64()),
        ));
        bars.push(Bar::new(
            format!("iptables-{}, one change at {SMALL}, median", name(variant)),
            " ms",
            change,
            it.map(|it| it.changes.median().as_secs_f64() * 1e3),
        ));
    }
    let one = at(LARGE, Variant::Nft).and_then(|it| {
        let duration = match it.one_restore.as_ref()? {
            OneRestore::Took(cost) => cost.duration,
            // The real time is at least that.
            OneRestore::NotWithin(limit) => *limit,
        };
        Some(ratio(duration, it.load.duration))
    });
    let what = format!("iptables-nft, first load at {LARGE} against one iptables-restore of everything");
    bars.push(Bar::at_least(what, " times", 5.0, one));
    bars
}
