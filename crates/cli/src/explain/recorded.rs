//! A question about a snapshot: its objects, the configuration of its agent, and what was programmed.

use std::path::Path;

use anyhow::anyhow;
use portolan_doctor::Code;
use portolan_explain::{Note, Source};
use portolan_model::Family;
use portolan_model::catalog::PerFamily;
use portolan_model::observed::Observed;
use portolan_proxy::packets::{Configured, nothing};
use portolan_snapshot::{Snapshot, rules};
use serde_json::Value;

use super::{Warnings, World};
use crate::objects::Objects;
use crate::recorded::Recorded;

/// The findings of the doctor about what stops, redirects or does not translate packets.
const ABOUT_PACKETS: [Code; 10] = [
    Code::ForwardingOff,
    Code::ReversePathStrict,
    Code::ForwardDropped,
    Code::InputDropped,
    Code::OutputDropped,
    Code::PreroutingDropped,
    Code::PostroutingDropped,
    Code::NotTracked,
    Code::ServiceAddressTaken,
    Code::NodePortTaken,
];

/// A snapshot, as a question about a packet needs it.
pub(super) struct Replay {
    pub(super) objects: Objects,
    pub(super) world: World,
    /// What the answer leaves out.
    pub(super) notes: Vec<Note>,
}

/// Reads a snapshot.
pub(super) fn replay(
    file: &Path,
    flags: &portolan_proxy::ProxyOptions,
    warnings: &mut Warnings,
) -> anyhow::Result<Replay> {
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
    if snapshot.programmed.is_empty() && recorded.unread_programmed().is_empty() {
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
    let notes = notes(snapshot);
    let rules = snapshot.rules.as_deref().map(rules::ruleset).transpose();
    let rules = rules.map_err(|error| anyhow!("{}: rules: {error}", file.display()))?;
    let is_read = recorded.unread_programmed().is_empty();
    let Recorded { objects, programmed, snapshot } = recorded;
    let programmed = if is_read { with_nothing(programmed, &snapshot.families()) } else { programmed };
    Ok(Replay { objects, world: World { source: Source::Snapshot, catalog, node, programmed, rules }, notes })
}

/// Returns what was programmed, also for families of which the kernel had nothing: a snapshot leaves these out.
fn with_nothing(
    mut programmed: PerFamily<Option<Observed>>,
    families: &[Family],
) -> PerFamily<Option<Observed>> {
    for &family in families {
        programmed.get_mut(family).get_or_insert_with(|| nothing(family));
    }
    programmed
}

/// Returns what of the node is not looked at, and what the doctor found there about it.
fn notes(snapshot: &Snapshot) -> Vec<Note> {
    let note = |code: &str, text: String| Note { code: code.to_owned(), text };
    let left_out = "connections, routes and reverse-path filters of that node were not looked at";
    let mut notes = if snapshot.rules.is_some() {
        vec![note("connections-not-read", left_out.to_owned())]
    } else {
        vec![note("foreign-rules-not-read", format!("rules of other programs, {left_out}"))]
    };
    let findings = snapshot.doctor.get("findings").and_then(Value::as_array);
    notes.extend(findings.into_iter().flatten().filter_map(|finding| {
        let text = |field: &str| finding.get(field).and_then(Value::as_str);
        let (code, title) = (text("code")?, text("title")?);
        let is_about_packets = ABOUT_PACKETS.iter().any(|known| known.text() == code);
        let matters = is_about_packets && text("severity") != Some("note");
        matters.then(|| note("found-by-doctor", format!("the doctor found there: {code}: {title}")))
    }));
    notes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_family_of_which_the_kernel_had_nothing() {
        let read = Observed { node_port_addresses: Some(Vec::new()), ..nothing(Family::Ipv4) };
        let only_ipv4 = || PerFamily { ipv4: Some(read.clone()), ipv6: None };
        let both = with_nothing(only_ipv4(), &Family::BOTH);
        assert_eq!((both.ipv4.as_ref(), both.ipv6), (Some(&read), Some(nothing(Family::Ipv6))));
        assert_eq!(with_nothing(only_ipv4(), &[Family::Ipv4]).ipv6, None, "it was not served");
    }

    #[test]
    fn what_the_doctor_found_about_packets_is_a_note() {
        let finding = |severity: &str, code: Code| {
            let title = format!("the title of {code}");
            json!({"severity": severity, "code": code.text(), "title": title})
        };
        let findings = [
            finding("error", Code::ForwardDropped),
            finding("note", Code::ReversePathStrict),
            finding("error", Code::ClockSkewed),
        ];
        let with = Snapshot { doctor: json!({ "findings": findings }), ..Snapshot::default() };
        let of = |snapshot: &Snapshot| {
            let notes = notes(snapshot).into_iter();
            notes.map(|note| (note.code, note.text)).collect::<Vec<_>>()
        };
        let found = of(&with);
        let [(first, _), (second, text)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((first.as_str(), second.as_str()), ("foreign-rules-not-read", "found-by-doctor"));
        assert_eq!(text, "the doctor found there: forward-dropped: the title of forward-dropped");
        assert_eq!(of(&Snapshot::default()).len(), 1, "without the report of the doctor");
        let read = of(&Snapshot { rules: Some(Vec::new()), ..Snapshot::default() });
        assert_eq!(read[0].0, "connections-not-read");
    }
}
