//! A plan about a snapshot: what a start with other flags would change against what was programmed on its node.
//!
//! Only what a snapshot holds is compared: Service ports and node ports. Kernel settings and lines of rules are not in it.

use std::path::Path;

use anyhow::ensure;
use portolan_model::Family;
use portolan_plan::{FamilyPlan, Present, Report, VERSION};
use portolan_proxy::packets::Configured;

use super::{Notes, Plan, PlanOptions, Wanted};
use crate::recorded::Recorded;

/// Returns the report.
pub(super) fn report(options: &PlanOptions, file: &Path, mut notes: Notes) -> anyhow::Result<Report> {
    let recorded = Recorded::read(file)?;
    let configured = Configured::of_agent_with(&recorded.snapshot.state, &options.proxy)?;
    notes.all("configuration", configured.notes());
    notes.all("kernel-not-read", &recorded.unread());
    let wanted = wanted(&recorded, &configured, &mut notes);
    let plan = Plan { options, configured: &configured, wanted: &wanted };
    let (mut families, mut removed) = (Vec::new(), Vec::new());
    for family in plan.families() {
        let observed = recorded.programmed.get(family).as_ref();
        ensure!(
            observed.is_some() || recorded.unread_programmed().is_empty(),
            "the snapshot does not have what was programmed: {}; take it again as root on the node",
            recorded.unread_programmed().join("; ")
        );
        if let Some(observed) = observed {
            notes.endpoints(observed);
        }
        let mode = recorded.mode(family).filter(|_| observed.is_some());
        let present = observed.map_or(Present::Nothing, Present::Kernel);
        let of_family = plan.family(family, present, &mut notes);
        families.push(FamilyPlan { present: mode.map(|mode| format!("the {mode} mode")), ..of_family });
        removed.extend(replaced(mode, &wanted.view.mode, family));
    }
    let changes = !removed.is_empty() || families.iter().any(|family| !family.is_empty());
    Ok(Report {
        version: VERSION,
        node: wanted.view.name.clone(),
        mode: wanted.view.mode.clone(),
        against: options.against(),
        changes,
        families,
        settings: Vec::new(),
        removed,
        notes: notes.0,
    })
}

/// Returns what an agent with this configuration would program on the node of the snapshot.
fn wanted(recorded: &Recorded, configured: &Configured, notes: &mut Notes) -> Wanted {
    notes.all("object-not-usable", &recorded.objects.faults);
    let (catalog, faults) = recorded.catalog(configured);
    notes.all("object-not-usable", &faults);
    let snapshot = &recorded.snapshot;
    notes.mode(configured);
    if catalog.node().is_none() {
        notes.no_node(&snapshot.node.name);
    }
    notes.conflicts(&catalog);
    let view = configured.node_view_of(&catalog, &snapshot.families(), snapshot.node.addresses.clone());
    let node = configured.this_node(&catalog, view.addresses.clone());
    Wanted { catalog, view, node }
}

/// Returns what is removed if another mode programs a family.
fn replaced(former: Option<&str>, mode: &str, family: Family) -> Option<String> {
    let former = former.filter(|former| *former != mode)?;
    Some(format!("{family} rules of the {former} mode"))
}
