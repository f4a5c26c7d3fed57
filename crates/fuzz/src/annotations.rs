//! Annotations of a Service that ask for a health check. Each complaint says what is wrong, and how it is mended.
//!
//! Choices are annotations and their values. Other inputs are a JSON object of annotations.

use std::collections::BTreeMap;

use portolan_prober::annotations::{PREFIX, TABLE, Wish, parse};

use crate::script::Script;

/// Valid values of each annotation, in the order of [`TABLE`].
const VALID: [[&str; 3]; TABLE.len()] = [
    ["tcp", "http /healthz", "https /a?b=c"],
    ["name", "80", "65535"],
    ["example.org", "a.b", "h"],
    ["200", "200-299", "200,301-302"],
    ["1s", "1m30s", "1h"],
    ["10ms", "1s", "500ms"],
    ["1", "5", "100"],
    ["1", "5", "100"],
    ["0s", "1m", "1h"],
    ["never", "0%", "50%"],
];
/// Values that are not valid, and beginnings of such.
const ODD: [&str; 12] =
    ["", " ", "0", "65536", "http", "http x", "1h1s", "-1s", "101", "600", "100%", "[::1]:80"];
/// The most annotations of one input.
const MOST: usize = 12;
/// Bytes of the longest value whose bytes are all chosen.
const LONGEST: usize = 24;

/// Reads the annotations.
pub(crate) fn run(bytes: &[u8]) {
    let annotations = match Script::of(bytes) {
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
        // Without the first annotation, the others have no effect.
        let index = if annotations.is_empty() { 0 } else { script.below(TABLE.len()) };
        let (mut name, mut value) = (TABLE[index].name.to_owned(), script.pick(&VALID[index]).to_owned());
        match script.below(16) {
            0 => script.pick(&ODD).clone_into(&mut value),
            1 => value.push_str(script.pick(&ODD)),
            2 => value.push_str(&String::from_utf8_lossy(script.bytes(LONGEST))),
            3 => name = format!("{PREFIX}{}", String::from_utf8_lossy(script.bytes(LONGEST))),
            _ => {}
        }
        annotations.insert(name, value);
    }
    annotations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::random;

    #[test]
    fn choices_lead_to_health_checks_and_to_complaints() {
        let parsed = |seed| parse(Some(&annotations(&mut Script::new(&random(seed, 16))))).wish;
        let wishes: Vec<Wish> = (0..512).map(parsed).collect();
        let count = |is_it: fn(&Wish) -> bool| wishes.iter().filter(|wish| is_it(wish)).count();
        assert!(count(|wish| matches!(wish, Wish::Valid(_))) > 8);
        assert!(count(|wish| *wish == Wish::Invalid) > 8);
    }
}
