//! A question about a snapshot: its objects, the configuration of its agent, and what was programmed.

use std::path::Path;

use anyhow::{anyhow, ensure};
use portolan_explain::Source;
use portolan_model::Family;
use portolan_model::catalog::{ApiServer, PerFamily};
use portolan_model::observed::Observed;
use portolan_proxy::packets::Configured;
use portolan_snapshot::Snapshot;

use super::{Warnings, World};
use crate::objects::Objects;

/// Reads a snapshot.
pub(super) fn world(
    file: &Path,
    flags: &portolan_proxy::Options,
    warnings: &mut Warnings,
) -> anyhow::Result<(Objects, World)> {
    if let Some(flag) = flags.given().next() {
        return Err(anyhow!("--snapshot has the configuration of its agent; leave out --{flag}"));
    }
    let snapshot = Snapshot::read(file)?;
    ensure!(!snapshot.node.name.is_empty(), "{} does not name its node", file.display());
    let configured = Configured::of_agent(&snapshot.state)?;
    let objects = Objects::of_snapshot(&snapshot);
    warnings.all("object-not-usable", &objects.faults);
    let api_server = ApiServer::from(&snapshot.api_server);
    let (catalog, faults) = objects.catalog(&snapshot.node.name, &configured, api_server);
    warnings.all("object-not-usable", &faults);
    let programmed = programmed(&snapshot)?;
    for unread in &snapshot.unread {
        warnings.add("kernel-not-read", &format!("cannot read {}: {}", unread.what, unread.reason));
    }
    if snapshot.programmed.is_empty() && snapshot.unread.is_empty() {
        warnings.add("nothing-programmed", "the kernel of the node had no rules for Services");
    }
    let addresses = snapshot.node.addresses.clone();
    let mut node = configured.node_view_of(&catalog, &snapshot.families(), addresses);
    // While another mode is to replace it, the active one is not the configured one.
    for (family, mode) in modes(&snapshot) {
        let in_mode = configured.in_mode(mode);
        let mut of_family = in_mode.node_view_of(&catalog, &[family], node.addresses.clone());
        if let Some(view) = node.families.get_mut(family) {
            *view = of_family.families.get_mut(family).take().unwrap_or_else(|| view.clone());
        }
    }
    Ok((objects, World { source: Source::Snapshot, catalog, node, programmed }))
}

/// Returns the modes in which families were programmed, as far as they are recorded: with what was programmed, or else in the
/// state.
fn modes(snapshot: &Snapshot) -> impl Iterator<Item = (Family, &str)> {
    Family::BOTH.into_iter().filter_map(|family| {
        let read = snapshot.programmed.iter().find(|read| read.family == family.name());
        let lane = || snapshot.state.families.iter().find(|lane| lane.family == family.name());
        let mode = read.and_then(|read| read.mode.as_deref());
        Some((family, mode.or_else(|| lane().map(|lane| lane.mode.as_str()))?))
    })
}

fn programmed(snapshot: &Snapshot) -> anyhow::Result<PerFamily<Option<Observed>>> {
    let mut programmed = PerFamily::default();
    for of_family in &snapshot.programmed {
        let observed = of_family.observed().map_err(|error| anyhow!("programmed: {error}"))?;
        let family = observed.family;
        *programmed.get_mut(family) = Some(observed);
    }
    Ok(programmed)
}

#[cfg(test)]
mod tests {
    use portolan_snapshot::programmed::Programmed;

    use super::*;

    #[test]
    fn the_mode_of_a_family_is_the_one_that_programmed_it() {
        let mut snapshot = Snapshot::default();
        let lanes = [("IPv4", "nftables"), ("IPv6", "iptables")];
        let lanes = lanes.map(|(family, mode)| serde_json::json!({"family": family, "mode": mode}));
        snapshot.state =
            serde_json::from_value(serde_json::json!({ "families": lanes })).expect("a state document");
        snapshot.programmed = vec![Programmed {
            family: "IPv4".into(),
            mode: Some("ipvs".into()),
            node_port_addresses: None,
            ports: Vec::new(),
        }];
        let found: Vec<_> = modes(&snapshot).collect();
        assert_eq!(found, [(Family::Ipv4, "ipvs"), (Family::Ipv6, "iptables")]);
    }
}
