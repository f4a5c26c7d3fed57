//! Lenient decoding: accepts valid fields and reports the others.
//!
//! [`Loose`] reads a value of any shape. The wanted shape becomes `Value`. Any other is skipped as a whole and
//! becomes `Mismatch`, so a wrong type in one field never aborts the decoding of the surrounding object. If a key is
//! repeated, its last value is used, as in the API server's decoder.
//!
//! The same types read protobuf ([`Shape::field`]). There, lists are repeated fields, and repeated messages are merged. Go's
//! encoder writes the zero value of a field that is no pointer in Go, where JSON mostly has no key; it counts as absent then.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Fault;
use super::message::{Fields, Malformed, Value};

/// The value found where a `T` is wanted.
#[derive(Debug, Clone, Default)]
pub(crate) enum Loose<T> {
    /// The key is absent.
    #[default]
    Absent,
    /// `null`, which the API treats as absent.
    Null,
    /// A value of the wanted shape.
    Value(T),
    /// A value of another shape, with the name of that shape.
    Mismatch(&'static str),
}

/// A text, borrowed from the input if it has no escapes.
pub(crate) type Text<'de> = Cow<'de, str>;

/// The faults of one object.
pub(crate) type Faults = Vec<Fault>;

/// Largest number of faults listed for one object: enough to fix it, few enough for a log.
const MOST_FAULTS: usize = 32;

/// Adds a fault. Beyond the limit, a single fault says that there are more.
pub(super) fn fault(faults: &mut Faults, field: impl Into<String>, reason: impl Into<String>) {
    let (field, reason): (String, String) = match faults.len() {
        0..MOST_FAULTS => (field.into(), reason.into()),
        MOST_FAULTS => {
            (field.into(), "and more fields after this one are bad too; mend those above first".into())
        }
        _ => return,
    };
    faults.push(Fault::new(field, reason));
}

impl<T> Loose<T> {
    /// Returns true if the key is present, whatever its value.
    pub(super) fn is_present(&self) -> bool {
        !matches!(self, Self::Absent)
    }

    /// Returns true if the key is absent or its value is `null`.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Absent | Self::Null)
    }

    /// Returns the value. A mismatch is reported under the path that `field` returns.
    pub(super) fn take(self, faults: &mut Faults, field: impl FnOnce() -> String, wanted: &str) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Null => None,
            Self::Mismatch(found) => {
                fault(faults, field(), format!("is {found}; write {wanted}"));
                None
            }
        }
    }
}

impl<T: Default> Loose<T> {
    /// Returns the record or list, or an empty one.
    pub(super) fn or_empty(self, faults: &mut Faults, field: &str, wanted: &str) -> T {
        self.take(faults, || field.to_owned(), wanted).unwrap_or_default()
    }
}

impl Loose<Text<'_>> {
    /// Returns the text. Any other shape counts as absent.
    pub(super) fn text(&self) -> Option<&str> {
        if let Self::Value(text) = self { Some(text) } else { None }
    }
}

/// A shape of a value. Each method for JSON returns `None` unless its shape is the wanted one.
pub(crate) trait Shape<'de>: Sized {
    /// Reads a field of a protobuf message. `so_far` is what earlier fields with the same number had.
    ///
    /// # Errors
    /// The field has a message, and it or one in it is malformed. As in JSON, the object cannot be read then.
    fn field(field: Value<'de>, so_far: Loose<Self>) -> Result<Loose<Self>, Malformed>;
    /// Returns true for the zero value in Go.
    fn is_zero(&self) -> bool {
        false
    }
    fn text(_: Text<'de>) -> Option<Self> {
        None
    }
    fn integer(_: i64) -> Option<Self> {
        None
    }
    fn boolean(_: bool) -> Option<Self> {
        None
    }
    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Option<Self>, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }
    fn record<A: MapAccess<'de>>(mut record: A) -> Result<Option<Self>, A::Error> {
        while record.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

/// What is found where a message, a list or a text is wanted in protobuf.
const NUMBER: &str = "a number";

/// Reads one more field of a message into its place. Zero values count as absent, unless they are kept.
pub(super) fn add<'de, T: Shape<'de>>(
    place: &mut Loose<T>,
    field: Value<'de>,
    is_kept: bool,
) -> Result<(), Malformed> {
    *place = match T::field(field, std::mem::take(place))? {
        Loose::Value(value) if !is_kept && value.is_zero() => Loose::Absent,
        value => value,
    };
    Ok(())
}

/// Reads a message into what earlier ones had, with the function that reads one field by its number.
pub(super) fn merge<'de, T: Default>(
    field: Value<'de>,
    so_far: Loose<T>,
    take: impl Fn(&mut T, u32, Value<'de>) -> Result<(), Malformed>,
) -> Result<Loose<T>, Malformed> {
    let Value::Bytes(message) = field else { return Ok(Loose::Mismatch(NUMBER)) };
    let mut value = if let Loose::Value(value) = so_far { value } else { T::default() };
    for field in Fields::new(message) {
        let (number, field) = field?;
        take(&mut value, number, field)?;
    }
    Ok(Loose::Value(value))
}

impl<'de> Shape<'de> for Text<'de> {
    fn field(field: Value<'de>, _: Loose<Self>) -> Result<Loose<Self>, Malformed> {
        Ok(match (field, field.text()) {
            (_, Some(text)) => Loose::Value(Cow::Borrowed(text)),
            (Value::Bytes(_), None) => Loose::Mismatch("no UTF-8"),
            (Value::Number(_) | Value::Fixed, None) => Loose::Mismatch(NUMBER),
        })
    }
    fn is_zero(&self) -> bool {
        self.is_empty()
    }
    fn text(text: Text<'de>) -> Option<Self> {
        Some(text)
    }
}

impl Shape<'_> for i64 {
    fn field(field: Value<'_>, _: Loose<Self>) -> Result<Loose<Self>, Malformed> {
        Ok(match field {
            Value::Number(number) => Loose::Value(number.cast_signed()),
            Value::Bytes(_) => Loose::Mismatch("text"),
            Value::Fixed => Loose::Mismatch("another kind of number"),
        })
    }
    fn is_zero(&self) -> bool {
        *self == 0
    }
    fn integer(value: i64) -> Option<Self> {
        Some(value)
    }
}

impl Shape<'_> for bool {
    fn field(field: Value<'_>, _: Loose<Self>) -> Result<Loose<Self>, Malformed> {
        let number = if let Value::Number(number) = field { Some(number) } else { None };
        Ok(number.map_or(Loose::Mismatch("no truth value"), |number| Loose::Value(number != 0)))
    }
    fn boolean(value: bool) -> Option<Self> {
        Some(value)
    }
}

impl<'de, T: Shape<'de>> Shape<'de> for Vec<Loose<T>> {
    fn field(field: Value<'de>, so_far: Loose<Self>) -> Result<Loose<Self>, Malformed> {
        let mut items = if let Loose::Value(items) = so_far { items } else { Self::new() };
        items.push(T::field(field, Loose::Absent)?);
        Ok(Loose::Value(items))
    }
    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Option<Self>, A::Error> {
        let mut items = Self::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Some(items))
    }
}

/// Declares a record of loose fields with its [`Shape`]. Other keys are skipped. Each field has its key in JSON and, if it is in the
/// message, its number in protobuf. After the number comes `kept` if the zero value is not absence: the field is a pointer in Go, or
/// JSON always has its key.
macro_rules! record {
    ($(#[$meta:meta])* $name:ident {
        $($field:ident: $key:literal $(= $number:literal $($kept:ident)?)? => $type:ty,)*
    }) => {
        crate::object::lenient::fields!($(#[$meta])* $name { $($field: $key => $type,)* } {
            fn field(
                field: crate::object::message::Value<'de>,
                so_far: crate::object::lenient::Loose<Self>,
            ) -> Result<crate::object::lenient::Loose<Self>, crate::object::message::Malformed> {
                crate::object::lenient::merge(field, so_far, |value: &mut Self, number, field| match number {
                    $($($number => {
                        let is_kept = !stringify!($($kept)?).is_empty();
                        crate::object::lenient::add(&mut value.$field, field, is_kept)
                    })?)*
                    _ => Ok(()),
                })
            }
        });
    };
}
pub(super) use record;

/// Declares a record of some entries of a map of texts, with its [`Shape`].
macro_rules! entries {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $key:literal,)* }) => {
        crate::object::lenient::fields!($(#[$meta])* $name {
            $($field: $key => crate::object::lenient::Text<'de>,)*
        } {
            fn field(
                field: crate::object::message::Value<'de>,
                so_far: crate::object::lenient::Loose<Self>,
            ) -> Result<crate::object::lenient::Loose<Self>, crate::object::message::Malformed> {
                use crate::object::lenient::{Loose, add};
                use crate::object::message::entry;
                let mut value = if let Loose::Value(value) = so_far { value } else { Self::default() };
                match entry(field)? {
                    $(($key, field) => add(&mut value.$field, field, true)?,)*
                    _ => {}
                }
                Ok(Loose::Value(value))
            }
        });
    };
}
pub(super) use entries;

/// Declares the struct of a record, and its [`Shape`] with what reads protobuf.
macro_rules! fields {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $key:literal => $type:ty,)* } { $($wire:item)* }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        pub(crate) struct $name<'de> {
            $(pub(super) $field: crate::object::lenient::Loose<$type>,)*
            input: std::marker::PhantomData<&'de ()>,
        }

        impl<'de> crate::object::lenient::Shape<'de> for $name<'de> {
            $($wire)*

            fn record<A: serde::de::MapAccess<'de>>(mut record: A) -> Result<Option<Self>, A::Error> {
                let mut value = Self::default();
                while let Some(key) = record.next_key::<crate::object::lenient::Key<'de>>()? {
                    match &*key.0 {
                        $($key => value.$field = record.next_value()?,)*
                        _ => { record.next_value::<serde::de::IgnoredAny>()?; }
                    }
                }
                Ok(Some(value))
            }
        }
    };
}
pub(super) use fields;

/// A key of a record, borrowed from the input if it has no escapes.
pub(super) struct Key<'de>(pub(super) Text<'de>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(key)))
            }
            fn visit_str<E>(self, key: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(key.to_owned())))
            }
        }
        deserializer.deserialize_str(KeyVisitor)
    }
}

impl<'de, T: Shape<'de>> Deserialize<'de> for Loose<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LooseVisitor(PhantomData))
    }
}

struct LooseVisitor<T>(PhantomData<T>);

impl<T> LooseVisitor<T> {
    fn known(value: Option<T>, found: &'static str) -> Loose<T> {
        value.map_or(Loose::Mismatch(found), Loose::Value)
    }
}

impl<'de, T: Shape<'de>> Visitor<'de> for LooseVisitor<T> {
    type Value = Loose<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Loose<T>, E> {
        Ok(Self::known(T::text(Cow::Borrowed(text)), "text"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Loose<T>, E> {
        Ok(Self::known(T::text(Cow::Owned(text.to_owned())), "text"))
    }

    fn visit_string<E>(self, text: String) -> Result<Loose<T>, E> {
        Ok(Self::known(T::text(Cow::Owned(text)), "text"))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Loose<T>, E> {
        Ok(Self::known(T::boolean(value), "true or false"))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Loose<T>, E> {
        Ok(Self::known(T::integer(value), "a number"))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Loose<T>, E> {
        Ok(Self::known(T::integer(i64::try_from(value).unwrap_or(i64::MAX)), "a number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Loose<T>, E> {
        Ok(Loose::Mismatch("not a whole number"))
    }

    fn visit_unit<E>(self) -> Result<Loose<T>, E> {
        Ok(Loose::Null)
    }

    fn visit_none<E>(self) -> Result<Loose<T>, E> {
        Ok(Loose::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Loose<T>, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Loose<T>, A::Error> {
        Ok(Self::known(T::list(list)?, "a list"))
    }

    fn visit_map<A: MapAccess<'de>>(self, record: A) -> Result<Loose<T>, A::Error> {
        Ok(Self::known(T::record(record)?, "an object"))
    }
}
