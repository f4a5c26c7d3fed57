//! The text of a snapshot: what it is of, and a line for each record of the history.

use std::fmt::Write as _;

use portolan_recorder::{Change, Commit, Entry, Note, ObjectEvent, Size, Verb};

use crate::{Recorded, Snapshot, Unread};

/// Returns the lines of a snapshot. Names of objects and texts of the kernel in them may have control characters, which a
/// terminal would obey.
pub fn lines(snapshot: &Snapshot) -> Vec<String> {
    let mut lines = head(snapshot);
    let history = &snapshot.history;
    lines.push(String::new());
    let dropped = history.records.first().map_or(history.total, |first| first.sequence);
    match (history.limit, history.records.len()) {
        (0, _) => lines.push("Nothing is recorded (portolan.recorderBytes is 0).".to_owned()),
        (_, count) => {
            lines.push(format!("The last {count} records; {dropped} older ones were dropped:"));
        }
    }
    lines.extend(history.records.iter().map(line));
    lines
}

fn head(snapshot: &Snapshot) -> Vec<String> {
    let Snapshot { time, state, node, kernel, .. } = snapshot;
    let sync = if state.in_sync { "in sync" } else { "NOT IN SYNC" };
    let mut lines = vec![
        format!("Snapshot of {time}: node {}, mode {}, {sync}", node.name, state.mode),
        format!(
            "agent {} since {}; kernel {} {}",
            state.agent.version, state.agent.started.at, kernel.release, kernel.machine
        ),
        format!(
            "{} Services, {} EndpointSlices; programmed Service ports: {}",
            state.objects.services,
            state.objects.endpoint_slices,
            programmed(snapshot)
        ),
    ];
    if let Some(chains) = &snapshot.rules {
        let rules: usize = chains.iter().map(|chain| chain.rules.len()).sum();
        lines.push(format!("firewall rules of other programs: {rules} in {} chains", chains.len()));
    }
    lines.extend(state.problems.iter().map(|problem| format!("problem: {}", problem.text)));
    let findings = snapshot.doctor.get("findings").and_then(serde_json::Value::as_array);
    for finding in findings.into_iter().flatten() {
        let text = |name| finding.get(name).and_then(serde_json::Value::as_str).unwrap_or_default();
        lines.push(format!("doctor: {} {}: {}", text("severity"), text("code"), text("title")));
    }
    let unread = snapshot.unread.iter();
    lines.extend(unread.map(|Unread { what, reason }| format!("not read: {what}: {reason}")));
    lines
}

fn programmed(snapshot: &Snapshot) -> String {
    let families = snapshot.programmed.iter();
    let texts: Vec<String> = families.map(|of| format!("{} {}", of.ports.len(), of.family)).collect();
    if texts.is_empty() { "none read".to_owned() } else { texts.join(", ") }
}

/// The column of messages of a commit, below its text.
const MESSAGES: usize = 43;

fn add(text: &mut String, more: std::fmt::Arguments<'_>) {
    // A write to a String does not fail.
    let _ = text.write_fmt(more);
}

/// Returns the line of a record.
fn line(record: &Recorded) -> String {
    let what = match &record.entry {
        Entry::Object(event) => object(event),
        Entry::Change(change) => self::change(change),
        Entry::Commit(commit) => self::commit(commit),
        Entry::Drift(drift) => {
            format!("drift   {}: another program may have changed the rules", drift.family)
        }
        Entry::Note(Note { about, text }) => format!("note    {about}: {text}"),
    };
    format!("{:<27} {:>6} {what}", record.time, record.sequence)
}

fn object(event: &ObjectEvent) -> String {
    let ObjectEvent { verb, kind, namespace, name, resource_version, changed, faults, kept } = event;
    let separator = if namespace.is_empty() { "" } else { "/" };
    let mut text = format!("object  {kind} {namespace}{separator}{name}");
    match verb {
        Verb::Deleted => text.push_str(" deleted"),
        Verb::Applied => add(&mut text, format_args!(" version {resource_version}")),
    }
    match (kept.is_empty(), changed) {
        (false, _) => add(&mut text, format_args!(": {kept}")),
        (true, false) => text.push_str(", nothing changed"),
        (true, true) => {}
    }
    if !faults.is_empty() {
        add(&mut text, format_args!("; not usable: {}", faults.join(", ")));
    }
    text
}

fn change(change: &Change) -> String {
    let Change { family, service_port, protocol, before, after, difference } = change;
    let size = |size: &Option<Size>| match size {
        None => "nothing".to_owned(),
        Some(Size { frontends, cluster, local }) => {
            format!("{frontends} frontends, {cluster} cluster and {local} local endpoints")
        }
    };
    let (before, after) = (size(before), size(after));
    let sizes = if before == after { after } else { format!("{before} -> {after}") };
    format!("change  {family} {service_port} ({protocol}): {sizes}; {difference}")
}

fn commit(commit: &Commit) -> String {
    let Commit { family, mode, step, elements, objects, bytes, .. } = commit;
    let mut text = format!("commit  {family} {mode}");
    if step != "commit" {
        add(&mut text, format_args!(" {step}"));
    }
    if let Some(reason) = &commit.reason {
        add(&mut text, format_args!(", everything compared ({reason})"));
    }
    let milliseconds = |micros: u64| format!("{}.{:03} ms", micros / 1_000, micros % 1_000);
    let (duration, kernel) = (milliseconds(commit.duration_us), milliseconds(commit.kernel_us));
    match &commit.error {
        Some(error) => add(&mut text, format_args!(", FAILED after {duration}: {error}")),
        None => add(
            &mut text,
            format_args!(
                ": {elements} elements, {objects} objects, {bytes} bytes in {duration}, kernel {kernel}"
            ),
        ),
    }
    if commit.repaired {
        text.push_str("; a change by another program was repaired");
    }
    if commit.verified {
        text.push_str("; the kernel had everything");
    }
    if commit.refused > 0 {
        add(&mut text, format_args!("; {} Service ports not programmed", commit.refused));
    }
    if commit.changed > 0 {
        let more = if commit.changed > commit.service_ports.len() as u64 { ", ..." } else { "" };
        add(
            &mut text,
            format_args!("; {} changed: {}{more}", commit.changed, commit.service_ports.join(", ")),
        );
    }
    for message in &commit.messages {
        add(&mut text, format_args!("\n{:MESSAGES$}{message}", ""));
    }
    text
}

#[cfg(test)]
mod tests {
    use portolan_recorder::Drift;
    use portolan_status::{Agent, AgentState, Moment, Objects, Problem};
    use serde_json::json;

    use super::*;
    use crate::{History, Kernel, Node};

    fn entries() -> Vec<Entry> {
        let commit = Commit {
            family: "IPv4".into(),
            mode: "nftables".into(),
            step: "commit".into(),
            changed: 5,
            service_ports: vec!["shop/web:http".into(), "shop/cart".into()],
            elements: 3,
            bytes: 312,
            messages: vec![
                "add element ip portolan endpoints { 0x1 . 0x0 : 10.0.0.1 . 80 }".into(),
                "...".into(),
            ],
            duration_us: 1_204,
            kernel_us: 53,
            ..Commit::default()
        };
        vec![
            Entry::Note(Note { about: "start".into(), text: "2 Services are known".into() }),
            Entry::Object(ObjectEvent {
                kind: "Service".into(),
                namespace: "shop".into(),
                name: "web".into(),
                resource_version: "17".into(),
                changed: true,
                faults: vec!["spec.ports[1].port".into()],
                kept: "cluster IPs 10.96.0.80".into(),
                ..ObjectEvent::default()
            }),
            Entry::Object(ObjectEvent {
                verb: Verb::Deleted,
                kind: "ServiceCIDR".into(),
                name: "old".into(),
                changed: true,
                ..ObjectEvent::default()
            }),
            Entry::Change(Change {
                family: "IPv4".into(),
                service_port: "shop/web:http".into(),
                protocol: "TCP".into(),
                before: None,
                after: Some(Size { frontends: 2, cluster: 3, local: 1 }),
                difference: "+10.0.0.1:80".into(),
            }),
            Entry::Commit(commit.clone()),
            Entry::Drift(Drift { family: "IPv4".into() }),
            Entry::Commit(Commit {
                reason: Some("drift".into()),
                full: true,
                repaired: true,
                refused: 1,
                changed: 0,
                ..commit.clone()
            }),
            Entry::Commit(Commit {
                step: "replacement".into(),
                messages: Vec::new(),
                error: Some("the kernel refused it: EINVAL".into()),
                changed: 0,
                ..commit
            }),
        ]
    }

    #[test]
    fn the_text() {
        let record = |(entry, sequence)| Recorded { sequence, time: "2026-01-31T12:00:00.5Z".into(), entry };
        let records = entries().into_iter().zip(40..).map(record).collect();
        let snapshot = Snapshot {
            time: "2026-01-31T12:00:01Z".into(),
            state: AgentState {
                agent: Agent {
                    version: "v1".into(),
                    started: Moment { at: "2026-01-31T11:00:00Z".into(), age_seconds: 3_601.0 },
                    ..Agent::default()
                },
                mode: "nftables".into(),
                objects: Objects { services: 2, endpoint_slices: 3, ..Objects::default() },
                problems: vec![Problem { code: "x".into(), text: "a watch is silent".into() }],
                ..AgentState::default()
            },
            node: Node { name: "node-1".into(), ..Node::default() },
            kernel: Kernel { release: "6.1.0".into(), machine: "x86_64".into(), ..Kernel::default() },
            history: History { limit: 1, total: 48, records },
            doctor: json!({"findings": [{"severity": "error", "code": "forwarding-off", "title": "off"}]}),
            unread: vec![Unread { what: "IPv6 rules".into(), reason: "not permitted".into() }],
            ..Snapshot::default()
        };
        insta::assert_snapshot!(lines(&snapshot).join("\n"));
        let off = Snapshot { history: History::default(), ..snapshot };
        assert!(lines(&off).contains(&"Nothing is recorded (portolan.recorderBytes is 0).".to_owned()));
    }
}
