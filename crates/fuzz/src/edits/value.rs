//! Edits of a JSON value.

use serde_json::{Value, json};

use super::MOST;
use crate::script::Script;

/// Bytes of the longest text that an edit inserts.
const LONGEST: usize = 64;

/// A value with more values in it, or with deeper ones, is edited no more. Parsers of JSON accept a depth of 128.
const MOST_VALUES: usize = 4_096;
const DEEPEST: usize = 50;

/// Edits values up to `most` times, until the script is over.
pub(crate) fn edit(value: &mut Value, script: &mut Script<'_>, most: usize) {
    for _ in 0..most.min(MOST) {
        if script.is_over() {
            break;
        }
        let pointers = pointers(value);
        let deepest = pointers.iter().map(|pointer| pointer.matches('/').count()).max();
        if pointers.len() > MOST_VALUES || deepest > Some(DEEPEST) {
            break;
        }
        let at = pointers[script.below(pointers.len())].clone();
        let other = &pointers[script.below(pointers.len())];
        match script.below(5) {
            0 => remove(value, &at),
            1 => {
                let copy = value.pointer(other).cloned().unwrap_or_default();
                put(value, &at, copy);
            }
            2 => {
                let odd = script.pick(&ODD)();
                put(value, &at, odd);
            }
            3 => put(value, &at, String::from_utf8_lossy(script.bytes(LONGEST)).into()),
            _ => repeat(value, &at, other),
        }
    }
}

/// Values that a reader may take for something else.
const ODD: [fn() -> Value; 24] = [
    || Value::Null,
    || json!(true),
    || json!(0),
    || json!(1),
    || json!(-1),
    || json!(65535),
    || json!(65536),
    || json!(u64::MAX),
    || json!(1.5),
    || json!(""),
    || json!("None"),
    || json!("0.0.0.0"),
    || json!("fd00:0::1"),
    || json!([]),
    || json!({}),
    || json!([null]),
    || json!(i64::MIN),
    || json!("-1"),
    || json!("::ffff:192.0.2.1"),
    || json!("1:2:3:4:5:6:192.0.2.1"),
    || json!("0.0.0.0/0"),
    || json!("2026-01-31T12:00:00.5+02:00"),
    || json!("1.5Gi"),
    || json!("a".repeat(300)),
];

/// Returns the JSON pointers of a value and of all values in it.
pub(crate) fn pointers(value: &Value) -> Vec<String> {
    let mut pointers = Vec::new();
    list(value, String::new(), &mut pointers);
    pointers
}

fn list(value: &Value, pointer: String, pointers: &mut Vec<String>) {
    match value {
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                list(element, format!("{pointer}/{index}"), pointers);
            }
        }
        Value::Object(members) => {
            for (name, member) in members {
                let name = name.replace('~', "~0").replace('/', "~1");
                list(member, format!("{pointer}/{name}"), pointers);
            }
        }
        _ => {}
    }
    pointers.push(pointer);
}

fn put(value: &mut Value, at: &str, new: Value) {
    if let Some(value) = value.pointer_mut(at) {
        *value = new;
    }
}

/// Removes a value from its object or array.
pub(crate) fn remove(value: &mut Value, at: &str) {
    let Some((parent, last)) = at.rsplit_once('/') else { return };
    match value.pointer_mut(parent) {
        Some(Value::Object(members)) => drop(members.remove(&last.replace("~1", "/").replace("~0", "~"))),
        Some(Value::Array(elements)) => {
            if let Some(index) = last.parse().ok().filter(|index| *index < elements.len()) {
                elements.remove(index);
            }
        }
        _ => {}
    }
}

/// Adds an element once more to its array, or a member to its object with the last name of `other`.
fn repeat(value: &mut Value, at: &str, other: &str) {
    let Some(copy) = value.pointer(at).cloned() else { return };
    let Some((parent, _)) = at.rsplit_once('/') else { return };
    match value.pointer_mut(parent) {
        Some(Value::Object(members)) => {
            let name = other.rsplit('/').next().unwrap_or_default();
            members.insert(name.replace("~1", "/").replace("~0", "~"), copy);
        }
        Some(Value::Array(elements)) => elements.push(copy),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::random;

    #[test]
    fn edits_change_values() {
        let value = json!({ "a": [1, { "b/c": "d" }], "e~f": { "g": null }, "h": ["i", "j"] });
        let edited = |seed| {
            let mut edited = value.clone();
            edit(&mut edited, &mut Script::new(&random(seed, 12)), 2);
            edited
        };
        let changed = (0..64).filter(|seed| edited(*seed) != value).count();
        assert!(changed > 50, "{changed}");
    }

    #[test]
    fn what_a_pointer_names_is_removed() {
        let mut value = json!({ "a": [1, { "b/c": "d" }], "e~f": 2 });
        assert!(pointers(&value).contains(&"/a/1/b~1c".to_owned()));
        for pointer in ["/a/1/b~1c", "/a/0", "/e~0f", "/a/7", "/x/y", ""] {
            remove(&mut value, pointer);
        }
        assert_eq!(value, json!({ "a": [{}] }));
    }
}
