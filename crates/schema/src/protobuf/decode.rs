//! Decodes protobuf to JSON.

use crate::json::{List, Value};

use super::{
    DecodeError, Limits, MAGIC, Problem, UNKNOWN_CONTENT_ENCODING, UNKNOWN_RAW, UNKNOWN_TYPE, table,
    wire::{LENGTH, Reader, VARINT},
};
use crate::{
    json::{
        Object,
        bounded::{MEMBER_COST, OBJECT_COST, VALUE_COST},
    },
    shape::{Field, Presence, Struct, Type, timestamp},
};

type Result<T> = std::result::Result<T, DecodeError>;

/// Factor by which JSON text grows when it is decoded, in the worst case.
const JSON_GROWTH: usize = 20;

pub(super) fn envelope(bytes: &[u8], assumed: (&str, &str), limits: Limits) -> Result<Object> {
    let mut budget = Budget { limit: limits.memory, left: limits.memory };
    let body = bytes.strip_prefix(&MAGIC).ok_or(Problem::Magic)?;
    let (mut api_version, mut kind, mut raw) = ("", "", &[][..]);
    let mut unknown = Reader::new(body);
    while let Some((tag, wire_type)) = unknown.key()? {
        match tag {
            UNKNOWN_TYPE => (api_version, kind) = type_meta(message_of(&mut unknown, wire_type)?)?,
            UNKNOWN_RAW => raw = message_of(&mut unknown, wire_type)?,
            UNKNOWN_CONTENT_ENCODING => {
                let encoding = text(message_of(&mut unknown, wire_type)?)?;
                if !encoding.is_empty() {
                    return Err(Problem::ContentEncoding(encoding.to_owned()).into());
                }
            }
            _ => unknown.skip(wire_type)?,
        }
    }
    if api_version.is_empty() {
        api_version = assumed.0;
    }
    if kind.is_empty() {
        kind = assumed.1;
    }
    let no_table = || Problem::UnknownKind { api_version: api_version.to_owned(), kind: kind.to_owned() };
    let table = table(api_version, kind).ok_or_else(no_table)?;
    let mut object = Object::new();
    budget.message(table, raw, &mut object)?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(object)
}

fn type_meta(bytes: &[u8]) -> Result<(&str, &str)> {
    let (mut api_version, mut kind) = ("", "");
    let mut reader = Reader::new(bytes);
    while let Some((tag, wire_type)) = reader.key()? {
        match tag {
            1 => api_version = text(message_of(&mut reader, wire_type)?)?,
            2 => kind = text(message_of(&mut reader, wire_type)?)?,
            _ => reader.skip(wire_type)?,
        }
    }
    Ok((api_version, kind))
}

/// Memory limit of the decoded object, and the part of it that is left.
struct Budget {
    limit: usize,
    left: usize,
}

impl Budget {
    fn spend(&mut self, cost: usize) -> Result<()> {
        self.left = self.left.checked_sub(cost).ok_or(Problem::TooLarge(self.limit))?;
        Ok(())
    }

    /// Adds the fields of the message to the object, which may hold those of an earlier part of the same message. Returns
    /// true if all of them are zero.
    fn message(&mut self, table: &Struct, bytes: &[u8], object: &mut Object) -> Result<bool> {
        let mut reader = Reader::new(bytes);
        while let Some((tag, wire_type)) = reader.key()? {
            match table.tagged(tag) {
                Some(field) => self
                    .field(field, &mut reader, wire_type, object)
                    .map_err(|error| error.within(field.name))?,
                None => reader.skip(wire_type)?,
            }
        }
        let is_zero = object.is_empty();
        self.fill(table, object)?;
        Ok(is_zero)
    }

    /// Adds the zero values that JSON always contains.
    fn fill(&mut self, table: &Struct, object: &mut Object) -> Result<()> {
        for field in table.fields.iter().filter(|field| field.presence == Presence::Always) {
            if object.contains_key(field.name) {
                continue;
            }
            if let Some(zero) = self.zero(&field.kind)? {
                self.insert(object, field.name, zero)?;
            }
        }
        Ok(())
    }

    fn zero(&mut self, kind: &Type) -> Result<Option<Value>> {
        Ok(match kind {
            Type::Text => Some(Value::from("")),
            Type::Bool => Some(Value::Bool(false)),
            Type::Int32 | Type::Int64 => Some(Value::from(0)),
            Type::List(_) => Some(Value::Array(List::new())),
            Type::Map(_) => Some(Value::Object(Object::new())),
            Type::Object(table) => {
                let mut object = Object::new();
                self.fill(table, &mut object)?;
                Some(Value::Object(object))
            }
            // The zero values of these types are null in JSON.
            Type::IntOrText | Type::Time | Type::MicroTime | Type::Quantity | Type::Json | Type::FieldsV1 => {
                None
            }
        })
    }

    fn insert(&mut self, object: &mut Object, name: &str, value: Value) -> Result<()> {
        self.spend(MEMBER_COST.saturating_add(if object.is_empty() { OBJECT_COST } else { 0 }))?;
        object.insert(name, value);
        Ok(())
    }

    fn field(
        &mut self,
        field: &Field,
        reader: &mut Reader<'_>,
        wire_type: u8,
        object: &mut Object,
    ) -> Result<()> {
        match &field.kind {
            Type::List(element) => {
                let index = object.get(field.name).and_then(Value::as_array).map_or(0, List::len);
                let value = self
                    .value(element, reader, wire_type, None)
                    .map_err(|error| error.within(&format!("[{index}]")))?;
                self.spend(VALUE_COST)?;
                let value = value.unwrap_or_zero(element);
                if let Some(Value::Array(values)) = object.get_mut(field.name) {
                    values.push(value);
                } else {
                    self.insert(object, field.name, Value::from(vec![value]))?;
                }
            }
            Type::Map(element) => {
                let (name, value) = self.map_entry(element, message_of(reader, wire_type)?)?;
                self.spend(MEMBER_COST.saturating_add(name.len()))?;
                if let Some(Value::Object(map)) = object.get_mut(field.name) {
                    map.insert(name, value);
                } else {
                    self.spend(MEMBER_COST.saturating_add(OBJECT_COST))?;
                    let map = std::iter::once((name, value)).collect();
                    self.insert(object, field.name, Value::Object(map))?;
                }
            }
            kind => {
                let earlier = object.remove(field.name);
                let decoded = self.value(kind, reader, wire_type, earlier)?;
                let is_absent =
                    decoded.value.is_none() || decoded.is_zero && field.presence == Presence::Value;
                if let Some(value) = decoded.value.filter(|_| !is_absent) {
                    self.insert(object, field.name, value)?;
                }
            }
        }
        Ok(())
    }

    fn map_entry(&mut self, element: &Type, bytes: &[u8]) -> Result<(String, Value)> {
        let (mut name, mut value) = ("", Decoded::ABSENT);
        let mut reader = Reader::new(bytes);
        while let Some((tag, wire_type)) = reader.key()? {
            match tag {
                1 => name = text(message_of(&mut reader, wire_type)?)?,
                2 => {
                    value = self
                        .value(element, &mut reader, wire_type, None)
                        .map_err(|error| error.within(&format!("[{name}]")))?;
                }
                _ => reader.skip(wire_type)?,
            }
        }
        Ok((name.to_owned(), value.unwrap_or_zero(element)))
    }

    /// Decodes one value. `earlier` is the previous value of the same field; the parts of a message are merged.
    fn value(
        &mut self,
        kind: &Type,
        reader: &mut Reader<'_>,
        wire_type: u8,
        earlier: Option<Value>,
    ) -> Result<Decoded> {
        match kind {
            Type::Bool => {
                let truth = number_of(reader, wire_type)? != 0;
                return Ok(Decoded { value: Some(Value::Bool(truth)), is_zero: !truth });
            }
            Type::Int32 | Type::Int64 => {
                let number = number_of(reader, wire_type)?;
                if matches!(kind, Type::Int32) && i32::try_from(number).is_err() {
                    return Err(Problem::Number.into());
                }
                return Ok(Decoded { value: Some(Value::from(number)), is_zero: number == 0 });
            }
            _ => {}
        }
        let bytes = message_of(reader, wire_type)?;
        match kind {
            Type::Text => self.text(bytes),
            Type::Quantity => self.text(only_field(bytes)?),
            Type::IntOrText => self.int_or_text(bytes),
            Type::Time | Type::MicroTime => moment(bytes, matches!(kind, Type::MicroTime)),
            Type::Json | Type::FieldsV1 => {
                let raw = only_field(bytes)?;
                self.spend(raw.len().saturating_mul(JSON_GROWTH))?;
                if raw.is_empty() {
                    return Ok(Decoded::ABSENT);
                }
                let value: Value = serde_json::from_slice(raw).map_err(|_| Problem::Json)?;
                if matches!(kind, Type::FieldsV1) && !value.is_object() {
                    return Err(Problem::Json.into());
                }
                Ok(Decoded { value: Some(value), is_zero: false })
            }
            Type::Object(table) => {
                let mut object = match earlier {
                    Some(Value::Object(object)) => object,
                    _ => Object::new(),
                };
                let is_zero = self.message(table, bytes, &mut object)?;
                Ok(Decoded { value: Some(Value::Object(object)), is_zero })
            }
            // Protobuf has no lists of lists or maps, and the other types are handled above.
            _ => Err(Problem::Key.into()),
        }
    }

    fn text(&mut self, bytes: &[u8]) -> Result<Decoded> {
        let text = text(bytes)?;
        self.spend(text.len())?;
        Ok(Decoded { value: Some(Value::from(text)), is_zero: text.is_empty() })
    }

    fn int_or_text(&mut self, bytes: &[u8]) -> Result<Decoded> {
        let (mut is_text, mut number, mut string) = (false, 0, &[][..]);
        let mut reader = Reader::new(bytes);
        while let Some((tag, wire_type)) = reader.key()? {
            match tag {
                1 => is_text = number_of(&mut reader, wire_type)? != 0,
                2 => number = number_of(&mut reader, wire_type)?,
                3 => string = message_of(&mut reader, wire_type)?,
                _ => reader.skip(wire_type)?,
            }
        }
        if is_text {
            return self.text(string);
        }
        let number = i32::try_from(number).map_err(|_| Problem::Number)?;
        Ok(Decoded { value: Some(Value::from(number)), is_zero: number == 0 })
    }
}

/// A decoded value, and whether it is the zero value of its type.
struct Decoded {
    value: Option<Value>,
    is_zero: bool,
}

impl Decoded {
    const ABSENT: Self = Self { value: None, is_zero: true };

    /// Returns the value for an element of a list or map, which cannot be absent.
    fn unwrap_or_zero(self, kind: &Type) -> Value {
        self.value.unwrap_or_else(|| match kind {
            Type::Text => Value::from(""),
            Type::Quantity => Value::from("0"),
            _ => Value::Null,
        })
    }
}

/// Decodes a `Timestamp`. An empty message is Go's zero time, which is null in JSON.
fn moment(bytes: &[u8], micro: bool) -> Result<Decoded> {
    if bytes.is_empty() {
        return Ok(Decoded::ABSENT);
    }
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader::new(bytes);
    while let Some((tag, wire_type)) = reader.key()? {
        match tag {
            1 => seconds = number_of(&mut reader, wire_type)?,
            2 => nanos = number_of(&mut reader, wire_type)?,
            _ => reader.skip(wire_type)?,
        }
    }
    let nanos = u32::try_from(nanos).map_err(|_| Problem::Time)?;
    let text = if micro { timestamp::micro(seconds, nanos) } else { timestamp::whole(seconds) };
    Ok(Decoded { value: Some(Value::from(text.ok_or(Problem::Time)?)), is_zero: false })
}

/// Returns the bytes of a message's field 1.
fn only_field(bytes: &[u8]) -> Result<&[u8]> {
    let mut only = &[][..];
    let mut reader = Reader::new(bytes);
    while let Some((tag, wire_type)) = reader.key()? {
        match tag {
            1 => only = message_of(&mut reader, wire_type)?,
            _ => reader.skip(wire_type)?,
        }
    }
    Ok(only)
}

fn message_of<'a>(reader: &mut Reader<'a>, wire_type: u8) -> std::result::Result<&'a [u8], Problem> {
    expect(wire_type, LENGTH)?;
    reader.bytes()
}

fn number_of(reader: &mut Reader<'_>, wire_type: u8) -> std::result::Result<i64, Problem> {
    expect(wire_type, VARINT)?;
    reader.varint().map(u64::cast_signed)
}

fn expect(got: u8, expected: u8) -> std::result::Result<(), Problem> {
    if got == expected { Ok(()) } else { Err(Problem::WireType { expected, got }) }
}

fn text(bytes: &[u8]) -> std::result::Result<&str, Problem> {
    std::str::from_utf8(bytes).map_err(|_| Problem::Utf8)
}

impl From<Problem> for DecodeError {
    fn from(problem: Problem) -> Self {
        Self { field: String::new(), problem }
    }
}

impl DecodeError {
    /// Returns the error with a path that starts at the object that holds `part`.
    fn within(self, part: &str) -> Self {
        Self { field: super::joined(part, &self.field), problem: self.problem }
    }
}
