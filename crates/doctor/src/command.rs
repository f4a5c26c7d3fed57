//! `portolan doctor`: its options, and one run.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use portolan_node::sysctl::Host;

use crate::checks::Mode;
use crate::facts::{Api, Cluster, Facts, Lack, Unread};
use crate::fix::{self, RemoveLeftovers};
use crate::gather::ListObjects;
use crate::report::Report;
use crate::{checks, gather};

/// What to mend, and the form of the report.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct DoctorOptions {
    /// Execute the safe mends: write kernel settings, and remove what kube-proxy left. Firewall rules are never changed.
    #[arg(long)]
    pub fix: bool,
    /// With --fix: only show what would be done.
    #[arg(long, requires = "fix")]
    pub dry_run: bool,
    /// Form of the report.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Form of the report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A block of lines for each finding.
    #[default]
    Text,
    /// One JSON object.
    Json,
    /// One YAML document.
    Yaml,
}

/// What the API server says about the cluster, if it was asked.
#[derive(Debug, Clone, Default)]
pub struct FromApi {
    /// The objects.
    pub cluster: Option<Cluster>,
    /// The requests.
    pub api: Option<Api>,
    /// What could not be found out.
    pub unread: Vec<Unread>,
}

/// Tries whether this node can run a mode, and returns what it lacks, or why it cannot be tried. Nothing changes in the network
/// namespace of this thread.
pub type TryMode<'a> = &'a dyn Fn(Mode) -> Result<Vec<Lack>, String>;

/// What the caller does for an examination, because it knows each mode.
#[derive(Clone, Copy)]
pub struct Callbacks<'a> {
    /// Lists the objects of modes.
    pub list: ListObjects<'a>,
    /// Tries a mode.
    pub try_mode: TryMode<'a>,
    /// Removes what kube-proxy left.
    pub remove: RemoveLeftovers<'a>,
}

/// Why a report cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be written as JSON.
    #[error("the report cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It cannot be written as YAML.
    #[error("the report cannot be written as YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser::Error),
    /// The standard output is closed or full.
    #[error("the report cannot be written: {0}")]
    Write(#[from] io::Error),
}

/// Examines the network namespace of this thread, executes the safe mends if requested, and returns the report. After
/// mends, everything is examined again.
pub fn examine(options: &DoctorOptions, host: &Host, from_api: &FromApi, callbacks: Callbacks<'_>) -> Report {
    let look = || {
        let FromApi { cluster, api, unread } = from_api.clone();
        let mut facts = Facts { cluster, api, ..gather::facts(host) };
        gather::add_objects(&mut facts, callbacks.list);
        add_trial(&mut facts, callbacks.try_mode);
        facts.unread.extend(unread);
        (checks::findings(&facts), facts.unread)
    };
    let (mut findings, mut unread) = look();
    let mut fixed = Vec::new();
    if options.fix {
        fixed = fix::execute(host, &findings, callbacks.remove, options.dry_run);
        if fixed.iter().any(|fixed| fixed.outcome == fix::FixState::Done) {
            (findings, unread) = look();
        }
    }
    Report { findings, fixed, unread }
}

/// Tries the mode that runs, or else the nftables mode. Without IPVS, the trial of its mode would make the kernel load it.
fn add_trial(facts: &mut Facts, try_mode: TryMode<'_>) {
    let mode = checks::tried_mode(facts);
    if mode == Mode::Ipvs && !facts.has_ipvs {
        return;
    }
    match try_mode(mode) {
        Ok(lacks) => facts.lacks = lacks,
        Err(reason) => facts.unread.push(Unread { what: format!("what the {mode} mode needs"), reason }),
    }
}

/// Prints the report of this node, and returns the exit status ([`Report::status`]).
pub fn run(options: &DoctorOptions, from_api: &FromApi, callbacks: Callbacks<'_>) -> Result<ExitCode, Error> {
    let report = examine(options, &Host::default(), from_api, callbacks);
    match io::stdout().write_all(rendered(&report, options.output)?.as_bytes()) {
        // The reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        written => written?,
    }
    Ok(report.status().into())
}

fn rendered(report: &Report, output: Output) -> Result<String, Error> {
    Ok(match output {
        Output::Text => report.text(),
        Output::Json => serde_json::to_string_pretty(report)? + "\n",
        Output::Yaml => serde_saphyr::to_string(report)?,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::finding::{Code, Finding, Severity};

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: DoctorOptions,
    }

    #[test]
    fn a_dry_run_is_one_of_fixes() {
        let parse = |arguments: &[&str]| Line::try_parse_from([&["doctor"], arguments].concat());
        let options = parse(&["--fix", "--dry-run", "-o", "yaml"]).expect("a command line").options;
        assert!(options.fix && options.dry_run && options.output == Output::Yaml);
        assert!(parse(&["--dry-run"]).is_err());
        assert!(parse(&[]).is_ok());
    }

    #[test]
    fn the_forms_have_the_same_content() {
        let finding = Finding::new(Code::NoProxy, Severity::Warning, "title: with \"quotes\"", "mend");
        let report = Report { findings: vec![finding], ..Report::default() };
        let json = rendered(&report, Output::Json).expect("JSON");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let yaml = rendered(&report, Output::Yaml).expect("YAML");
        let yaml: serde_json::Value = serde_saphyr::from_str(&yaml).expect("YAML");
        assert_eq!(json, yaml);
        assert_eq!(json["findings"][0]["code"], "no-proxy");
    }
}
