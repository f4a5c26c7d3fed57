//! Short, total accessors for decoded JSON: a missing or differently shaped field reads as absent.

pub mod bounded;
mod map;
mod value;

pub use crate::json_value as json;
pub use map::{Entry, Map, Named};
pub use serde_json::Number;
pub use value::{Key, List, Text, Value};

/// What the macro [`json`] is made of.
#[doc(hidden)]
pub mod from_text {
    pub use serde_json::json;
}

/// A decoded JSON object.
pub type Object = Map;

/// Name of a JSON value's type, for messages.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number with a fraction",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

/// Most objects and lists within each other. The JSON decoder takes little more, so that whatever is within this limit
/// can be encoded, stored and decoded again.
pub const MAX_DEPTH: usize = 120;

/// Whether no more than `allowed` objects and lists are within each other; counts the values looked at.
pub fn fits_depth(value: &Value, allowed: usize, seen: &mut usize) -> bool {
    *seen += 1;
    match value {
        Value::Object(members) => {
            allowed > 0 && members.values().all(|value| fits_depth(value, allowed - 1, seen))
        }
        Value::Array(elements) => {
            allowed > 0 && elements.iter().all(|value| fits_depth(value, allowed - 1, seen))
        }
        _ => true,
    }
}

/// The object at `key`.
pub fn object<'a>(map: &'a Object, key: &str) -> Option<&'a Object> {
    map.get(key).and_then(Value::as_object)
}

/// The object at `key`, made if nothing is there; `None` where something else is there.
pub fn object_mut<'a>(map: &'a mut Object, key: &str) -> Option<&'a mut Object> {
    map.entry(key).or_insert_with(|| Value::Object(Object::new())).as_object_mut()
}

/// The text at `key`; absent and empty are the same in this API.
pub fn text<'a>(map: &'a Object, key: &str) -> Option<&'a str> {
    map.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// The integer at `key`; absent and 0 are the same in this API.
pub fn integer(map: &Object, key: &str) -> Option<i64> {
    map.get(key).and_then(Value::as_i64).filter(|number| *number != 0)
}

/// The elements of the list at `key`; empty if absent.
pub fn list<'a>(map: &'a Object, key: &str) -> &'a [Value] {
    map.get(key).and_then(Value::as_array).map_or(&[], |list| list.as_slice())
}

/// The objects in the list at `key`, for change; other elements are skipped.
pub fn objects_mut<'a>(map: &'a mut Object, key: &str) -> impl Iterator<Item = &'a mut Object> {
    map.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

/// The texts in the list at `key`.
pub fn texts<'a>(map: &'a Object, key: &str) -> impl Iterator<Item = &'a str> {
    list(map, key).iter().filter_map(Value::as_str)
}

/// Sets `key` where it is absent, null or an empty text.
pub fn default_text(map: &mut Object, key: &str, value: &str) {
    let unset = match map.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    if unset {
        map.insert(key, Value::from(value));
    }
}
