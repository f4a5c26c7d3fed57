//! Measures the API server under load: Services created per second, times of reads and watches, memory.
//!
//! The shipped build of `portolan serve` runs as a process of its own in a network namespace, over plain HTTP, with its
//! embedded store on this machine's disk, or on etcd if a program is given. The clients send requests that are prepared
//! in advance, on connections that stay open, so that only the server is measured.
//!
//! - [`process`]: the server and etcd
//! - [`creates`]: Services created by many clients at once
//! - [`disk`]: what the disk takes of a create
//! - [`state`]: lists, memory and restart with many objects
//! - [`watchers`]: one change sent to many watchers
//! - [`allocation`]: the allocator alone

mod allocation;
mod creates;
mod disk;
mod process;
mod state;
mod watchers;

use std::path::Path;

use crate::bars::Bar;
use crate::statistics::{Sample, mebibytes, millis};

use self::creates::Creates;
use self::state::State;

/// All figures of the API server.
#[derive(Debug)]
pub(crate) struct Figures {
    disk: Sample,
    embedded: Vec<Creates>,
    etcd: Vec<Creates>,
    allocation: allocation::Allocation,
    state: State,
}

/// Measures all figures.
pub(crate) fn measure(binary: &Path, etcd: Option<&Path>) -> anyhow::Result<Figures> {
    let disk = disk::measure()?;
    eprintln!("measuring the API server: creates on the embedded store");
    let embedded = creates::embedded(binary)?;
    eprintln!("measuring the API server: creates on etcd");
    let etcd = etcd.map(|etcd| creates::on_etcd(binary, etcd)).transpose()?.unwrap_or_default();
    eprintln!("measuring the API server: many objects");
    let state = state::measure(binary)?;
    Ok(Figures { disk, embedded, etcd, allocation: allocation::measure()?, state })
}

/// Returns the table, with one row for each figure.
pub(crate) fn render(figures: &Figures) -> String {
    let Figures { disk, embedded, etcd, allocation, state } = figures;
    let mut rows = Vec::new();
    rows.push(("fdatasync of nine pages on the disk of the store, p50 / p99, ms".to_owned(), {
        format!("{:.2} / {:.2}", millis(disk.median()), millis(disk.percentile(99)))
    }));
    for (store, creates) in [("embedded", embedded), ("etcd", etcd)] {
        for it in creates {
            let (clients, per_second) = (it.clients, it.per_second);
            rows.push((
                format!("creates of a Service a second, {store}, {clients} clients"),
                format!("{per_second:.0}"),
            ));
            let (p50, p99) = (millis(it.latencies.median()), millis(it.latencies.percentile(99)));
            rows.push(("- time of each, p50 / p99, ms".to_owned(), format!("{p50:.2} / {p99:.2}")));
            rows.push((
                "- processor time of the server for each, us".to_owned(),
                format!("{:.0}", it.processor_micros),
            ));
        }
    }
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    row("an allocation in a /12 that is 90 % full, scattered / one block, ns", {
        format!("{} / {}", allocation.scattered, allocation.block)
    });
    row("list of 10,000 Services, JSON, median, ms", format!("{:.1}", millis(state.json.time.median())));
    row("- the first list, ms", format!("{:.1}", millis(state.json.first)));
    row("- MiB", format!("{:.1}", mebibytes(state.json.bytes)));
    row(
        "list of 10,000 Services, protobuf, median, ms",
        format!("{:.1}", millis(state.protobuf.time.median())),
    );
    row("- the first list, ms", format!("{:.1}", millis(state.protobuf.first)));
    row("- MiB", format!("{:.1}", mebibytes(state.protobuf.bytes)));
    row("one change to 1,000 watchers, median / longest, ms", {
        format!("{:.1} / {:.1}", millis(state.watchers.median()), millis(state.watchers.percentile(100)))
    });
    row("resident with 10,000 x 10, after the load, MiB", format!("{:.1}", mebibytes(state.resident)));
    row("- high-water, lists and watchers included", format!("{:.1}", mebibytes(state.high_water)));
    row("- after a restart", format!("{:.1}", mebibytes(state.resident_after_restart)));
    row("restart after kill -9 with 10,000 x 10, s", format!("{:.2}", state.restart.as_secs_f64()));
    let rows: Vec<String> =
        rows.into_iter().map(|(name, value)| format!("| {name:<70} | {value:>16} |")).collect();
    format!(
        "| {:<70} | {:>16} |\n|{}|{}:|\n{}\n",
        "API server",
        "",
        "-".repeat(72),
        "-".repeat(17),
        rows.join("\n")
    )
}

/// Returns the bars and whether the figures meet them.
pub(crate) fn bars(figures: &Figures) -> Vec<Bar> {
    let Figures { embedded, etcd, allocation, state, .. } = figures;
    let best = embedded.iter().map(|it| it.per_second).reduce(f64::max);
    let with_8 = etcd.iter().find(|it| it.clients == 8).map(|it| it.per_second);
    let with_64 = embedded.iter().find(|it| it.clients == 64).map(|it| it.latencies.percentile(99));
    vec![
        Bar::at_least("creates of a Service a second, embedded store", " /s", 5_000.0, best),
        Bar::at_least("creates of a Service a second, etcd, 8 clients", " /s", 1_500.0, with_8),
        Bar::new("a create, embedded store, 64 clients, p99", " ms", 20.0, with_64.map(millis)),
        Bar::new(
            "an allocation in a /12 that is 90 % full",
            " ns",
            1_000.0,
            Some(f64::from(allocation.scattered.max(allocation.block))),
        ),
        Bar::new("list of 10,000 Services", " ms", 100.0, Some(millis(state.json.time.median()))),
        Bar::new(
            "list of 10,000 Services, protobuf, median",
            " ms",
            15.0,
            Some(millis(state.protobuf.time.median())),
        ),
        Bar::new("one change to 1,000 watchers, median", " ms", 50.0, Some(millis(state.watchers.median()))),
        Bar::new(
            "API server, resident high-water with 10,000 x 10",
            " MiB",
            200.0,
            Some(mebibytes(state.high_water)),
        ),
    ]
}
