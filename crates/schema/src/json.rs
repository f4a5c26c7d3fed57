//! Accessors for decoded JSON that never fail: a missing field and a field of another type both read as absent.

pub mod bounded;
mod map;
mod value;

pub use crate::json_value as json;
pub use map::{Entry, Map, Named};
pub use serde_json::Number;
pub use value::{Key, List, Text, Value};

/// What the macro [`json`] expands to.
#[doc(hidden)]
pub mod from_text {
    pub use serde_json::json;
}

/// A decoded JSON object.
pub type Object = Map;

/// Returns the name of a JSON value's type, for messages.
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

/// Maximum nesting of objects and lists. The JSON decoder's own limit is slightly higher, so that every value within
/// this limit can be encoded, stored and decoded again.
pub const MAX_DEPTH: usize = 120;

/// Returns true if objects and lists are nested at most `allowed` levels deep. Adds the number of visited values to
/// `seen`.
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

/// Returns the object at `key`.
pub fn object<'a>(map: &'a Object, key: &str) -> Option<&'a Object> {
    map.get(key).and_then(Value::as_object)
}

/// Returns the object at `key`, which is created if it is absent. Returns `None` if a value of another type is there.
pub fn object_mut<'a>(map: &'a mut Object, key: &str) -> Option<&'a mut Object> {
    map.entry(key).or_insert_with(|| Value::Object(Object::new())).as_object_mut()
}

/// Returns the text at `key`. Absent and empty are the same in this API.
pub fn text<'a>(map: &'a Object, key: &str) -> Option<&'a str> {
    map.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// Returns the integer at `key`. Absent and 0 are the same in this API.
pub fn integer(map: &Object, key: &str) -> Option<i64> {
    map.get(key).and_then(Value::as_i64).filter(|number| *number != 0)
}

/// Returns the elements of the list at `key`; none if it is absent.
pub fn list<'a>(map: &'a Object, key: &str) -> &'a [Value] {
    map.get(key).and_then(Value::as_array).map_or(&[], |list| list.as_slice())
}

/// Returns the objects in the list at `key`, mutable. Other elements are skipped.
pub fn objects_mut<'a>(map: &'a mut Object, key: &str) -> impl Iterator<Item = &'a mut Object> {
    map.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Returns the texts in the list at `key`. Other elements are skipped.
pub fn texts<'a>(map: &'a Object, key: &str) -> impl Iterator<Item = &'a str> {
    list(map, key).iter().filter_map(Value::as_str)
}

/// Sets `key` if it is absent, null or an empty text.
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
