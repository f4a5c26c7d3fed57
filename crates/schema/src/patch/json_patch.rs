//! JSON patch (RFC 6902): a list of operations that are applied in order to any document.
//!
//! As in upstream, a negative index counts from the end of a list. With `copy` and `move`, a small patch could produce a
//! huge or very deep document. Their cost is counted, and a patch that costs too much is refused.

use std::fmt;

use crate::json::Value;

use super::{PatchError, replace};
use crate::json::{MAX_DEPTH, Object, fits_depth, type_name};

#[cfg(test)]
mod tests;

/// Maximum operations in one patch (apiserver `maxJSONPatchOperations`).
pub const MAX_OPERATIONS: usize = 10_000;
/// Maximum bytes that the `copy` operations of one patch may add, as an estimate.
const MAX_COPIED: usize = 8 << 20;
/// Maximum list elements and values that the operations of one patch may move or visit, other than their own values.
const MAX_WORK: usize = 1 << 26;
/// A decoded JSON patch.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPatch(Vec<Operation>);

#[derive(Debug, Clone, PartialEq)]
struct Operation {
    path: Pointer,
    action: Action,
}

#[derive(Debug, Clone, PartialEq)]
enum Action {
    Add(Value),
    Remove,
    Replace(Value),
    Move(Pointer),
    Copy(Pointer),
    Test(Value),
}

/// The parts of a JSON pointer (RFC 6901).
#[derive(Debug, Clone, PartialEq)]
struct Pointer(Vec<String>);

/// The reason for which an operation fails.
enum Failure {
    Missing(String),
    NoContainer(&'static str),
    BadIndex(String),
    Different,
    IntoItself,
    TooDeep,
    TooMuch,
}

impl JsonPatch {
    /// Decodes a patch from JSON.
    pub fn decode(patch: Value) -> Result<Self, PatchError> {
        let Value::Array(operations) = patch else {
            let got = type_name(&patch);
            return Err(PatchError::malformed(format!(
                "a JSON patch is a list of operations, this is of type {got}"
            )));
        };
        if operations.len() > MAX_OPERATIONS {
            return Err(PatchError::too_large(format!(
                "the JSON patch has {} operations, at most {MAX_OPERATIONS} are allowed",
                operations.len()
            )));
        }
        let operations = operations.into_iter().enumerate().map(|(index, operation)| {
            Operation::decode(operation)
                .map_err(|reason| PatchError::malformed(format!("JSON patch operation {index}: {reason}")))
        });
        Ok(Self(operations.collect::<Result<_, _>>()?))
    }

    /// Returns the document after all operations. The first operation that fails makes the patch fail.
    pub fn apply(&self, document: Value) -> Result<Value, PatchError> {
        let mut patching = Patching { document, copied: 0, work: 0 };
        for (index, operation) in self.0.iter().enumerate() {
            patching.run(operation).map_err(|failure| {
                let place = format!("JSON patch operation {index} ({operation}): ");
                match failure {
                    Failure::TooMuch => PatchError::too_large(format!(
                        "{place}moves or copies too much; send the result in a merge patch"
                    )),
                    failure => PatchError::failed(format!("{place}{}", failure.reason())),
                }
            })?;
        }
        Ok(patching.document)
    }
}

impl Operation {
    fn decode(operation: Value) -> Result<Self, String> {
        let Value::Object(mut members) = operation else { return Err("it is not an object".to_owned()) };
        let pointer = |members: &Object, name: &str| match members.get(name) {
            Some(Value::String(text)) => Pointer::decode(text).map_err(|reason| format!("{name}: {reason}")),
            Some(_) => Err(format!("{name} is not a string")),
            None => Err(format!("it has no {name}")),
        };
        let path = pointer(&members, "path")?;
        let op = members.get("op").and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut value = || members.remove("value").ok_or_else(|| "it has no value".to_owned());
        let action = match op.as_str() {
            "add" => Action::Add(value()?),
            "remove" => Action::Remove,
            "replace" => Action::Replace(value()?),
            "move" => Action::Move(pointer(&members, "from")?),
            "copy" => Action::Copy(pointer(&members, "from")?),
            "test" => Action::Test(value()?),
            _ => return Err("op is not one of add, remove, replace, move, copy, test".to_owned()),
        };
        Ok(Self { path, action })
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.action {
            Action::Add(_) => "add",
            Action::Remove => "remove",
            Action::Replace(_) => "replace",
            Action::Move(_) => "move",
            Action::Copy(_) => "copy",
            Action::Test(_) => "test",
        };
        write!(formatter, "{name} {}", self.path)
    }
}

impl Pointer {
    fn decode(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let parts = text.strip_prefix('/').ok_or("a JSON pointer is empty or starts with /")?;
        Ok(Self(parts.split('/').map(|part| part.replace("~1", "/").replace("~0", "~")).collect()))
    }

    /// Returns true if `other` points into the value that this points to.
    fn is_above(&self, other: &Self) -> bool {
        other.0.len() > self.0.len() && other.0.starts_with(&self.0)
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.0 {
            write!(formatter, "/{}", part.replace('~', "~0").replace('/', "~1"))?;
        }
        Ok(())
    }
}

impl Failure {
    fn reason(&self) -> String {
        match self {
            Self::Missing(part) => format!("nothing is at \"{part}\""),
            Self::NoContainer(what) => format!("the path goes through a value of type {what}"),
            Self::BadIndex(index) => format!("\"{index}\" is not an index into this list"),
            Self::Different => "the value is another one".to_owned(),
            Self::IntoItself => "a value cannot be moved into itself".to_owned(),
            Self::TooDeep => format!("the result would be nested deeper than {MAX_DEPTH} levels"),
            Self::TooMuch => "too much work".to_owned(),
        }
    }
}

/// A document that is being patched, with the cost of the operations.
struct Patching {
    document: Value,
    copied: usize,
    work: usize,
}

impl Patching {
    fn run(&mut self, operation: &Operation) -> Result<(), Failure> {
        let path = &operation.path;
        match &operation.action {
            Action::Add(value) => self.add(path, value.clone()),
            Action::Remove => self.remove(path).map(drop),
            Action::Replace(value) => {
                self.check_depth(path, value)?;
                replace(at(&mut self.document, &path.0)?, value);
                Ok(())
            }
            Action::Move(from) if from.is_above(path) => Err(Failure::IntoItself),
            Action::Move(from) => {
                let value = self.remove(from)?;
                self.add(path, value)
            }
            Action::Copy(from) => {
                let source = at(&mut self.document, &from.0)?;
                self.copied = self.copied.saturating_add(weight(source, MAX_COPIED));
                if self.copied > MAX_COPIED {
                    return Err(Failure::TooMuch);
                }
                let value = source.clone();
                self.add(path, value)
            }
            Action::Test(expected) => match at(&mut self.document, &path.0) {
                Ok(found) if found == expected => Ok(()),
                // As in upstream, an absent value equals null.
                Err(Failure::Missing(_)) if expected.is_null() => Ok(()),
                Ok(_) => Err(Failure::Different),
                Err(failure) => Err(failure),
            },
        }
    }

    fn add(&mut self, path: &Pointer, value: Value) -> Result<(), Failure> {
        self.check_depth(path, &value)?;
        let Some((last, parents)) = path.0.split_last() else {
            self.document = value;
            return Ok(());
        };
        match at(&mut self.document, parents)? {
            Value::Object(members) => {
                members.insert(last.clone(), value);
            }
            Value::Array(elements) => {
                let index = if last == "-" { elements.len() } else { index(last, elements.len() + 1)? };
                let moved = elements.len() - index;
                elements.insert(index, value);
                self.spend(moved)?;
            }
            other => return Err(Failure::NoContainer(type_name(other))),
        }
        Ok(())
    }

    fn remove(&mut self, path: &Pointer) -> Result<Value, Failure> {
        let Some((last, parents)) = path.0.split_last() else {
            return Ok(self.document.take());
        };
        match at(&mut self.document, parents)? {
            Value::Object(members) => members.remove(last).ok_or_else(|| Failure::Missing(last.clone())),
            Value::Array(elements) => {
                let index = index(last, elements.len())?;
                let moved = elements.len() - index;
                let removed = elements.remove(index);
                self.spend(moved)?;
                Ok(removed)
            }
            other => Err(Failure::NoContainer(type_name(other))),
        }
    }

    fn check_depth(&mut self, path: &Pointer, value: &Value) -> Result<(), Failure> {
        let allowed = MAX_DEPTH.checked_sub(path.0.len()).ok_or(Failure::TooDeep)?;
        let mut seen = 0;
        let fits = fits_depth(value, allowed, &mut seen);
        self.spend(seen)?;
        if fits { Ok(()) } else { Err(Failure::TooDeep) }
    }

    fn spend(&mut self, work: usize) -> Result<(), Failure> {
        self.work = self.work.saturating_add(work);
        if self.work > MAX_WORK { Err(Failure::TooMuch) } else { Ok(()) }
    }
}

/// Returns the value at `path`.
fn at<'a>(document: &'a mut Value, path: &[String]) -> Result<&'a mut Value, Failure> {
    let mut value = document;
    for part in path {
        value = match value {
            Value::Object(members) => members.get_mut(part),
            Value::Array(elements) => {
                let index = index(part, elements.len())?;
                elements.get_mut(index)
            }
            other => return Err(Failure::NoContainer(type_name(other))),
        }
        .ok_or_else(|| Failure::Missing(part.clone()))?;
    }
    Ok(value)
}

/// Parses an index below `length`. A negative one counts from the end.
fn index(part: &str, length: usize) -> Result<usize, Failure> {
    let bad = || Failure::BadIndex(part.to_owned());
    let digits = part.strip_prefix('-').unwrap_or(part);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad());
    }
    let number: usize = digits.parse().map_err(|_| bad())?;
    let index = if digits.len() < part.len() { length.checked_sub(number) } else { Some(number) };
    index.filter(|index| *index < length).ok_or_else(bad)
}

/// Returns the estimated bytes of a copy. Stops counting above `limit`.
fn weight(value: &Value, limit: usize) -> usize {
    // A small map takes a whole node of the tree.
    const MAP: usize = 600;
    let sum = |own: usize, inner: &mut dyn Iterator<Item = (usize, &Value)>| {
        inner.fold(
            own,
            |total, (name, value)| {
                if total > limit { total } else { total + name + weight(value, limit - total) }
            },
        )
    };
    match value {
        Value::String(text) => size_of::<Value>() + text.len(),
        Value::Array(elements) => sum(size_of::<Value>(), &mut elements.iter().map(|value| (0, value))),
        Value::Object(members) => sum(MAP, &mut members.iter().map(|(name, value)| (name.len(), value))),
        _ => size_of::<Value>(),
    }
}
