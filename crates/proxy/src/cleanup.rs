//! The flag `--cleanup`, the subcommand `cleanup`, and the removal of what kube-proxy left.
//!
//! A proxy that takes over from kube-proxy removes kube-proxy's rules only when its own rules of every family are in
//! the kernel, so no packet meets a gap ([`take_over`]). Rules that the running mode uses stay.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use portolan_engine::{Dataplane, Removal, Table, Takeover};
use portolan_leftovers::{Error, Keep, Removed};
use portolan_model::Family;
use portolan_nftables::Nftables;
use portolan_node::config::{self, Configuration, Logging};
use portolan_userspace::Remains;

use super::{node_settings, settings};

/// Shortest wait between two parts of a removal.
const PAUSE: Duration = Duration::from_millis(20);

/// Options of the subcommand `cleanup`.
#[derive(Debug, Args)]
pub struct Options {
    /// The configuration file of the proxy: what is in its ipvs.excludeCIDRs stays, and its conntrack timeouts are those
    /// that are put back.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Leave what kube-proxy uses, for when it does the work: its rules, kernel settings, and in IPVS mode its virtual servers.
    /// Refused before that.
    #[arg(long)]
    only_ours: bool,
}

/// Runs the subcommand `cleanup`, which does the same as the flag `--cleanup`.
///
/// # Errors
/// The configuration file is wrong, or some things could not be removed.
pub fn run(options: &Options) -> anyhow::Result<()> {
    crate::privilege::raise();
    portolan_logging::start(&Logging::default())?;
    let configuration = match &options.config {
        Some(path) => config::load(path).context(WHY)?,
        None => Configuration::default(),
    };
    let strict_arp = options.config.is_some().then_some(configuration.ipvs.strict_arp);
    remove(&configuration, strict_arp, options.only_ours)
}

/// The reason for which a clean-up reads a configuration, for error messages.
pub(super) const WHY: &str =
    "--cleanup leaves alone what is in ipvs.excludeCIDRs; without --config, nothing is excluded";

/// Removes what this program and kube-proxy left on this node, or with `only_ours` only what carries Portolan's own
/// names. Needs no API server. `strict_arp` is `ipvs.strictARP` of the former start, if known.
///
/// # Errors
/// Some things could not be removed. With `only_ours`: no other program has rules for Services, and nothing was
/// removed.
pub(super) fn remove(
    configuration: &Configuration,
    strict_arp: Option<bool>,
    only_ours: bool,
) -> anyhow::Result<()> {
    if only_ours {
        check_successor()?;
    }
    let mut failures = remove_tables();
    failures +=
        if only_ours { remove_own(configuration, strict_arp) } else { remove_all(configuration, strict_arp) };
    if failures > 0 {
        bail!("encountered {failures} errors while tearing down rules; see above");
    }
    Ok(())
}

/// Fails if this program's rules are the only ones that lead to Services.
fn check_successor() -> anyhow::Result<()> {
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
/// how many could not be removed.
fn remove_tables() -> usize {
    let mut failures = 0;
    for family in Family::BOTH {
        match Nftables::open(settings::neutral(family))
            .and_then(|mut dataplane| retire(&mut dataplane, family))
        {
            Ok(()) => tracing::info!(%family, "our nftables table is gone"),
            Err(error) => {
                failures += 1;
                tracing::error!(%family, %error, "our nftables table cannot be removed");
            }
        }
        if let Err(error) = retire(&mut Remains::new(family), family) {
            failures += 1;
            tracing::error!(%family, %error, "what the userspace mode left cannot be removed");
        }
    }
    failures
}

/// Removes the rules of a data plane: first those by which packets enter, then the rest when those packets are
/// through.
fn retire(dataplane: &mut impl Dataplane, family: Family) -> Result<(), portolan_engine::Error> {
    let (begun, table) = (Instant::now(), Table::new(settings::neutral(family)));
    loop {
        match dataplane.remove_part(&Takeover { table: &table, kept: None, elapsed: begun.elapsed() })? {
            Removal::Done => return Ok(()),
            Removal::Continues(wait) => sleep(wait.max(PAUSE)),
        }
    }
}

/// Removes what this program's IPVS mode left and kube-proxy does not use. Sets the kernel settings of the IPVS mode
/// back if kube-proxy does not run in that mode. Returns the number of failures.
fn remove_own(configuration: &Configuration, strict_arp: Option<bool>) -> usize {
    let (removed, errors) = portolan_leftovers::remove_own(&configuration.ipvs.exclude_cidrs);
    if !removed.is_empty() {
        let &Removed { chains, rules, virtual_servers, devices, sets, .. } = &removed;
        tracing::info!(chains, rules, virtual_servers, devices, sets, "removed what our ipvs mode left");
    }
    for error in &errors {
        tracing::error!(%error, "what our ipvs mode left cannot be removed");
    }
    let settings = match portolan_leftovers::runs_ipvs() {
        Ok(true) => 0,
        Ok(false) => super::modes::put_back_ipvs(strict_arp),
        Err(error) => {
            tracing::error!(%error, "kernel settings of the ipvs mode stay, because kube-proxy may use them");
            1
        }
    };
    tracing::info!(
        "rules with kube-proxy's names, KUBE-FIREWALL and the other kernel settings stay, because kube-proxy uses them"
    );
    errors.len().saturating_add(settings)
}

/// Removes what kube-proxy left and the rules of this program's other modes, which have kube-proxy's names. Sets the
/// kernel settings back. Returns the number of failures.
fn remove_all(configuration: &Configuration, strict_arp: Option<bool>) -> usize {
    let mut failures = node_settings::put_back(configuration);
    let exclude = configuration.ipvs.exclude_cidrs.clone();
    // `KUBE-FIREWALL` keeps packets from the network away from loopback addresses. It is needed while these are
    // routed.
    let firewall = super::modes::are_loopback_addresses_routed();
    let (_, errors) = remove_leftovers(&Keep { exclude, firewall, ..Keep::default() });
    for error in &errors {
        tracing::error!(%error, "what kube-proxy left cannot be removed");
    }
    failures += errors.len();
    if let Err(error) = portolan_iptables::remove_counters() {
        failures += 1;
        tracing::error!(%error, "the kernel's counters of the iptables mode (nfacct) cannot be removed");
    }
    failures + super::modes::put_back_ipvs(strict_arp)
}

/// Removes what kube-proxy left, apart from what the running mode uses. Failures are only logged.
pub(super) fn take_over(keep: &Keep) {
    let (_, errors) = remove_leftovers(keep);
    for error in errors {
        tracing::warn!(%error, "what kube-proxy left cannot be removed");
    }
}

/// Removes what kube-proxy left in any mode. Returns what was removed and what failed.
fn remove_leftovers(keep: &Keep) -> (Removed, Vec<Error>) {
    let (removed, errors) = portolan_leftovers::remove(keep);
    if !removed.held_chains.is_empty() {
        let chains: Vec<&str> = removed.held_chains.iter().map(String::as_str).collect();
        let chains = chains.join(", ");
        tracing::warn!(chains, "chains of kube-proxy stay, because rules of other programs lead to them");
    }
    if !removed.is_empty() {
        let &Removed { tables, chains, virtual_servers, devices, sets, .. } = &removed;
        tracing::info!(tables, chains, virtual_servers, devices, sets, "removed what kube-proxy left");
    }
    (removed, errors)
}
