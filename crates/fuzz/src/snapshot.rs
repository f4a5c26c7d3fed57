//! Snapshots of a node. What was read is written and read again as the same, and what it says of the kernel is described.
//!
//! Choices edit a snapshot. Other inputs are a file, or its JSON.

use std::time::Duration;

use portolan_firewall::{Ruleset, saved};
use portolan_iptables::IptablesOptions;
use portolan_model::Family;
use portolan_nftables::fuzzing::OTHER;
use portolan_recorder::{Change, Commit, Entry, Note, Record, Size};
use portolan_schema::Resource;
use portolan_snapshot::programmed::Programmed;
use portolan_snapshot::{FORMAT, History, Recorded, Snapshot, VERSION, pack, rules, text, unpack};

use serde_json::Value;

use crate::script::Script;
use crate::{edits, firewall, objects, worlds};

/// The most odd values in a snapshot.
const EDITS: usize = 8;

/// Chains of other programs in a snapshot.
const CHAINS: usize = 4;

/// Reads the snapshot.
pub(crate) fn run(bytes: &[u8]) {
    let packed = if let Some(mut script) = Script::of(bytes) {
        let mut json = serde_json::to_value(snapshot(&mut script)).expect("a snapshot can be written");
        edits::value(&mut json, &mut script, EDITS);
        serde_json::from_value::<Snapshot>(json).map(|snapshot| packed(&snapshot)).unwrap_or_default()
    } else if let Ok(snapshot) = serde_json::from_slice::<Snapshot>(bytes) {
        packed(&snapshot)
    } else {
        bytes.to_vec()
    };
    match unpack(&packed) {
        Ok(snapshot) => check(&snapshot),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn packed(snapshot: &Snapshot) -> Vec<u8> {
    let mut packed = Vec::new();
    pack(snapshot, &mut packed).expect("memory can be written");
    packed
}

fn check(snapshot: &Snapshot) {
    let again = unpack(&packed(snapshot)).expect("a snapshot that was read");
    let json = serde_json::to_value(snapshot).expect("a snapshot can be written");
    // A number with a fraction, which no field of its own has, may differ in its last bit.
    assert!(again == *snapshot || has_fraction(&json));
    for programmed in &snapshot.programmed {
        match programmed.observed() {
            Ok(observed) => observed.difference(&[]).iter().for_each(|difference| {
                assert!(!difference.to_string().is_empty());
            }),
            Err(reason) => assert!(!reason.is_empty()),
        }
    }
    if let Some(chains) = &snapshot.rules
        && let Ok(ruleset) = rules::ruleset(chains)
    {
        let again = rules::recorded(&ruleset).map(|chains| rules::ruleset(&chains));
        assert!(again.is_ok_and(|again| again.is_ok()));
    }
    assert!(!text::lines(snapshot).is_empty());
    snapshot.families();
}

fn has_fraction(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(elements) => elements.iter().any(has_fraction),
        Value::Object(members) => members.values().any(has_fraction),
        _ => false,
    }
}

/// Returns a snapshot of a random world.
fn snapshot(script: &mut Script<'_>) -> Snapshot {
    let table = worlds::table(script);
    let family = table.family();
    let save = portolan_iptables::fuzzing::save(&table, IptablesOptions::default());
    let observed = portolan_iptables::fuzzing::observe(&table, &save).expect("rules of a table");
    let programmed = Programmed { mode: Some("iptables".to_owned()), ..Programmed::from(&observed) };
    let mut others = saved::chains(family, &worlds::other_rules(&table));
    others.extend(firewall::native_chains(OTHER));
    others.retain(|chain| !chain.rules.is_empty());
    let first = script.below_by_length(others.len());
    let chains = others.into_iter().cycle().skip(first).take(CHAINS).collect();
    let records = entries().into_iter().zip(0..).map(|(entry, sequence)| {
        Recorded::from(Record { sequence, at: Duration::from_secs(sequence), entry })
    });
    let resources = [Resource::Service, Resource::EndpointSlice, Resource::Node];
    Snapshot {
        format: FORMAT.to_owned(),
        version: VERSION,
        time: "2026-01-31T12:00:00Z".to_owned(),
        objects: resources.map(|resource| objects::edited(resource, script)).to_vec(),
        history: History { limit: 4096, total: 4, records: records.collect() },
        programmed: vec![programmed],
        rules: rules::recorded(&Ruleset::new(chains)).ok(),
        ..Snapshot::default()
    }
}

fn entries() -> Vec<Entry> {
    let size = Size { frontends: 1, cluster: 2, local: 0 };
    let family = Family::Ipv4.name().to_owned();
    let change = Change {
        family: family.clone(),
        service_port: "default/a:b".to_owned(),
        protocol: "TCP".to_owned(),
        before: None,
        after: Some(size),
        difference: String::new(),
    };
    let commit = Commit { family, mode: "iptables".to_owned(), changed: 1, ..Commit::default() };
    let note = Note { about: "agent".to_owned(), text: "started".to_owned() };
    vec![Entry::Change(change), Entry::Commit(commit), Entry::Note(note)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_without_edits_says_what_is_programmed() {
        let mut ports = 0;
        for seed in 0..16 {
            let snapshot = snapshot(&mut Script::new(&[seed, 0, 0, 0, 0, 0, 0, seed, 3]));
            check(&snapshot);
            ports += snapshot.programmed[0].observed().expect("it was observed").ports.len();
            assert!(snapshot.rules.is_some_and(|chains| !chains.is_empty()));
        }
        assert!(ports > 8, "{ports}");
    }
}
