//! The table: one column for each size, in Markdown.

use std::time::Duration;

use crate::run::Figures;
use crate::statistics::ratio;

type Row = (&'static str, fn(&Figures) -> String);

const ROWS: &[Row] = &[
    ("start to fully programmed, s", |it| seconds(it.cold.duration)),
    ("restart, nothing to write, s", |it| seconds(it.warm.duration)),
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
    ("connect() through a VIP, p50 / p99, us", |it| {
        let vip = &it.connections.vip;
        format!("{} / {}", micros(vip.median()), micros(vip.percentile(99)))
    }),
    ("connect() direct, p50 / p99, us", |it| {
        let direct = &it.connections.direct;
        format!("{} / {}", micros(direct.median()), micros(direct.percentile(99)))
    }),
    ("ratio, p50 / p99", |it| {
        let (vip, direct) = (&it.connections.vip, &it.connections.direct);
        let (p50, p99) =
            (ratio(vip.median(), direct.median()), ratio(vip.percentile(99), direct.percentile(99)));
        format!("{p50:.2} / {p99:.2}")
    }),
    ("mean Service / EndpointSlice, bytes of JSON", |it| {
        format!("{} / {}", it.bodies.service, it.bodies.slice)
    }),
];

/// All figures as one table.
pub(crate) fn render(figures: &[Figures]) -> String {
    let mut lines = vec![
        std::iter::once("Services x endpoints".to_owned())
            .chain(figures.iter().map(|it| it.size.to_string()))
            .collect(),
    ];
    lines.extend(ROWS.iter().map(|(name, cell)| {
        std::iter::once((*name).to_owned()).chain(figures.iter().map(cell)).collect::<Vec<String>>()
    }));
    let columns = figures.len().saturating_add(1);
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

/// The line below the head: figures are on the right.
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

fn micros(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64() * 1e6)
}

fn mebibytes(kibibytes: u32) -> String {
    format!("{:.1}", f64::from(kibibytes) / 1024.0)
}
