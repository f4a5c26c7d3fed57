//! A question about a snapshot: its objects, the configuration of its agent, and what was programmed.

use std::path::Path;

use anyhow::anyhow;
use portolan_explain::Source;
use portolan_model::Family;
use portolan_proxy::packets::Configured;

use super::{Warnings, World};
use crate::objects::Objects;
use crate::recorded::Recorded;

/// Reads a snapshot.
pub(super) fn world(
    file: &Path,
    flags: &portolan_proxy::ProxyOptions,
    warnings: &mut Warnings,
) -> anyhow::Result<(Objects, World)> {
    if let Some(flag) = flags.given().next() {
        return Err(anyhow!("--snapshot has the configuration of its agent; leave out --{flag}"));
    }
    let recorded = Recorded::read(file)?;
    let snapshot = &recorded.snapshot;
    let configured = Configured::of_agent(&snapshot.state)?;
    warnings.all("object-not-usable", &recorded.objects.faults);
    let (catalog, faults) = recorded.catalog(&configured);
    warnings.all("object-not-usable", &faults);
    warnings.all("kernel-not-read", &recorded.unread());
    if snapshot.programmed.is_empty() && snapshot.unread.is_empty() {
        warnings.add("nothing-programmed", "the kernel of the node had no rules for Services");
    }
    let addresses = snapshot.node.addresses.clone();
    let mut node = configured.node_view_of(&catalog, &snapshot.families(), addresses);
    // While another mode is to replace it, the active one is not the configured one.
    for family in Family::BOTH {
        let Some(mode) = recorded.mode(family) else { continue };
        let in_mode = configured.in_mode(mode);
        let mut of_family = in_mode.node_view_of(&catalog, &[family], node.addresses.clone());
        if let Some(view) = node.families.get_mut(family) {
            *view = of_family.families.get_mut(family).take().unwrap_or_else(|| view.clone());
        }
    }
    let Recorded { objects, programmed, .. } = recorded;
    Ok((objects, World { source: Source::Snapshot, catalog, node, programmed }))
}
