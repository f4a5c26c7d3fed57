//! Kind and metadata of an object: all that is needed of a deleted object or a bookmark.

use std::borrow::Cow;

use portolan_model::object::message::{self, Fields, Malformed, Value};
use portolan_model::object::{DecodeError, Encoded, Kind};
use serde::Deserialize;

/// The annotation that marks the bookmark that ends a streamed list (KEP-3157).
const END: &str = "k8s.io/initial-events-end";

#[derive(Default, Deserialize)]
pub(super) struct Identity<'a> {
    /// Empty if it is missing.
    #[serde(borrow, default)]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) metadata: Metadata<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata<'a> {
    #[serde(borrow)]
    pub(super) name: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) namespace: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) resource_version: Cow<'a, str>,
    #[serde(borrow)]
    annotations: Option<Annotations<'a>>,
}

#[derive(Default, Deserialize)]
struct Annotations<'a> {
    #[serde(borrow, default, rename = "k8s.io/initial-events-end")]
    end: Option<Cow<'a, str>>,
}

impl<'a> Identity<'a> {
    /// Reads an object that should be of this kind.
    pub(super) fn read(kind: Kind, object: Encoded<'a>) -> Result<Self, DecodeError> {
        match object {
            Encoded::Json(bytes) => {
                serde_json::from_slice(bytes).map_err(|source| DecodeError::Syntax { kind, source })
            }
            Encoded::Protobuf { kind: said, message } => {
                let metadata =
                    Metadata::read(message).map_err(|source| DecodeError::Message { kind, source })?;
                Ok(Self { kind: said.into(), metadata })
            }
        }
    }

    /// Returns true for the bookmark that ends a streamed list.
    pub(super) fn is_end(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.is_some_and(|annotations| annotations.end.as_deref() == Some("true"))
    }
}

impl<'a> Metadata<'a> {
    /// Reads the metadata of an object: field 1 of every kind.
    fn read(object: &'a [u8]) -> Result<Self, Malformed> {
        let mut metadata = Self::default();
        for field in Fields::new(object) {
            if let (1, Value::Bytes(message)) = field? {
                for field in Fields::new(message) {
                    metadata.take(field?)?;
                }
            }
        }
        Ok(metadata)
    }

    fn take(&mut self, (number, value): (u32, Value<'a>)) -> Result<(), Malformed> {
        let text = || value.text().map(Cow::Borrowed).ok_or(Malformed);
        match number {
            1 => self.name = text()?,
            3 => self.namespace = text()?,
            6 => self.resource_version = text()?,
            12 => {
                let (key, content) = message::entry(value)?;
                if key == END {
                    self.annotations = Some(Annotations { end: content.text().map(Cow::Borrowed) });
                }
            }
            _ => {}
        }
        Ok(())
    }
}
