//! The table: one column for each size, in Markdown.

use std::time::Duration;

use crate::run::Figures;
use crate::statistics::{Sample, ratio};

type Row = (&'static str, fn(&Figures) -> String);

const ROWS: &[Row] = &[
    ("start to fully programmed, s", |it| seconds(it.cold.duration)),
    ("restart, nothing to write, s", |it| seconds(it.warm.duration)),
    ("comparison of a restart with a change every 20 ms, median, s", |it| {
        seconds(it.restarts.comparisons.median())
    }),
    ("- a change, from its arrival to the kernel, p50 / p99 / longest, ms", |it| it.restarts.waits_text()),
    ("kernel commit of the first load, ms", |it| millis(it.commits.first)),
    ("kernel commit of one change, median, ms", |it| fine_millis(it.commits.changes.median())),
    ("one change, from write to connection, median, ms", |it| fine_millis(it.changes.median())),
    ("one change, from write to connection, p99, ms", |it| fine_millis(it.changes.percentile(99))),
    ("the same at minSyncPeriod 1s after a pause, median, ms", |it| fine_millis(it.paused_changes.median())),
    ("resident high-water after the start, MiB", |it| mebibytes(it.cold.high_water)),
    ("resident high-water after the changes, MiB", |it| mebibytes(it.high_water_cold)),
    ("resident high-water, restart and changes, MiB", |it| mebibytes(it.high_water_warm)),
    ("CPU for 1,000 changes, s", |it| seconds(it.burst.processor)),
    ("the same at minSyncPeriod 0s, s", |it| seconds(it.burst_at_once.processor)),
    ("1,000 changes at minSyncPeriod 0s, all in effect after, s", |it| seconds(it.burst_at_once.duration)),
    ("10,000 changes at once at minSyncPeriod 0s, all in effect after, s", |it| seconds(it.at_once)),
    ("connect() to a pod of another node: through a VIP, p50 / p99, us", |it| two_micros(&it.far.vip)),
    ("- through one rule written by hand", |it| two_micros(&it.far.rule)),
    ("- direct", |it| two_micros(&it.far.direct)),
    ("- VIP against direct, p50 / p99", |it| two_ratios(&it.far.vip, &it.far.direct)),
    ("- one rule against direct", |it| two_ratios(&it.far.rule, &it.far.direct)),
    ("connect() to a pod of its own node: through a VIP, p50 / p99, us", |it| two_micros(&it.near.vip)),
    ("- through one rule written by hand", |it| two_micros(&it.near.rule)),
    ("- direct", |it| two_micros(&it.near.direct)),
    ("- VIP against direct, p50 / p99", |it| two_ratios(&it.near.vip, &it.near.direct)),
    ("- one rule against direct", |it| two_ratios(&it.near.rule, &it.near.direct)),
    ("connect() from outside through a node port with policy Local, p50 / p99, us", |it| {
        two_micros(&it.node_port.vip)
    }),
    ("- node port against direct, p50 / p99", |it| two_ratios(&it.node_port.vip, &it.node_port.direct)),
    ("- one rule against direct", |it| two_ratios(&it.node_port.rule, &it.node_port.direct)),
    ("request and response, open connection to another node: VIP against direct, p50 / p99", |it| {
        two_ratios(&it.far_round_trips.vip, &it.far_round_trips.direct)
    }),
    ("- one rule against direct", |it| two_ratios(&it.far_round_trips.rule, &it.far_round_trips.direct)),
    ("- through a VIP, p50 / p99, us", |it| two_micros(&it.far_round_trips.vip)),
    ("- to a pod of its own node: VIP against direct, p50 / p99", |it| {
        two_ratios(&it.near_round_trips.vip, &it.near_round_trips.direct)
    }),
    ("- one rule against direct", |it| two_ratios(&it.near_round_trips.rule, &it.near_round_trips.direct)),
    ("with counters of Services: connect() to a pod of another node through a VIP, p50 / p99, us", |it| {
        two_micros(&it.counting_far.vip)
    }),
    ("- VIP against direct, p50 / p99", |it| two_ratios(&it.counting_far.vip, &it.counting_far.direct)),
    ("- start that switches them on, s", |it| seconds(it.counting.duration)),
    ("- kernel commit of the first load, ms", |it| millis(it.counting_commits.first)),
    ("- kernel commit of one change, median, ms", |it| fine_millis(it.counting_commits.changes.median())),
    ("refused connect(), no endpoints: from a pod, p50 / p99, us", |it| two_micros(&it.refusals.from_pod)),
    ("- from the node", |it| two_micros(&it.refusals.from_node)),
    ("mean Service / EndpointSlice, bytes of JSON", |it| {
        format!("{} / {}", it.bodies.service, it.bodies.slice)
    }),
];

/// Returns all figures as one table.
pub(crate) fn render(figures: &[Figures]) -> String {
    let mut lines = vec![
        std::iter::once("Services x endpoints".to_owned())
            .chain(figures.iter().map(|it| it.size.to_string()))
            .collect(),
    ];
    lines.extend(ROWS.iter().map(|(name, cell)| {
        std::iter::once((*name).to_owned()).chain(figures.iter().map(cell)).collect::<Vec<String>>()
    }));
    render_rows(&lines)
}

/// Returns rows of equal length as a table. The first one is the head.
pub(crate) fn render_rows(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width =
        |column: usize| lines.iter().filter_map(|line| line.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut rendered: Vec<String> = lines.iter().map(|line| row(line, &widths)).collect();
    rendered.insert(1, rule(&widths));
    rendered.join("\n") + "\n"
}

fn row(cells: &[String], widths: &[usize]) -> String {
    let mut text = String::from("|");
    for (column, (cell, &width)) in cells.iter().zip(widths).enumerate() {
        let padded = if column == 0 { format!(" {cell:<width$} |") } else { format!(" {cell:>width$} |") };
        text.push_str(&padded);
    }
    text
}

/// Returns the line below the head, which aligns figures to the right.
fn rule(widths: &[usize]) -> String {
    let mut text = String::from("|");
    for (column, width) in widths.iter().enumerate() {
        text.push_str(&"-".repeat(width.saturating_add(1)));
        text.push_str(if column == 0 { "-|" } else { ":|" });
    }
    text
}

fn seconds(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64())
}

fn millis(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64() * 1e3)
}

fn fine_millis(duration: Duration) -> String {
    format!("{:.3}", duration.as_secs_f64() * 1e3)
}

fn two_micros(sample: &Sample) -> String {
    let micros = |percent| sample.percentile(percent).as_secs_f64() * 1e6;
    format!("{:.1} / {:.1}", micros(50), micros(99))
}

fn two_ratios(sample: &Sample, base: &Sample) -> String {
    let of = |percent| ratio(sample.percentile(percent), base.percentile(percent));
    format!("{:.3} / {:.3}", of(50), of(99))
}

fn mebibytes(kibibytes: u32) -> String {
    format!("{:.1}", f64::from(kibibytes) / 1024.0)
}
