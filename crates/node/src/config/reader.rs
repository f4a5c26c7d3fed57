//! Reads typed fields from one mapping, and collects all errors with their paths.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Map, Value};

use super::duration::{DurationError, parse_duration};
use super::error::{FieldError, Problem};
use super::source::shown;
use crate::address;
use crate::nearest::nearest;

/// One mapping of the document. Fields are removed as they are read, and the remaining ones are unknown.
pub(super) struct Section<'e> {
    path: String,
    fields: Map<String, Value>,
    known: Vec<&'static str>,
    errors: &'e mut Vec<FieldError>,
}

impl<'e> Section<'e> {
    /// Reads `value` as a mapping with `body`, then reports the fields that `body` did not read. Returns false, and
    /// reports an error, if `value` is not a mapping.
    pub(super) fn read_all(
        path: String,
        value: Value,
        errors: &'e mut Vec<FieldError>,
        body: impl FnOnce(&mut Section<'_>),
    ) -> bool {
        let fields = match value {
            Value::Object(fields) => fields,
            Value::Null => Map::new(),
            other => {
                let path = if path.is_empty() { "the document".into() } else { path };
                errors.push(FieldError::new(path, wrong_type(&other, "a mapping of fields")));
                return false;
            }
        };
        let mut section = Section { path, fields, known: Vec::new(), errors };
        body(&mut section);
        section.report_unknown();
        true
    }

    /// Reads a field with `convert`. If it is absent or `null`, `slot` stays as it is.
    pub(super) fn read<T>(
        &mut self,
        name: &'static str,
        slot: &mut T,
        convert: impl Fn(&Value) -> Result<T, Problem>,
    ) {
        match self.take(name).as_ref().map(convert) {
            Some(Ok(value)) => *slot = value,
            Some(Err(problem)) => self.wrong(name, problem),
            None => {}
        }
    }

    /// Like [`Section::read`], for fields in which upstream treats the type's zero value as "unset".
    pub(super) fn read_unless_zero<T: Default + PartialEq>(
        &mut self,
        name: &'static str,
        slot: &mut T,
        convert: impl Fn(&Value) -> Result<T, Problem>,
    ) {
        let mut value = T::default();
        self.read(name, &mut value, convert);
        if value != T::default() {
            *slot = value;
        }
    }

    /// Reads a list, and reports each bad element under its own index.
    pub(super) fn read_list<T>(
        &mut self,
        name: &'static str,
        slot: &mut Vec<T>,
        convert: impl Fn(&Value) -> Result<T, Problem>,
    ) {
        for (index, item) in self.take_list(name).iter().enumerate() {
            match convert(item) {
                Ok(value) => slot.push(value),
                Err(problem) => self.wrong(&format!("{name}[{index}]"), problem),
            }
        }
    }

    /// Reads a list of mappings.
    pub(super) fn read_sections<T: Default>(
        &mut self,
        name: &'static str,
        slot: &mut Vec<T>,
        body: impl Fn(&mut Section<'_>, &mut T),
    ) {
        for (index, item) in self.take_list(name).into_iter().enumerate() {
            let mut value = T::default();
            let path = self.path_of(&format!("{name}[{index}]"));
            if Section::read_all(path, item, self.errors, |section| body(section, &mut value)) {
                slot.push(value);
            }
        }
    }

    /// Reads a mapping of fields.
    pub(super) fn section(&mut self, name: &'static str, body: impl FnOnce(&mut Section<'_>)) {
        let value = self.take(name).unwrap_or(Value::Null);
        let path = self.path_of(name);
        Section::read_all(path, value, self.errors, body);
    }

    /// Reads a mapping with arbitrary keys.
    pub(super) fn entries(&mut self, name: &'static str) -> Map<String, Value> {
        let mut entries = Map::new();
        self.read(name, &mut entries, |value| {
            value.as_object().cloned().ok_or_else(|| wrong_type(value, "a mapping"))
        });
        entries
    }

    /// Takes a list. If it is absent or `null`, the list is empty.
    pub(super) fn take_list(&mut self, name: &'static str) -> Vec<Value> {
        let mut items = Vec::new();
        self.read(name, &mut items, |value| {
            value.as_array().cloned().ok_or_else(|| wrong_type(value, "a list"))
        });
        items
    }

    /// Requires a field to have one value.
    pub(super) fn require(&mut self, name: &'static str, want: &'static str) {
        match self.take(name) {
            Some(value) if value == want => {}
            Some(value) => self.wrong(name, not_one_of(&plain(&value), vec![want])),
            None => self.wrong(name, Problem::Missing { want }),
        }
    }

    /// Reports an error in a field of this mapping.
    pub(super) fn wrong(&mut self, name: &str, problem: Problem) {
        let path = self.path_of(name);
        self.errors.push(FieldError::new(path, problem));
    }

    /// Reports a field of an earlier version if it is present.
    pub(super) fn former(&mut self, name: &'static str) {
        if self.fields.remove(name).is_some() {
            self.wrong(name, Problem::Former);
        }
    }

    fn take(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    fn path_of(&self, name: &str) -> String {
        let name = shown(name);
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn report_unknown(mut self) {
        for name in std::mem::take(&mut self.fields).keys() {
            let known = self.known.clone();
            let meant = nearest(name, known.iter().copied());
            self.wrong(name, Problem::UnknownField { meant, known });
        }
    }
}

/// Reads a text.
pub(super) fn text(value: &Value) -> Result<String, Problem> {
    value.as_str().map(str::to_owned).ok_or_else(|| wrong_type(value, "a text; put it in quotes"))
}

/// Reads true or false.
pub(super) fn boolean(value: &Value) -> Result<bool, Problem> {
    value.as_bool().ok_or_else(|| wrong_type(value, "true or false"))
}

/// Reads a whole number inside a range.
pub(super) fn integer<T: TryFrom<i64>>(minimum: i64, maximum: i64) -> impl Fn(&Value) -> Result<T, Problem> {
    move |value| {
        let number = value.as_i64().ok_or_else(|| wrong_type(value, "a whole number"))?;
        let inside = Some(number).filter(|number| (minimum..=maximum).contains(number));
        let converted = inside.and_then(|number| T::try_from(number).ok());
        converted.ok_or(Problem::OutOfRange { value: number, minimum, maximum })
    }
}

/// Reads a number.
#[expect(clippy::cast_possible_truncation, reason = "the field has 32 bits; infinite results are refused")]
pub(super) fn number(value: &Value) -> Result<f32, Problem> {
    let number = value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
    number.ok_or_else(|| wrong_type(value, "a number of 32 bits"))
}

/// Reads a duration text, or the number 0, which means the same in every unit.
pub(super) fn duration(value: &Value) -> Result<Duration, Problem> {
    match value {
        Value::String(text) => {
            parse_duration(text).map_err(|reason| Problem::Duration { value: text.clone(), reason })
        }
        Value::Number(number) if number.as_i64() == Some(0) => Ok(Duration::ZERO),
        Value::Number(number) => {
            Err(Problem::Duration { value: number.to_string(), reason: DurationError::Syntax })
        }
        other => Err(wrong_type(other, "a duration such as 30s")),
    }
}

/// Reads a duration text, or a whole number of nanoseconds.
pub(super) fn duration_or_nanoseconds(value: &Value) -> Result<Duration, Problem> {
    match value.as_i64() {
        None => duration(value),
        Some(number) => u64::try_from(number)
            .map(Duration::from_nanos)
            .map_err(|_| Problem::Duration { value: number.to_string(), reason: DurationError::Negative }),
    }
}

/// Reads an IP address.
pub(super) fn ip(value: &Value) -> Result<IpAddr, Problem> {
    Ok(address::parse_ip(&text(value)?)?)
}

/// Reads a CIDR.
pub(super) fn cidr(value: &Value) -> Result<IpNet, Problem> {
    Ok(address::parse_cidr(&text(value)?)?)
}

/// Reads one of a few words.
pub(super) fn choice<T: Copy>(words: &'static [(&'static str, T)]) -> impl Fn(&Value) -> Result<T, Problem> {
    move |value| {
        let text = text(value)?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
        found.ok_or_else(|| {
            let spelled = words.iter().map(|(word, _)| *word).filter(|word| !word.is_empty());
            not_one_of(&text, spelled.collect())
        })
    }
}

pub(super) fn wrong_type(found: &Value, expected: &'static str) -> Problem {
    let shown = match found {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => format!("`{found}`"),
        Value::String(text) => format!("the text `{}`", shorten(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    };
    Problem::WrongType { found: shown, expected }
}

fn not_one_of(value: &str, allowed: Vec<&'static str>) -> Problem {
    Problem::NotOneOf { value: shorten(value), allowed }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the start of a text that may be too long for an error message.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
