//! Encodes an OpenAPI 2 document as the message `openapi.v2.Document` of gnostic, the only form that kubectl before
//! 1.27 reads.
//!
//! Field numbers are those of gnostic's `openapiv2/OpenAPIv2.proto`. Only the fields that these documents use are
//! written.

use crate::json::{List, Map, Text, Value};

/// A message that is being encoded.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn bytes(mut self, tag: u64, bytes: &[u8]) -> Self {
        // Wire type 2: length-delimited.
        varint(&mut self.0, tag << 3 | 2);
        varint(&mut self.0, bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn message(self, tag: u64, message: &Self) -> Self {
        self.bytes(tag, &message.0)
    }

    fn messages(self, tag: u64, messages: impl IntoIterator<Item = Self>) -> Self {
        messages.into_iter().fold(self, |whole, message| whole.message(tag, &message))
    }

    /// Appends the text at `key`, if there is one.
    fn text(self, tag: u64, of: &Value, key: &str) -> Self {
        match of.get(key).and_then(Value::as_str) {
            Some(text) => self.bytes(tag, text.as_bytes()),
            None => self,
        }
    }

    /// Appends the texts in the list at `key`.
    fn texts(self, tag: u64, of: &Value, key: &str) -> Self {
        let texts = list(of, key).iter().filter_map(Value::as_str);
        texts.fold(self, |whole, text| whole.bytes(tag, text.as_bytes()))
    }

    /// Appends the flag at `key`, if it is true.
    fn flag(mut self, tag: u64, of: &Value, key: &str) -> Self {
        if of.get(key).and_then(Value::as_bool) == Some(true) {
            varint(&mut self.0, tag << 3);
            self.0.push(1);
        }
        self
    }

    /// Appends the member at `key`, encoded by `make`, if there is one.
    fn member(self, tag: u64, of: &Value, key: &str, make: impl Fn(&Value) -> Self) -> Self {
        match of.get(key) {
            Some(value) => self.message(tag, &make(value)),
            None => self,
        }
    }

    /// Appends every `x-...` member as a `NamedAny`.
    fn extensions(self, tag: u64, of: &Value) -> Self {
        let extensions = members(of).filter(|(name, _)| name.starts_with("x-"));
        self.messages(tag, extensions.map(|(name, value)| named(name, &any(value))))
    }
}

/// Encodes the document as protobuf.
pub fn to_protobuf(document: &Value) -> Vec<u8> {
    let info = |info: &Value| Message::default().text(1, info, "title").text(2, info, "version");
    let paths = |paths: &Value| {
        Message::default().messages(2, members(paths).map(|(name, it)| named(name, &path(it))))
    };
    Message::default()
        .text(1, document, "swagger")
        .member(2, document, "info", info)
        .member(8, document, "paths", paths)
        .member(9, document, "definitions", schemas)
        .0
}

fn path(item: &Value) -> Message {
    [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")]
        .into_iter()
        .fold(Message::default(), |path, (tag, method)| path.member(tag, item, method, operation))
        .messages(9, list(item, "parameters").iter().map(parameter))
}

fn operation(it: &Value) -> Message {
    Message::default()
        .texts(1, it, "tags")
        .text(3, it, "description")
        .text(5, it, "operationId")
        .texts(6, it, "produces")
        .texts(7, it, "consumes")
        .messages(8, list(it, "parameters").iter().map(parameter))
        .member(9, it, "responses", |responses| {
            Message::default().messages(1, members(responses).map(|(code, it)| named(code, &response(it))))
        })
        .extensions(13, it)
}

/// Encodes a `ResponseValue` that holds a `Response` with a `SchemaItem`.
fn response(it: &Value) -> Message {
    let item = |it: &Value| Message::default().message(1, &schema(it));
    let response = Message::default().text(1, it, "description").member(2, it, "schema", item);
    Message::default().message(1, &response)
}

/// Encodes a `ParametersItem` that holds a `Parameter` in the body, the query or the path.
fn parameter(it: &Value) -> Message {
    let common = |required, place, doc, name| {
        let message = Message::default().flag(required, it, "required").text(place, it, "in");
        message.text(doc, it, "description").text(name, it, "name")
    };
    let parameter = match it.get("in").and_then(Value::as_str) {
        Some("body") => {
            let body = common(4, 3, 1, 2).member(5, it, "schema", schema);
            Message::default().message(1, &body)
        }
        Some("path") => {
            let path = common(1, 2, 3, 4).text(5, it, "type");
            Message::default().message(2, &Message::default().message(4, &path))
        }
        _ => {
            let query = common(1, 2, 3, 4).text(6, it, "type");
            Message::default().message(2, &Message::default().message(3, &query))
        }
    };
    Message::default().message(1, &parameter)
}

/// Encodes schemas by name: `Definitions` or `Properties`.
fn schemas(it: &Value) -> Message {
    Message::default().messages(1, members(it).map(|(name, it)| named(name, &schema(it))))
}

fn schema(it: &Value) -> Message {
    let wrapped = |it: &Value| Message::default().message(1, &schema(it));
    let kind = |it: &Value| Message::default().bytes(1, it.as_str().unwrap_or_default().as_bytes());
    Message::default()
        .text(1, it, "$ref")
        .text(2, it, "format")
        .text(4, it, "description")
        .member(5, it, "default", any)
        .texts(19, it, "required")
        .messages(20, list(it, "enum").iter().map(any))
        .member(21, it, "additionalProperties", wrapped)
        .member(22, it, "type", kind)
        .member(23, it, "items", wrapped)
        .member(25, it, "properties", schemas)
        .extensions(31, it)
}

/// Encodes any value as YAML, of which JSON is a subset.
fn any(value: &Value) -> Message {
    Message::default().bytes(2, value.to_string().as_bytes())
}

/// Encodes an entry of a map.
fn named(name: &str, value: &Message) -> Message {
    Message::default().bytes(1, name.as_bytes()).message(2, value)
}

fn members(of: &Value) -> impl Iterator<Item = (&Text, &Value)> {
    of.as_object().map(Map::iter).into_iter().flatten()
}

fn list<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of.get(key).and_then(Value::as_array).map_or(&[], List::as_slice)
}

#[expect(clippy::cast_possible_truncation, reason = "the last seven bits are left")]
fn varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}
