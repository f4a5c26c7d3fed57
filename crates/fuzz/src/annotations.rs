//! Annotations of a Service that ask for a health check. Each complaint says what is wrong, and how it is mended.
//!
//! Inputs that begin with a byte 1 choose values of known annotations. The others are a JSON object of annotations.

use std::collections::BTreeMap;

use portolan_prober::annotations::{PREFIX, TABLE, Wish, parse};

use crate::script::Script;

/// Values of which each is valid for some annotation, and words to begin with.
const VALUES: [&str; 24] = [
    "tcp",
    "http",
    "http /healthz",
    "https /a?b=c",
    "name",
    "80",
    "0",
    "65536",
    "200",
    "200-299",
    "200,301-302",
    "1s",
    "10ms",
    "1h",
    "1m30s",
    "1h1s",
    "5",
    "1",
    "101",
    "50%",
    "example.org",
    "[::1]:80",
    "",
    " ",
];
/// The most annotations of one input.
const MOST: usize = 12;
/// Bytes of the longest value whose bytes are all chosen.
const LONGEST: usize = 24;

/// Reads the annotations.
pub(crate) fn run(bytes: &[u8]) {
    let annotations = match Script::after(1, bytes) {
        Some(mut script) => annotations(&mut script),
        None => serde_json::from_slice(bytes).unwrap_or_default(),
    };
    let parsed = parse(Some(&annotations));
    for complaint in &parsed.complaints {
        assert!(!complaint.problem.is_empty() && !complaint.mend.is_empty(), "{complaint}");
    }
    assert!(parsed.wish != Wish::Invalid || !parsed.complaints.is_empty());
}

fn annotations(script: &mut Script<'_>) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::new();
    while !script.is_over() && annotations.len() < MOST {
        let name = match script.below(8) {
            0 => format!("{PREFIX}{}", String::from_utf8_lossy(script.bytes(LONGEST))),
            _ => TABLE[script.below(TABLE.len())].name.to_owned(),
        };
        let mut value = script.pick(&VALUES).to_owned();
        match script.below(4) {
            0 => value.push_str(script.pick(&VALUES)),
            1 => value.push_str(&String::from_utf8_lossy(script.bytes(LONGEST))),
            _ => {}
        }
        annotations.insert(name, value);
    }
    annotations
}
