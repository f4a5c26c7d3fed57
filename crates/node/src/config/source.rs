//! From text to a value, with the place of every field.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{DuplicateKeyPolicy, Error, Location, Options, Spanned};

use super::error::{ConfigError, FieldError, Problem, TextPosition};

/// The value of a text, and the places of its fields.
pub(super) struct Source {
    pub(super) value: Value,
    /// Places by path of the field, such as `nftables.masqueradeBit` or `nodePortAddresses[1]`.
    pub(super) places: Places,
    /// Every field that repeats an earlier one, in the order of the text. The last value is used.
    pub(super) duplicates: Vec<FieldError>,
}

type Places = BTreeMap<String, TextPosition>;

/// Reads the first document of a YAML or JSON text.
pub(super) fn read(text: &str) -> Result<Source, ConfigError> {
    let tree = first_document(text).map_err(|error| ConfigError::Syntax(Box::new(error)))?;
    let mut source = Source { value: Value::Null, places: Places::new(), duplicates: Vec::new() };
    source.value = tree.into_value(&mut String::new(), &mut source);
    Ok(source)
}

/// Parses the first document. Like kube-proxy, it ignores what follows the document.
fn first_document(text: &str) -> Result<Tree, Error> {
    // With `LastWins` the parser passes on every pair of a mapping, and [`Tree`] keeps them all.
    let options = || -> Options {
        serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins, legacy_octal_numbers: true }
    };
    match serde_saphyr::from_str_with_options(text, options()) {
        Err(error) if matches!(error.without_snippet(), Error::MultipleDocuments { .. }) => {
            serde_saphyr::from_str_with_options(until_second(text), options())
        }
        outcome => outcome,
    }
}

/// Returns the text up to the end of its first document. A line that begins with the marker `---` or `...` is never inside of a
/// document (YAML 1.2.2, rule `c-forbidden`). To find the end here, and not by the parser's reader of streams, keeps the tables
/// of that reader's encodings out of the program.
fn until_second(text: &str) -> &str {
    let (mut has_begun, mut end) = (false, 0_usize);
    for line in text.split_inclusive('\n') {
        let content = line.strip_prefix('\u{feff}').unwrap_or(line);
        let begins_with = |marker| {
            let rest = content.strip_prefix(marker);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
        };
        let (starts, ends) = (begins_with("---"), begins_with("..."));
        if has_begun && (starts || ends) {
            return text.get(..end).unwrap_or(text);
        }
        let is_nothing = content.trim().is_empty() || content.trim_start().starts_with('#');
        has_begun |= starts || !(ends || is_nothing || content.starts_with('%'));
        end = end.saturating_add(line.len());
    }
    text
}

/// Returns the name of a field as paths have it. An empty name could not be seen.
pub(super) fn shown(name: &str) -> &str {
    if name.is_empty() { r#""""# } else { name }
}

fn place(location: Location) -> Option<TextPosition> {
    let place = TextPosition { line: location.line(), column: location.column() };
    (location != Location::UNKNOWN).then_some(place)
}

/// A value that keeps the places of field names and list elements.
enum Tree {
    Leaf(Value),
    List(Vec<Spanned<Tree>>),
    Mapping(Vec<(Spanned<String>, Tree)>),
}

impl Tree {
    /// Adds places and duplicates to `source`. `path` is the path of this value, and is unchanged on return.
    fn into_value(self, path: &mut String, source: &mut Source) -> Value {
        let length = path.len();
        match self {
            Self::Leaf(value) => value,
            Self::List(items) => {
                let mut values = Vec::with_capacity(items.len());
                for (index, item) in items.into_iter().enumerate() {
                    let _ = write!(path, "[{index}]");
                    source.note(path, item.referenced);
                    values.push(item.value.into_value(path, source));
                    path.truncate(length);
                }
                Value::Array(values)
            }
            Self::Mapping(fields) => {
                let mut values = Map::new();
                for (name, value) in fields {
                    path.push_str(if length == 0 { "" } else { "." });
                    path.push_str(shown(&name.value));
                    source.note(path, name.referenced);
                    if values.contains_key(&name.value) {
                        source.note_duplicate(path, name.referenced);
                    }
                    values.insert(name.value, value.into_value(path, source));
                    path.truncate(length);
                }
                Value::Object(values)
            }
        }
    }
}

impl Source {
    fn note(&mut self, path: &str, location: Location) {
        if let Some(place) = place(location) {
            self.places.insert(path.to_owned(), place);
        }
    }

    fn note_duplicate(&mut self, path: &str, location: Location) {
        let place = place(location);
        self.duplicates.push(FieldError { place, ..FieldError::new(path, Problem::Duplicate) });
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Tree, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("not a finite number"))?;
        Ok(Tree::Leaf(Value::Number(number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut mapping: A) -> Result<Tree, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = mapping.next_entry()? {
            fields.push(field);
        }
        Ok(Tree::Mapping(fields))
    }

    fn visit_bytes<E: serde::de::Error>(self, _: &[u8]) -> Result<Tree, E> {
        Err(E::custom("binary data has no place in a configuration"))
    }
}
