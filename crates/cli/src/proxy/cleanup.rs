//! `--cleanup`, and what kube-proxy left behind when this node's proxy is another one now.

use anyhow::bail;
use portolan_backend::Dataplane as _;
use portolan_backend::leftovers::{self, Error, Keep};
use portolan_backend::nft::Nftables;
use portolan_backend::userspace::Remains;
use portolan_model::Family;
use portolan_node::config::Configuration;

use super::settings;

/// Removes our tables and what kube-proxy left, both families; needs no API server. Of a configuration, only what belongs to
/// others counts.
pub(super) fn run(configuration: &Configuration) -> anyhow::Result<()> {
    let mut failures = 0;
    for family in Family::BOTH {
        let removed = Nftables::open(settings::neutral(family)).and_then(|mut dataplane| dataplane.remove());
        match removed {
            Ok(()) => tracing::info!(%family, "our nftables table is gone"),
            Err(error) => {
                failures += 1;
                tracing::error!(%family, %error, "our nftables table cannot be removed");
            }
        }
        if let Err(error) = Remains::new(family).remove() {
            failures += 1;
            tracing::error!(%family, %error, "what the userspace mode left cannot be removed");
        }
    }
    // Rules of our iptables mode are kube-proxy's, and go with them.
    let exclude = configuration.ipvs.exclude_cidrs.clone();
    let errors = remove_leftovers(&Keep { exclude, ..Keep::default() });
    for error in &errors {
        tracing::error!(%error, "what kube-proxy left cannot be removed");
    }
    failures += errors.len();
    if failures > 0 {
        bail!("encountered {failures} errors while tearing down rules; see above");
    }
    Ok(())
}

/// Removes what kube-proxy left for whoever does its work now and uses what is to be kept. What stays is only told.
pub(super) fn take_over(keep: &Keep) {
    for error in remove_leftovers(keep) {
        tracing::warn!(%error, "what kube-proxy left cannot be removed");
    }
}

/// Removes what kube-proxy left, whatever its mode was; answers what failed.
fn remove_leftovers(keep: &Keep) -> Vec<Error> {
    let (removed, errors) = leftovers::remove(keep);
    if !removed.held_chains.is_empty() {
        let chains: Vec<&str> = removed.held_chains.iter().map(String::as_str).collect();
        let chains = chains.join(", ");
        tracing::warn!(chains, "chains of kube-proxy stay, because rules of other programs lead to them");
    }
    if !removed.is_empty() {
        let leftovers::Removed { tables, chains, virtual_servers, devices, sets, .. } = removed;
        tracing::info!(tables, chains, virtual_servers, devices, sets, "removed what kube-proxy left");
    }
    errors
}
