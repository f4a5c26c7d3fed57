//! The flag `--cleanup`, the subcommand `cleanup`, and the removal of what kube-proxy left.
//!
//! A proxy that takes over from kube-proxy removes kube-proxy's rules only when its own rules of every family are in
//! the kernel, so no packet meets a gap ([`take_over`]). Rules that the running mode uses stay.
//!
//! A clean-up has these steps: `survey` lists what there is, the functions here remove it, and a second survey proves
//! that nothing is left. `settings` puts the kernel settings back. `report` compares the two surveys. With `--dry-run`,
//! there is only the first survey.

mod report;
mod settings;
mod survey;

use std::path::PathBuf;
use std::thread::{park, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use portolan_engine::{Dataplane, Removal, Table, Takeover};
use portolan_leftovers::{Error, Keep, Object, Removed};
use portolan_model::Family;
use portolan_nftables::Nftables;
use portolan_node::config::{self, Configuration, Logging};
use portolan_userspace::Remains;

use self::report::Report;
use self::settings::{Memory, Settings};
use self::survey::Survey;
use super::packets::Output;
use super::printing::print;
use super::settings::neutral;

/// Shortest wait between two parts of a removal.
const PAUSE: Duration = Duration::from_millis(20);

/// Options of the subcommand `cleanup`.
#[derive(Debug, Args)]
pub struct CleanupOptions {
    /// The configuration file of the proxy: what is in its ipvs.excludeCIDRs stays.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Leave what kube-proxy uses, for when it does the work: its rules, kernel settings, and in IPVS mode its virtual servers.
    /// Refused before that.
    #[arg(long)]
    only_ours: bool,
    /// Only list what would be removed and which kernel settings would be put back. Changes nothing.
    #[arg(long)]
    dry_run: bool,
    /// If nothing is left, wait for SIGTERM afterwards: for a container that would be started again when it ends.
    #[arg(long)]
    wait: bool,
    /// Form of the report.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

impl CleanupOptions {
    /// Returns true if the program waits for a signal after the clean-up.
    pub const fn waits(&self) -> bool {
        self.wait
    }
}

/// What a clean-up is to remove.
#[derive(Debug, Clone, Copy)]
struct Scope<'a> {
    configuration: &'a Configuration,
    /// Leave what kube-proxy uses.
    only_ours: bool,
}

/// Runs the subcommand `cleanup`: removes what this program and kube-proxy left on this node, or with `--only-ours` only
/// what kube-proxy does not use, and prints the report. Needs no API server. With `--wait` it then waits for a signal, which
/// ends the process.
///
/// # Errors
/// The configuration file is wrong, something could not be read or removed, or it is there again. With `--only-ours`:
/// kube-proxy has no rules for Services, and nothing was removed.
pub fn run(options: &CleanupOptions) -> anyhow::Result<()> {
    crate::privilege::raise();
    portolan_logging::start(&Logging::default())?;
    let configuration = match &options.config {
        Some(path) => config::load(path).context(WHY)?,
        None => Configuration::default(),
    };
    let scope = Scope { configuration: &configuration, only_ours: options.only_ours };
    let report = if options.dry_run { plan(scope)? } else { clean(scope)? };
    let rendered = report.rendered(options.output)?;
    print(&rendered).context("the report cannot be written")?;
    let failures = report.failures();
    if failures > 0 {
        bail!("the clean-up is not complete (left or failed: {failures}); see the report");
    }
    if options.wait {
        wait_for_signal();
    }
    Ok(())
}

/// Does not return: the signal ends the process.
fn wait_for_signal() -> ! {
    loop {
        park();
    }
}

/// Does the same for the flag `--cleanup`, and logs. Chains to which rules of other programs lead are no error there, as
/// in kube-proxy.
///
/// # Errors
/// See [`run`].
pub(super) fn run_as_flag(configuration: &Configuration, only_ours: bool) -> anyhow::Result<()> {
    let report = clean(Scope { configuration, only_ours })?;
    report.log();
    let failures = report.failures().saturating_sub(report.held());
    if failures > 0 {
        bail!("encountered {failures} errors while tearing down rules; see above");
    }
    Ok(())
}

/// The reason for which a clean-up reads a configuration, for error messages.
pub(super) const WHY: &str =
    "--cleanup leaves alone what is in ipvs.excludeCIDRs; without --config, nothing is excluded";

/// Lists what [`clean`] would do. Changes nothing.
fn plan(scope: Scope<'_>) -> anyhow::Result<Report> {
    check(scope)?;
    let memory = Memory::read(scope.configuration);
    let survey = Survey::before(scope, &memory);
    let settings = memory.plan(scope, &survey);
    Ok(Report::planned(survey, settings))
}

/// Removes what is in `scope`, puts kernel settings back, reads everything again, and returns the report.
fn clean(scope: Scope<'_>) -> anyhow::Result<Report> {
    check(scope)?;
    let memory = Memory::read(scope.configuration);
    let before = Survey::before(scope, &memory);
    let mut settings = Settings::default();
    let mut errors = remove_tables();
    super::modes::forget_saved_elements();
    if scope.only_ours {
        errors.extend(remove_own(scope.configuration));
    } else {
        // `KUBE-FIREWALL` is needed while loopback addresses are routed, so settings go first.
        settings.add(memory.put_back_general());
        errors.extend(remove_all(scope.configuration));
    }
    match memory.put_back_ipvs(scope) {
        Ok(more) => settings.add(more),
        Err(error) => errors.push(error),
    }
    errors.extend(memory.forget(scope, &settings));
    Ok(Report::done(before, Survey::after(scope), settings, errors))
}

/// Lists this program's tables, and the policy routing of its userspace mode, with what could not be read. Changes nothing.
pub(super) fn find_own() -> (Vec<Object>, Vec<String>) {
    let Survey { found, errors } = Survey::of_own();
    (found.objects, errors)
}

/// Fails with `only_ours` if this program's rules are the only ones that lead to Services.
fn check(scope: Scope<'_>) -> anyhow::Result<()> {
    if !scope.only_ours {
        return Ok(());
    }
    let unserved =
        portolan_leftovers::unserved().context("cannot tell whether kube-proxy's rules are there")?;
    if unserved.is_empty() {
        return Ok(());
    }
    let families: Vec<String> = unserved.iter().map(ToString::to_string).collect();
    bail!(
        "kube-proxy has no rules here yet ({}), and without Portolan's tables, or its rules of the ipvs mode, no Service would \
         be reached: wait until it has programmed this node, or run `portolan-proxy cleanup` without --only-ours to remove everything",
        families.join(" and ")
    )
}

/// Removes this program's nftables tables of both families without refusing packets that are on their way. Returns
/// what failed.
fn remove_tables() -> Vec<String> {
    let mut errors = Vec::new();
    for family in Family::BOTH {
        match Nftables::open(neutral(family)).and_then(|mut dataplane| retire(&mut dataplane, family)) {
            Ok(()) => tracing::info!(%family, "our nftables table is gone"),
            Err(error) => {
                errors.push(format!("our nftables table ({family}) cannot be removed: {error}"));
            }
        }
        if let Err(error) = retire(&mut Remains::new(family), family) {
            errors.push(format!("what the userspace mode left ({family}) cannot be removed: {error}"));
        }
    }
    errors
}

/// Removes the rules of a data plane: first those by which packets enter, then the rest when those packets are
/// through.
fn retire(dataplane: &mut impl Dataplane, family: Family) -> Result<(), portolan_engine::Error> {
    let (begun, table) = (Instant::now(), Table::new(neutral(family)));
    loop {
        match dataplane.remove_part(&Takeover { table: &table, kept: None, elapsed: begun.elapsed() })? {
            Removal::Done => return Ok(()),
            Removal::Continues(wait) => sleep(wait.max(PAUSE)),
        }
    }
}

/// Removes what this program's IPVS mode left and kube-proxy does not use. Returns what failed.
fn remove_own(configuration: &Configuration) -> Vec<String> {
    let (removed, errors) = portolan_leftovers::remove_own(&configuration.ipvs.exclude_cidrs);
    if !removed.is_empty() {
        let &Removed { chains, rules, virtual_servers, devices, sets, .. } = &removed;
        tracing::info!(chains, rules, virtual_servers, devices, sets, "removed what our ipvs mode left");
    }
    tracing::info!(
        "rules with kube-proxy's names, KUBE-FIREWALL and the other kernel settings stay, because kube-proxy uses them"
    );
    errors.iter().map(|error| format!("what our ipvs mode left cannot be removed: {error}")).collect()
}

/// Removes what kube-proxy left and the rules of this program's other modes, which have kube-proxy's names. Returns
/// what failed.
fn remove_all(configuration: &Configuration) -> Vec<String> {
    let firewall = settings::are_loopback_addresses_routed();
    let (_, errors) = remove_leftovers(&survey::keep(configuration, firewall));
    let mut errors: Vec<String> =
        errors.iter().map(|error| format!("what kube-proxy left cannot be removed: {error}")).collect();
    if let Err(error) = portolan_iptables::remove_counters() {
        errors
            .push(format!("the kernel's counters of the iptables mode (nfacct) cannot be removed: {error}"));
    }
    errors
}

/// Removes what kube-proxy left, apart from what the running mode uses. Returns what failed. The first time, it also logs which
/// chains stay because other programs use them, and what this process cannot look at.
pub(super) fn take_over(keep: &Keep, is_first: bool) -> Vec<String> {
    let (removed, errors) = portolan_leftovers::remove(keep);
    log_removed(&removed, is_first);
    let (unknown, failed): (Vec<Error>, Vec<Error>) = errors.into_iter().partition(Error::is_unknown);
    if is_first {
        for error in unknown {
            tracing::warn!(%error, "what kube-proxy left cannot be removed");
        }
    }
    failed.iter().map(ToString::to_string).collect()
}

/// Removes what kube-proxy left in any mode. Returns what was removed and what failed.
fn remove_leftovers(keep: &Keep) -> (Removed, Vec<Error>) {
    let (removed, errors) = portolan_leftovers::remove(keep);
    log_removed(&removed, true);
    (removed, errors)
}

fn log_removed(removed: &Removed, names_held: bool) {
    if names_held && !removed.held_chains.is_empty() {
        let chains: Vec<&str> = removed.held_chains.iter().map(String::as_str).collect();
        let chains = chains.join(", ");
        tracing::warn!(chains, "chains of kube-proxy stay, because rules of other programs lead to them");
    }
    if !removed.is_empty() {
        let &Removed { tables, chains, virtual_servers, devices, sets, .. } = removed;
        tracing::info!(tables, chains, virtual_servers, devices, sets, "removed what kube-proxy left");
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command};

    use super::*;

    #[test]
    fn the_page_has_every_option() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cleanup.md");
        let page = std::fs::read_to_string(path).expect("docs/cleanup.md");
        let command = CleanupOptions::augment_args(Command::new("cleanup"));
        for option in command.get_arguments() {
            let name = format!("--{}", option.get_long().expect("a name"));
            let row = page.lines().find(|line| line.starts_with('|') && line.contains(&name));
            assert!(row.is_some(), "{name} is not on the page");
        }
    }
}
