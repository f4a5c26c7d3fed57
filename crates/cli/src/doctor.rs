//! `portolan doctor`: supplies the crate `doctor` with what the API server says, with what takes knowledge of the modes, and with
//! the removal of what kube-proxy left.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use portolan_doctor::command::{Callbacks, FromApi};
use portolan_doctor::facts::{Facts, Unread};
use portolan_doctor::gather;
use portolan_leftovers::{self as leftovers, Keep, Removed};
use portolan_node::sysctl::Host;
use portolan_proxy::doctor::{lacks, objects};
use portolan_proxy::packets::Configured;

use crate::cluster::ALL_KINDS;
use crate::cluster::access;

/// Finds what on this node breaks Services, and says how to mend it. Needs root, and no API server.
///
/// With flags of the proxy, such as --config or --kubeconfig, also asks the API server as an agent with these flags would, and
/// examines its Node and Services.
///
/// Exit codes: 0 no errors were found; 1 errors were found; 2 no errors were found, but not everything could be read.
#[derive(Debug, Args)]
pub(crate) struct DoctorCommand {
    #[command(flatten)]
    doctor: portolan_doctor::DoctorOptions,
    #[command(flatten)]
    proxy: Box<portolan_proxy::ProxyOptions>,
}

/// Prints the report of this node.
pub(crate) fn run(options: &DoctorCommand) -> anyhow::Result<ExitCode> {
    print(options).context("portolan doctor")
}

fn print(options: &DoctorCommand) -> anyhow::Result<ExitCode> {
    let configured = match options.proxy.given().next() {
        Some(_) => Some(Configured::load(&options.proxy)?),
        None => None,
    };
    let from_api = configured.as_ref().map(from_api).transpose()?.unwrap_or_default();
    let callbacks = Callbacks {
        list: &|whose| objects(whose, configured.as_ref()),
        try_mode: &|mode| lacks(mode).map_err(|error| error.to_string()),
        remove: &remove_leftovers,
    };
    Ok(portolan_doctor::run(&options.doctor, &from_api, callbacks)?)
}

/// Returns the facts of this node without a trial of the mode.
pub(crate) fn facts(configured: Option<&Configured>) -> Facts {
    let mut facts = gather::facts(&Host::default());
    gather::add_objects(&mut facts, &|whose| objects(whose, configured));
    facts
}

/// Asks the API server.
fn from_api(configured: &Configured) -> anyhow::Result<FromApi> {
    let asked = access::ask(configured, &ALL_KINDS)?;
    let unread = |reason: &String| Unread { what: "the API server".to_owned(), reason: reason.clone() };
    Ok(FromApi {
        unread: asked.not_known.iter().chain(&asked.faults).map(unread).collect(),
        cluster: asked.objects.as_ref().map(|found| found.facts(configured.needs_pod_cidr())),
        api: Some(asked.api),
    })
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
