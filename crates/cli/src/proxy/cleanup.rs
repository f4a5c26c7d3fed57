//! `--cleanup`, and what kube-proxy left behind when this node's proxy is another one now.

use anyhow::bail;
use portolan_backend::Dataplane as _;
use portolan_backend::leftovers::{self, Error, IPVS_DEVICE};
use portolan_backend::nft::Nftables;
use portolan_model::Family;

use super::settings;

/// Removes our tables and what kube-proxy left, both families; needs no API server.
pub(super) fn run() -> anyhow::Result<()> {
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
    }
    let (device_removed, ipvs_errors) = leftovers::remove_ipvs();
    if device_removed {
        tracing::info!(device = IPVS_DEVICE, "removed what kube-proxy's IPVS mode left");
    }
    let mut errors = remove_leftovers();
    errors.extend(ipvs_errors);
    for error in &errors {
        tracing::error!(%error, "what kube-proxy left cannot be removed");
    }
    failures += errors.len();
    if failures > 0 {
        bail!("encountered {failures} errors while tearing down rules; see above");
    }
    Ok(())
}

/// Removes what kube-proxy left for whoever does its work now. What stays is only told.
pub(super) fn take_over() {
    for error in remove_leftovers() {
        tracing::warn!(%error, "what kube-proxy left cannot be removed");
    }
    match leftovers::has_ipvs_device() {
        Ok(false) => {}
        Ok(true) => tracing::warn!(
            device = IPVS_DEVICE,
            "kube-proxy's IPVS mode left this device and virtual servers, which stay as long as the proxy runs: \
             run `ipvsadm --clear` and `ip link delete kube-ipvs0` on the node"
        ),
        Err(error) => tracing::warn!(%error, "whether kube-proxy's IPVS mode left something is not known"),
    }
}

/// Removes what kube-proxy's nftables and iptables modes left; answers what failed.
fn remove_leftovers() -> Vec<Error> {
    let (removed, errors) = leftovers::remove();
    if !removed.is_empty() {
        let (tables, chains) = (removed.tables, removed.chains);
        tracing::info!(tables, chains, "removed what kube-proxy left");
    }
    errors
}
