//! The types of an object's fields, checked against its table. A field of the wrong type is an error that names its
//! path; an unknown field is dropped and reported.

use serde_json::Value;

use thiserror::Error;

use super::{Field, Struct, Type, meta, of};
use crate::{
    json::{Object, type_name},
    resource::Resource,
};

#[cfg(test)]
mod tests;

/// What to do about unknown fields (query parameter `fieldValidation`).
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

/// A field holds the wrong JSON type.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: expected {expected}, got {got}")]
pub struct ShapeError {
    /// Path of the field.
    pub field: String,
    /// What belongs there.
    pub expected: &'static str,
    /// What is there.
    pub got: &'static str,
}

/// Checks the types of the whole object, drops nulls and unknown fields; returns the paths of the latter.
pub fn conform(resource: Resource, object: &mut Object) -> Result<Vec<String>, ShapeError> {
    let mut walk = Walk::default();
    walk.members(object, of(resource))?;
    Ok(walk.unknown)
}

/// The same for `metadata` alone; other fields are left as they are.
pub fn conform_metadata(object: &mut Object) -> Result<Vec<String>, ShapeError> {
    let mut walk = Walk::default();
    if let Some(metadata) = object.get_mut("metadata") {
        walk.at("metadata", |walk| walk.value(metadata, &Type::Object(&meta::OBJECT_META)))?;
    }
    Ok(walk.unknown)
}

#[derive(Default)]
struct Walk {
    path: String,
    unknown: Vec<String>,
}

impl Walk {
    fn members(&mut self, object: &mut Object, table: &Struct) -> Result<(), ShapeError> {
        object.retain(|_, value| !value.is_null());
        let unknown: Vec<String> =
            object.keys().filter(|name| table.field(name).is_none()).cloned().collect();
        for name in unknown {
            object.remove(&name);
            let path = self.joined(&name);
            self.unknown.push(path);
        }
        for Field { name, kind, .. } in table.fields {
            if let Some(value) = object.get_mut(*name) {
                self.at(name, |walk| walk.value(value, kind))?;
            }
        }
        Ok(())
    }

    fn value(&mut self, value: &mut Value, kind: &Type) -> Result<(), ShapeError> {
        match (kind, value) {
            (Type::Json, _)
            | (
                Type::Text | Type::IntOrText | Type::Time | Type::MicroTime | Type::Quantity,
                Value::String(_),
            )
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
                map.retain(|_, value| !value.is_null());
                for (name, value) in map.iter_mut() {
                    self.at_key(name, |walk| walk.value(value, element))?;
                }
                Ok(())
            }
            (Type::Object(table), Value::Object(map)) => self.members(map, table),
            (Type::Quantity, value) if value.is_number() => {
                *value = Value::from(value.to_string());
                Ok(())
            }
            (_, value) => Err(self.wrong_type(kind, value)),
        }
    }

    fn wrong_type(&self, kind: &Type, value: &Value) -> ShapeError {
        let expected = match kind {
            Type::Text => "a string",
            Type::Bool => "a boolean",
            Type::Int32 => "a 32-bit integer",
            Type::Int64 => "a 64-bit integer",
            Type::IntOrText => "a 32-bit integer or a string",
            Type::List(_) => "a list",
            Type::Map(_) | Type::Object(_) | Type::FieldsV1 => "an object",
            Type::Json => "a value",
            Type::Time | Type::MicroTime => "an RFC 3339 time",
            Type::Quantity => "a quantity",
        };
        ShapeError { field: self.path.clone(), expected, got: type_name(value) }
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

    /// Runs `inner` one level down; an error keeps its own copy of the path.
    fn inside<T>(&mut self, length: usize, inner: impl FnOnce(&mut Self) -> T) -> T {
        let result = inner(self);
        self.path.truncate(length);
        result
    }
}

fn is_int32(number: &serde_json::Number) -> bool {
    number.as_i64().is_some_and(|number| i32::try_from(number).is_ok())
}
