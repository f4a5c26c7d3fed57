//! What the subcommands `explain` of both binaries have in common: the question, the form of the report, the exit status.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use portolan_explain::{Flow, Outcome, Question, Report, Sender, Style, Target};
use serde::Serialize;

use crate::printing;

/// Exit codes besides 0, reachable. An error has 1.
const REFUSED: u8 = 2;
const DROPPED: u8 = 3;
const NOT_A_SERVICE: u8 = 4;
const NOT_AS_WANTED: u8 = 5;

/// A question on the command line.
#[derive(Debug, Clone, Args)]
pub struct Asked {
    /// Who sends the packet: an IP address, `node`, `outside` or `pod/NAME[.NAMESPACE]`.
    pub from: Sender,
    /// Where it is sent to: `ADDRESS:PORT[/PROTOCOL]`, or `svc/NAME[.NAMESPACE][:PORT][/PROTOCOL]`.
    pub to: Target,
    /// The flow is known to conntrack; with the endpoint to which it goes, if the kernel is not read.
    #[arg(long, value_name = "ENDPOINT", num_args = 0..=1, require_equals = true)]
    #[expect(clippy::option_option, reason = "the flag, and its value")]
    established: Option<Option<SocketAddr>>,
    /// Name of the interface at which the packet arrives on this node, for detectLocalMode by interface, firewall rules and
    /// reverse-path filters.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Form of the report. Text has colours on a terminal, unless `NO_COLOR` is set.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Form of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Lines for people.
    Text,
    /// One JSON object.
    Json,
    /// One YAML document.
    Yaml,
}

impl Output {
    /// Returns a report in this form. `text` returns it as lines for people.
    pub(crate) fn rendered(
        self,
        report: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<String> {
        Ok(match self {
            Self::Text => text(),
            Self::Json => serde_json::to_string_pretty(report).context("cannot write JSON")? + "\n",
            Self::Yaml => serde_saphyr::to_string(report).context("cannot write YAML")?,
        })
    }
}

impl Asked {
    /// Returns the question.
    pub fn question(&self) -> Question {
        let flow = self.established.map_or(Flow::New, |endpoint| Flow::Established { endpoint });
        Question { from: self.from.clone(), to: self.to.clone(), flow, interface: self.interface.clone() }
    }
}

/// Prints a report and returns its exit status.
///
/// # Errors
/// The report cannot be written.
pub fn print(report: &Report, output: Output) -> anyhow::Result<ExitCode> {
    print_as(report, output, || report.text(style()))?;
    Ok(status(report.outcome))
}

/// Prints a report of any kind. `text` returns it as lines for people.
///
/// # Errors
/// The report cannot be written.
pub fn print_as(
    report: &impl Serialize,
    output: Output,
    text: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    let rendered = output.rendered(report, text)?;
    printing::print(&rendered).context("cannot write the report")
}

/// Returns whether to use colours: on a terminal that has them, unless `NO_COLOR` is set (<https://no-color.org>).
fn style() -> Style {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb {
        Style::Colour
    } else {
        Style::Plain
    }
}

fn status(outcome: Outcome) -> ExitCode {
    match outcome {
        Outcome::Reachable => ExitCode::SUCCESS,
        Outcome::Refused => ExitCode::from(REFUSED),
        Outcome::Dropped => ExitCode::from(DROPPED),
        Outcome::NotAService => ExitCode::from(NOT_A_SERVICE),
        Outcome::NotAsWanted => ExitCode::from(NOT_AS_WANTED),
    }
}
