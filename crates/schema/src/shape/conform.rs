//! Checks the types of an object's fields against its table. A field of the wrong type is an error with its path; an
//! unknown field is dropped and reported. Times and quantities are converted to the canonical form in which they are
//! stored, and zero values that mean absence are dropped, so that equal objects have equal bytes.

use crate::json::Value;

use thiserror::Error;

use super::{Struct, Type, meta, of, quantity, timestamp};
use crate::{
    json::{Object, type_name},
    resource::Resource,
};

#[cfg(test)]
mod tests;

/// Maximum unknown fields that are reported. A body can have a million of them, and no reader needs the whole list.
const MOST_UNKNOWN: usize = 100;

/// How unknown fields are handled (query parameter `fieldValidation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// Drop them silently.
    Ignore,
    /// Drop them and warn.
    #[default]
    Warn,
    /// Refuse the object.
    Strict,
}

/// The error for a field of the wrong JSON type.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: expected {expected}, got {got}")]
pub struct ShapeError {
    /// Path of the field.
    pub field: String,
    /// The type in the table.
    pub expected: &'static str,
    /// The type of the value.
    pub got: &'static str,
}

/// Checks the types of the whole object. Drops nulls, zero values that mean absence, and unknown fields. Returns the
/// paths of the first hundred unknown fields.
pub fn conform(resource: Resource, object: &mut Object) -> Result<Vec<String>, ShapeError> {
    let mut walk = Walk::new(Absence::Dropped);
    walk.members(object, of(resource))?;
    Ok(walk.unknown)
}

/// Checks the types of a configuration for server-side apply. Nulls and zero values stay, because a field that is named
/// with such a value is claimed, too.
pub fn conform_configuration(resource: Resource, object: &mut Object) -> Result<Vec<String>, ShapeError> {
    let mut walk = Walk::new(Absence::Kept);
    walk.members(object, of(resource))?;
    Ok(walk.unknown)
}

/// Checks `metadata` as [`conform`] does and leaves the other fields unchanged.
pub fn conform_metadata(object: &mut Object) -> Result<Vec<String>, ShapeError> {
    let mut walk = Walk::new(Absence::Dropped);
    if let Some(metadata) = object.get_mut("metadata") {
        walk.at("metadata", |walk| walk.value(metadata, &Type::Object(&meta::OBJECT_META)))?;
    }
    Ok(walk.unknown)
}

/// Drops nulls and zero values that mean absence from an object of any shape.
pub fn drop_absent(resource: Resource, object: &mut Object) {
    absent_members(object, of(resource));
}

fn absent_members(object: &mut Object, table: &Struct) {
    for field in table.fields {
        if let Some(value) = object.get_mut(field.name) {
            absent_values(value, &field.kind);
        }
    }
    object.retain(|name, value| !value.is_null() && !table.field(name).is_some_and(|it| it.is_absent(value)));
}

fn absent_values(value: &mut Value, kind: &Type) {
    match (kind, value) {
        (Type::Object(table), Value::Object(members)) => absent_members(members, table),
        (Type::Map(element), Value::Object(members)) => {
            members.retain(|_, value| !value.is_null());
            members.iter_mut().for_each(|(_, value)| absent_values(value, element));
        }
        (Type::List(element), Value::Array(values)) => {
            values.iter_mut().for_each(|value| absent_values(value, element));
        }
        _ => {}
    }
}

/// What becomes of nulls and of zero values that mean absence.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Absence {
    Dropped,
    Kept,
}

struct Walk {
    path: String,
    unknown: Vec<String>,
    absence: Absence,
}

impl Walk {
    fn new(absence: Absence) -> Self {
        Self { path: String::new(), unknown: Vec::new(), absence }
    }

    fn members(&mut self, object: &mut Object, table: &Struct) -> Result<(), ShapeError> {
        let drops = self.absence == Absence::Dropped;
        if drops {
            object.retain(|_, value| !value.is_null());
        }
        object.retain(|name, _| {
            let is_known = table.field(name).is_some();
            if !is_known && self.unknown.len() < MOST_UNKNOWN {
                let path = self.joined(name);
                self.unknown.push(path);
            }
            is_known
        });
        let mut has_absent = false;
        for field in table.fields {
            let Some(value) = object.get_mut(field.name).filter(|value| !value.is_null()) else { continue };
            self.at(field.name, |walk| walk.value(value, &field.kind))?;
            has_absent |= field.is_absent(value);
        }
        if drops && has_absent {
            object.retain(|name, value| !table.field(name).is_some_and(|field| field.is_absent(value)));
        }
        Ok(())
    }

    fn value(&mut self, value: &mut Value, kind: &Type) -> Result<(), ShapeError> {
        match (kind, value) {
            (Type::Json, _)
            | (Type::Text | Type::IntOrText, Value::String(_))
            | (Type::FieldsV1, Value::Object(_))
            | (Type::Bool, Value::Bool(_)) => Ok(()),
            (Type::Int32 | Type::IntOrText, Value::Number(number)) if is_int32(number) => Ok(()),
            (Type::Int64, Value::Number(number)) if number.is_i64() => Ok(()),
            (Type::List(element), Value::Array(values)) => {
                for (index, value) in values.iter_mut().enumerate() {
                    self.at_index(index, |walk| walk.value(value, element))?;
                }
                Ok(())
            }
            (Type::Map(element), Value::Object(map)) => {
                if self.absence == Absence::Dropped {
                    map.retain(|_, value| !value.is_null());
                }
                for (name, value) in map.iter_mut().filter(|(_, value)| !value.is_null()) {
                    self.at_key(name, |walk| walk.value(value, element))?;
                }
                Ok(())
            }
            (Type::Object(table), Value::Object(map)) => self.members(map, table),
            (Type::Time | Type::MicroTime | Type::Quantity, value) => match canonical(kind, value) {
                Some(text) => {
                    *value = Value::from(text);
                    Ok(())
                }
                None => Err(self.wrong_type(kind, value)),
            },
            (_, value) => Err(self.wrong_type(kind, value)),
        }
    }

    fn wrong_type(&self, kind: &Type, value: &Value) -> ShapeError {
        ShapeError { field: self.path.clone(), expected: kind.description(), got: type_name(value) }
    }

    fn joined(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn at<T>(&mut self, name: &str, inner: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        self.inside(length, inner)
    }

    fn at_index<T>(&mut self, index: usize, inner: impl FnOnce(&mut Self) -> T) -> T {
        use std::fmt::Write;
        let length = self.path.len();
        let _ = write!(self.path, "[{index}]");
        self.inside(length, inner)
    }

    fn at_key<T>(&mut self, key: &str, inner: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        self.path.extend(["[", key, "]"]);
        self.inside(length, inner)
    }

    /// Runs `inner` and then shortens the path to `length`. An error has its own copy of the path.
    fn inside<T>(&mut self, length: usize, inner: impl FnOnce(&mut Self) -> T) -> T {
        let result = inner(self);
        self.path.truncate(length);
        result
    }
}

fn is_int32(number: &crate::json::Number) -> bool {
    number.as_i64().is_some_and(|number| i32::try_from(number).is_ok())
}

/// Returns the canonical form of a time or a quantity; `None` if the value is neither.
fn canonical(kind: &Type, value: &Value) -> Option<String> {
    match (kind, value) {
        (Type::Time, Value::String(text)) => timestamp::parse(text).and_then(|(at, _)| timestamp::whole(at)),
        (Type::MicroTime, Value::String(text)) => {
            timestamp::parse(text).and_then(|(at, nanos)| timestamp::micro(at, nanos))
        }
        (Type::Quantity, Value::String(text)) => quantity::canonical(text.trim()),
        (Type::Quantity, Value::Number(number)) => quantity::canonical(&number.to_string()),
        _ => None,
    }
}
