//! Encodes JSON text as protobuf without decoding it first.
//!
//! Follows the tables like `encode`, but in the order of the text. Its error does not name the field that is wrong. A
//! caller that needs the field decodes the text and calls `encode`.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::wire::{put_bytes, put_message, put_number};
use crate::shape::{Field, Struct, Type, timestamp};

/// Appends the message of the object in `json`. After an error, `out` keeps what was appended.
pub(super) fn message(out: &mut Vec<u8>, table: &'static Struct, json: &[u8]) -> serde_json::Result<()> {
    let mut text = serde_json::Deserializer::from_slice(json);
    Fields { out, table }.deserialize(&mut text)?;
    text.end()
}

/// Writes an object as the fields of a message.
struct Fields<'o> {
    out: &'o mut Vec<u8>,
    table: &'static Struct,
}

/// Writes a value as a field of a message.
struct Put<'o> {
    out: &'o mut Vec<u8>,
    tag: u32,
    kind: &'static Type,
    /// True if null means absent. It does in an object, but not in a list or map.
    nullable: bool,
}

/// Finds the field with the name of a member.
struct Named(&'static Struct);

/// Writes a text as field 1 of a map's entry.
struct Name<'o>(&'o mut Vec<u8>);

impl<'de> DeserializeSeed<'de> for Fields<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, text: D) -> Result<(), D::Error> {
        text.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(field) = members.next_key_seed(Named(self.table))? {
            match field {
                Some(Field { tag, kind, .. }) if *tag != 0 => {
                    members.next_value_seed(Put { out: self.out, tag: *tag, kind, nullable: true })?;
                }
                _ => drop(members.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Put<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, text: D) -> Result<(), D::Error> {
        if !matches!(self.kind, Type::Json | Type::FieldsV1) {
            return text.deserialize_any(self);
        }
        let raw = <&RawValue>::deserialize(text)?.get();
        match (self.kind, raw) {
            (_, "null") if self.nullable => Ok(()),
            (Type::FieldsV1, raw) if !raw.starts_with('{') => Err(unfit()),
            (_, raw) => {
                // The text is field 1 of `RawExtension` and `FieldsV1`.
                put_message(self.out, self.tag, |out| {
                    put_bytes(out, 1, raw.as_bytes());
                    Ok(())
                })
            }
        }
    }
}

impl<'de> Visitor<'de> for Put<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.kind.description())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        if self.nullable { Ok(()) } else { Err(unfit()) }
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<(), E> {
        if !matches!(self.kind, Type::Bool) {
            return Err(unfit());
        }
        put_number(self.out, self.tag, i64::from(truth));
        Ok(())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.visit_i64(i64::try_from(number).map_err(|_| unfit::<E>())?)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        match self.kind {
            Type::Int32 | Type::Int64 => put_number(self.out, self.tag, number),
            Type::IntOrText => self.int_or_text(number, None),
            _ => return Err(unfit()),
        }
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        match self.kind {
            Type::Text => put_bytes(self.out, self.tag, text.as_bytes()),
            Type::IntOrText => self.int_or_text(0, Some(text)),
            Type::Time | Type::MicroTime => {
                let (seconds, nanos) = timestamp::parse(text).ok_or_else(unfit::<E>)?;
                put_message(self.out, self.tag, |out| {
                    put_number(out, 1, seconds);
                    put_number(out, 2, i64::from(nanos));
                    Ok::<_, E>(())
                })?;
            }
            Type::Quantity => put_message(self.out, self.tag, |out| {
                put_bytes(out, 1, text.as_bytes());
                Ok::<_, E>(())
            })?,
            _ => return Err(unfit()),
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let (out, tag, Type::List(kind)) = (self.out, self.tag, self.kind) else { return Err(unfit()) };
        while elements.next_element_seed(Put { out, tag, kind, nullable: false })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        match self.kind {
            Type::Object(table) => {
                put_message(self.out, self.tag, |out| Fields { out, table }.visit_map(members))
            }
            Type::Map(kind) => loop {
                let mut more = true;
                let at = self.out.len();
                put_message(self.out, self.tag, |out| {
                    more = members.next_key_seed(Name(out))?.is_some();
                    if more {
                        members.next_value_seed(Put { out, tag: 2, kind, nullable: false })?;
                    }
                    Ok(())
                })?;
                if !more {
                    // There is no further member: remove the entry that was begun for it.
                    self.out.truncate(at);
                    return Ok(());
                }
            },
            _ => Err(unfit()),
        }
    }
}

impl Put<'_> {
    /// Writes an `IntOrString`: its type, then the integer and the text.
    fn int_or_text(self, number: i64, text: Option<&str>) {
        let Ok(()) = put_message(self.out, self.tag, |out| {
            put_number(out, 1, i64::from(text.is_some()));
            put_number(out, 2, number);
            put_bytes(out, 3, text.unwrap_or_default().as_bytes());
            Ok::<_, std::convert::Infallible>(())
        });
    }
}

impl<'de> DeserializeSeed<'de> for Named {
    type Value = Option<&'static Field>;

    fn deserialize<D: Deserializer<'de>>(self, text: D) -> Result<Self::Value, D::Error> {
        text.deserialize_str(self)
    }
}

impl Visitor<'_> for Named {
    type Value = Option<&'static Field>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.field(name))
    }
}

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, text: D) -> Result<(), D::Error> {
        text.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<(), E> {
        put_bytes(self.0, 1, name.as_bytes());
        Ok(())
    }
}

fn unfit<E: Error>() -> E {
    E::custom("the value does not fit its field")
}
