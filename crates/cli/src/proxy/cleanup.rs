//! `--cleanup`, and what kube-proxy left behind when this node's proxy is another one now.

use std::path::Path;

use anyhow::bail;
use portolan_backend::Dataplane as _;
use portolan_backend::leftovers;
use portolan_backend::nft::Nftables;
use portolan_model::Family;

use super::settings;

/// The network device of kube-proxy's IPVS mode.
const IPVS_DEVICE: &str = "/sys/class/net/kube-ipvs0";

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
    failures += remove_leftovers();
    if failures > 0 {
        bail!("encountered {failures} errors while tearing down rules; see above");
    }
    Ok(())
}

/// Removes what kube-proxy's nftables and iptables modes left; answers how much failed.
pub(super) fn remove_leftovers() -> usize {
    let (removed, errors) = leftovers::remove();
    if !removed.is_empty() {
        let (tables, chains) = (removed.tables, removed.chains);
        tracing::info!(tables, chains, "removed what kube-proxy left");
    }
    for error in &errors {
        tracing::error!(%error, "what kube-proxy left cannot be removed");
    }
    if Path::new(IPVS_DEVICE).exists() {
        tracing::warn!(
            device = "kube-ipvs0",
            "kube-proxy's IPVS mode left this device and virtual servers, which are not removed by this \
             version: run `ipvsadm --clear` and `ip link delete kube-ipvs0` on the node"
        );
    }
    errors.len()
}
