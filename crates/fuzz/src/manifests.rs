//! Files of manifests in YAML and JSON. Each object and each fault has its place in the file, and a YAML document that cannot be
//! read hides no other one.
//!
//! Choices are documents, some of them edited. Other inputs are a file.

use portolan_controllers::manifests::{Read, parse};
use serde_json::{Value, json};

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

/// Returns documents, and the number of the objects in those that no edit has changed.
fn documents(count: usize, script: &mut Script<'_>) -> (String, usize) {
    let (mut text, mut whole) = (String::new(), 0);
    for _ in 0..count {
        let (mut document, objects) = match script.below(4) {
            0 => (configuration::WHOLE.to_owned(), 1),
            1 => (objects::object(script.pick(&RESOURCES), script).to_string(), 1),
            2 => (format!("{:#}", objects::object(script.pick(&RESOURCES), script)), 1),
            _ => list(script),
        };
        if script.flag() {
            document = edits::lines(&document, &mut Script::new(script.bytes(EDITS)));
        } else {
            whole += objects;
        }
        text.push_str("---\n");
        text.push_str(&document);
        text.push('\n');
    }
    (text, whole)
}

/// Returns a list, and the number of its objects.
fn list(script: &mut Script<'_>) -> (String, usize) {
    let resource = script.pick(&RESOURCES);
    let items: Vec<Value> = (0..script.below(3)).map(|_| objects::object(resource, script)).collect();
    let (count, info) = (items.len(), resource.info());
    let mut list =
        json!({ "apiVersion": info.api_version, "kind": format!("{}List", info.kind), "items": items });
    match script.below(3) {
        0 => list["kind"] = json!("List"),
        // A typed list may leave out the kind of its items.
        1 => {
            for item in list["items"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
                item.remove("kind");
                item.remove("apiVersion");
            }
        }
        _ => {}
    }
    (format!("{list:#}"), count)
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
        let mut wholes = 0;
        for seed in 0..32 {
            let bytes = crate::script::random(seed, 256);
            let (text, whole) = documents(MOST, &mut Script::new(&bytes[1..]));
            let read = parse("file", text.as_bytes());
            assert!(read.objects.len() >= whole, "{whole}: {:?}\n{text}", read.faults);
            wholes += whole;
        }
        assert!(wholes > 64, "{wholes}");
    }
}
