//! A question about a snapshot: its objects, the configuration of its agent, and what was programmed.

use std::path::Path;

use anyhow::{anyhow, ensure};
use portolan_explain::Source;
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
    let node = configured.node_view_of(&catalog, &snapshot.families(), addresses);
    Ok((objects, World { source: Source::Snapshot, catalog, node, programmed }))
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
