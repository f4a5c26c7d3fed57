//! The forms of reports.

use std::io::Write as _;

use anyhow::Context as _;
use clap::ValueEnum;
use serde::Serialize;

/// Form of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Lines for people.
    Text,
    /// One JSON object.
    Json,
    /// One YAML document.
    Yaml,
}

/// Prints a report. `text` returns it as lines for people.
pub(crate) fn print(
    report: &impl Serialize,
    output: Output,
    text: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    let rendered = match output {
        Output::Text => text(),
        Output::Json => serde_json::to_string_pretty(report).context("cannot write JSON")? + "\n",
        Output::Yaml => serde_saphyr::to_string(report).context("cannot write YAML")?,
    };
    std::io::stdout().lock().write_all(rendered.as_bytes()).context("cannot write the report")
}
