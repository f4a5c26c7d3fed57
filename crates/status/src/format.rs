//! Pieces of text: tables, lines, percentages, ages and durations.

/// Returns rows as lines whose columns are aligned.
pub(crate) fn columns(indent: &str, rows: &[Vec<String>]) -> Vec<String> {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        format!("{indent}{}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Returns the text of a program or a kernel without line breaks and other control characters.
pub(crate) fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ").replace(char::is_control, " ")
}

/// Returns a part of a whole in percent, rounded down. 0 of 0 is 0 percent.
pub(crate) fn percent(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100).checked_div(whole).unwrap_or_default()
}

/// Returns a number of seconds as two units at most: `12s`, `3m5s`, `2h10m`, `4d3h`.
pub(crate) fn age(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates, as it should")]
    let seconds = seconds.max(0.0) as u64;
    let units = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
    let mut parts = units.iter().scan(seconds, |rest, (unit, length)| {
        let count = *rest / length;
        *rest %= length;
        Some((count, unit))
    });
    let Some((count, unit)) = parts.find(|(count, _)| *count > 0) else { return "0s".to_owned() };
    match parts.next() {
        Some((next, smaller)) if next > 0 => format!("{count}{unit}{next}{smaller}"),
        _ => format!("{count}{unit}"),
    }
}

/// Returns the duration of a sync.
pub(crate) fn short(seconds: f64) -> String {
    if seconds < 0.001 {
        format!("{:.0}µs", seconds * 1e6)
    } else if seconds < 1.0 {
        format!("{:.1}ms", seconds * 1e3)
    } else {
        format!("{seconds:.1}s")
    }
}
