//! `portolan snapshot`: asks the agent, reads the kernel, and writes both into one file; `show` prints such a file.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use portolan_doctor::checks;
use portolan_doctor::facts::Facts;
use portolan_doctor::report::Report;
use portolan_explain::printable;
use portolan_model::observed::Observed;
use portolan_node::config::CONTROL_SOCKET;
use portolan_proxy::packets::programmed_by_agent;
use portolan_snapshot::programmed::Programmed;
use portolan_snapshot::{Kernel, Snapshot, Unread, create, rules, text};

/// The name of what is programmed among what could not be read.
pub(crate) const PROGRAMMED: &str = "what is programmed";

/// Writes what a bug report needs into one file: the state and the objects of the running proxy, its last syncs, what is
/// programmed, and what the doctor finds. Needs root on the node.
///
/// The file has no tokens, certificates and annotations. It names every Service and endpoint.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct SnapshotOptions {
    #[command(subcommand)]
    action: Option<Action>,
    /// File to write. Only its owner may read it. By default portolan-snapshot-NODE-TIME.json.gz in this folder.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it exists.
    #[arg(long)]
    force: bool,
    /// The control socket of the proxy.
    #[arg(long, value_name = "FILE", default_value = CONTROL_SOCKET)]
    control_socket: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Prints a snapshot: what it is of, and the last syncs.
    Show {
        /// The snapshot.
        file: PathBuf,
    },
}

impl SnapshotOptions {
    /// Returns true if the kernel is read, which needs privileges.
    pub(crate) const fn reads_kernel(&self) -> bool {
        self.action.is_none()
    }
}

/// Runs the subcommand.
pub(crate) fn run(options: &SnapshotOptions) -> anyhow::Result<()> {
    match &options.action {
        Some(Action::Show { file }) => show(file),
        None => take(options),
    }
}

fn show(file: &Path) -> anyhow::Result<()> {
    let snapshot = Snapshot::read(file)?;
    let lines: Vec<String> = text::lines(&snapshot).iter().map(|line| printable(line)).collect();
    portolan_proxy::print(&(lines.join("\n") + "\n")).context("cannot write the text")
}

fn take(options: &SnapshotOptions) -> anyhow::Result<()> {
    let mut snapshot = portolan_proxy::ask_for_snapshot(&options.control_socket)?;
    add_kernel(&mut snapshot)?;
    let file = options.output.clone().unwrap_or_else(|| file_name(&snapshot));
    create(&file, &snapshot, options.force)?;
    for Unread { what, reason } in &snapshot.unread {
        eprintln!("Warning: {}", printable(&format!("cannot read {what}: {reason}")));
    }
    println!(
        "{}: {} objects and {} records of the last syncs. It names Services and addresses of the cluster.",
        file.display(),
        snapshot.objects.len(),
        snapshot.history.records.len()
    );
    Ok(())
}

/// Returns the name of the file: that of the node, and the time in digits.
fn file_name(snapshot: &Snapshot) -> PathBuf {
    let is_part = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let node: String = snapshot.node.name.chars().filter(is_part).collect();
    let time = snapshot.time.split('.').next().unwrap_or_default();
    let time: String = time.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("portolan-snapshot-{node}-{time}.json.gz").into()
}

/// Reads what the kernel of this node has. What cannot be read is named.
fn add_kernel(snapshot: &mut Snapshot) -> anyhow::Result<()> {
    let system = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    snapshot.kernel = Kernel {
        release: text(system.release()),
        version: text(system.version()),
        machine: text(system.machine()),
    };
    let (programmed, faults) = programmed_by_agent(&snapshot.state);
    let of_mode = |(mode, observed): &(String, Observed)| Programmed {
        mode: Some(mode.clone()),
        ..Programmed::from(observed)
    };
    snapshot.programmed = programmed.iter().map(of_mode).collect();
    let fault = |reason: String| Unread { what: PROGRAMMED.to_owned(), reason };
    snapshot.unread.extend(faults.into_iter().map(fault));
    let facts = crate::doctor::facts(None);
    snapshot.rules = recorded_rules(&facts, &mut snapshot.unread);
    if let Some(counters) = facts.conntrack {
        let counters = [
            ("invalid", counters.invalid),
            ("insert_failed", counters.insert_failed),
            ("drop", counters.drop),
            ("early_drop", counters.early_drop),
        ];
        snapshot.conntrack = counters.map(|(name, count)| (name.to_owned(), count)).into();
    }
    let report = Report { findings: checks::findings(&facts), unread: facts.unread, ..Report::default() };
    snapshot.doctor = serde_json::to_value(&report).context("the report of the doctor")?;
    Ok(())
}

/// Returns the firewall rules of other programs. `None` if not all could be read, which the report of the doctor says, or if
/// there are too many: without all rules, it is not known that none stops a packet.
fn recorded_rules(facts: &Facts, unread: &mut Vec<Unread>) -> Option<Vec<rules::Chain>> {
    if facts.rules_are_partial {
        return None;
    }
    let recorded = rules::recorded(&facts.rules);
    recorded.map_err(|reason| unread.push(Unread { what: "firewall rules".to_owned(), reason })).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_named_after_the_node_and_the_time() {
        let mut snapshot = Snapshot { time: "2026-01-31T12:00:01.25Z".into(), ..Snapshot::default() };
        snapshot.node.name = "../node-1.example\n".into();
        assert_eq!(
            file_name(&snapshot),
            Path::new("portolan-snapshot-..node-1.example-20260131T120001.json.gz")
        );
    }
}
