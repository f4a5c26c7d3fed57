//! `portolan doctor`: supplies the crate `doctor` with the removal of what kube-proxy left.

use std::process::ExitCode;

use anyhow::Context as _;
use portolan_doctor::Options;
use portolan_doctor::command::FromApi;
use portolan_leftovers::{self as leftovers, Keep, Removed};

/// Prints the report of this node. The API server is not asked.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    portolan_doctor::run(options, &FromApi::default(), &remove_leftovers).context("portolan doctor")
}

/// Removes kube-proxy's tables and chains. `KUBE-FIREWALL` stays: kubelet may need it. Virtual servers and ipsets stay:
/// connections may use them.
fn remove_leftovers() -> Result<String, String> {
    let (removed, errors) = leftovers::remove(&Keep { firewall: true, ipvs: true, ..Keep::default() });
    if !errors.is_empty() {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        return Err(errors.join("; "));
    }
    let Removed { tables, chains, held_chains, .. } = removed;
    let mut text = format!("removed {tables} tables and {chains} chains of kube-proxy");
    if !held_chains.is_empty() {
        let held: Vec<&str> = held_chains.iter().map(String::as_str).collect();
        text = format!("{text}; rules of other programs lead to these, which stay: {}", held.join(", "));
    }
    Ok(text)
}
