//! Files of manifests in YAML and JSON. Each object and each fault has its place in the file, and a YAML document that cannot be
//! read hides no other one.
//!
//! Choices are documents, some of them edited. Other inputs are a file.

use portolan_controllers::manifests::{Read, parse};

use crate::objects::{self, RESOURCES};
use crate::script::Script;
use crate::{configuration, edits};

/// The most documents of one input.
const MOST: usize = 8;
/// Bytes that choose edits of a document.
const EDITS: usize = 24;

/// Reads the file.
pub(crate) fn run(bytes: &[u8]) {
    let Some(mut script) = Script::of(bytes) else {
        check(bytes, &parse("file", bytes));
        return;
    };
    let count = 1 + script.below(MOST);
    let (text, whole) = documents(count, &mut script);
    let read = parse("file", text.as_bytes());
    check(text.as_bytes(), &read);
    assert!(read.objects.len() >= whole, "{whole} documents are whole: {:?}\n{text}", read.faults);
}

/// Returns documents, and the number of those that no edit has changed.
fn documents(count: usize, script: &mut Script<'_>) -> (String, usize) {
    let (mut text, mut whole) = (String::new(), 0);
    for _ in 0..count {
        let mut document = match script.below(3) {
            0 => configuration::WHOLE.to_owned(),
            1 => objects::object(script.pick(&RESOURCES), script).to_string(),
            _ => format!("{:#}", objects::object(script.pick(&RESOURCES), script)),
        };
        if script.flag() {
            document = edits::lines(&document, &mut Script::new(script.bytes(EDITS)));
        } else {
            whole += 1;
        }
        text.push_str("---\n");
        text.push_str(&document);
        text.push('\n');
    }
    (text, whole)
}

fn check(content: &[u8], read: &Read) {
    // A text that is not UTF-8 has a fault at line 0.
    let lines = content.split(|byte| *byte == b'\n').count();
    let places = read.objects.iter().map(|declared| declared.place.as_str());
    for text in places.chain(read.faults.iter().map(String::as_str)) {
        let line = text.strip_prefix("file:").and_then(|place| place.split([' ', ':']).next()?.parse().ok());
        assert!(line.is_some_and(|line: usize| line <= lines), "{text}, of {lines} lines");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_without_edits_are_objects() {
        for seed in 0..32 {
            let bytes = crate::script::random(seed, 256);
            let (text, whole) = documents(MOST, &mut Script::new(&bytes[1..]));
            assert!(parse("file", text.as_bytes()).objects.len() >= whole && whole > 0);
        }
    }
}
