//! Label and field selectors, which restrict the objects of a list, watch or deletecollection.
//!
//! Grammar: the comma is AND. Labels: `k=v`, `k==v`, `k!=v`, `k in (a,b)`, `k notin (a,b)`, `k`, `!k`, `k>1`, `k<1`.
//! Fields: `f=v`, `f==v`, `f!=v`, with a backslash before `\`, `,` and `=`.

use portolan_schema::{Resource, view};
use portolan_store::{Pairs, StoredObject};

use crate::{
    error::ApiError,
    names::{is_label_value, is_qualified_name},
};

#[cfg(test)]
mod tests;

/// Label and field requirements. An object must meet all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    labels: Vec<LabelRequirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct LabelRequirement {
    key: String,
    test: LabelTest,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum LabelTest {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
    Greater(i64),
    Less(i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldRequirement {
    field: Field,
    value: String,
    equal: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Field {
    Name,
    Namespace,
    Other(&'static str),
}

impl Selector {
    /// Parses the two query parameters. An absent one is an empty text.
    pub fn parse(resource: Resource, labels: &str, fields: &str) -> Result<Self, ApiError> {
        Ok(Self { labels: parse_labels(labels)?, fields: parse_fields(resource, fields)? })
    }

    /// Adds the requirement that the object has this name.
    #[must_use]
    pub fn with_name(mut self, name: &str) -> Self {
        self.fields.push(FieldRequirement { field: Field::Name, value: name.to_owned(), equal: true });
        self
    }

    /// Returns the key of the only object that can match, if the name is required, and the namespace is given or
    /// required.
    pub fn key(&self, resource: Resource, namespace: Option<&str>) -> Option<String> {
        let required = |field| {
            let one = self.fields.iter().find(|it| it.equal && it.field == field);
            one.map(|requirement| requirement.value.as_str())
        };
        let name = required(Field::Name)?;
        if !resource.info().namespaced {
            return Some(name.to_owned());
        }
        Some(format!("{}/{name}", namespace.or_else(|| required(Field::Namespace))?))
    }

    /// Returns true if every object matches.
    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Returns true if the object matches.
    pub fn matches(&self, object: &StoredObject) -> bool {
        self.fields.iter().all(|requirement| requirement.matches(object))
            && self.labels.iter().all(|requirement| requirement.matches(object.labels()))
    }
}

impl LabelRequirement {
    fn matches(&self, labels: &Pairs) -> bool {
        let value = labels.get(&self.key);
        let number = || value.and_then(|text| text.parse::<i64>().ok());
        match &self.test {
            LabelTest::Exists => value.is_some(),
            LabelTest::Absent => value.is_none(),
            LabelTest::In(values) => value.is_some_and(|value| values.iter().any(|it| it == value)),
            LabelTest::NotIn(values) => value.is_none_or(|value| values.iter().all(|it| it != value)),
            LabelTest::Greater(bound) => number().is_some_and(|number| number > *bound),
            LabelTest::Less(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

impl FieldRequirement {
    fn matches(&self, object: &StoredObject) -> bool {
        let actual = match self.field {
            Field::Name => object.name(),
            Field::Namespace => object.namespace(),
            Field::Other(path) => object.field(path),
        };
        (actual == self.value) == self.equal
    }
}

fn bad_labels(text: &str, reason: &'static str) -> ApiError {
    ApiError::BadParameter { parameter: "labelSelector", value: text.to_owned(), reason }
}

fn bad_fields(text: &str, reason: &'static str) -> ApiError {
    ApiError::BadParameter { parameter: "fieldSelector", value: text.to_owned(), reason }
}

fn parse_labels(text: &str) -> Result<Vec<LabelRequirement>, ApiError> {
    let parts = split_outside_parentheses(text);
    if parts.len() == 1 && text.trim().is_empty() {
        return Ok(Vec::new());
    }
    parts.into_iter().map(|part| parse_label(part.trim())).collect()
}

/// Splits at commas outside of parentheses.
fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.split(|character| {
        match character {
            '(' => inside = true,
            ')' => inside = false,
            _ => {}
        }
        character == ',' && !inside
    })
    .collect()
}

fn parse_label(term: &str) -> Result<LabelRequirement, ApiError> {
    let (key, test) = if let Some(key) = term.strip_prefix('!') {
        (key.trim(), LabelTest::Absent)
    } else if let Some(found) = parse_set(term)? {
        found
    } else if let Some((key, value)) = term.split_once("!=") {
        (key.trim(), LabelTest::NotIn(vec![label_value(term, value)?]))
    } else if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        (key.trim(), LabelTest::In(vec![label_value(term, value)?]))
    } else if let Some((key, value)) = term.split_once('>') {
        (key.trim(), LabelTest::Greater(label_bound(term, value)?))
    } else if let Some((key, value)) = term.split_once('<') {
        (key.trim(), LabelTest::Less(label_bound(term, value)?))
    } else {
        (term, LabelTest::Exists)
    };
    if is_qualified_name(key) {
        Ok(LabelRequirement { key: key.to_owned(), test })
    } else {
        Err(bad_labels(term, "the key must be a label name with an optional DNS prefix"))
    }
}

/// Parses `key in (a,b)` or `key notin (a,b)`. `None` if there is no parenthesis.
fn parse_set(text: &str) -> Result<Option<(&str, LabelTest)>, ApiError> {
    let Some((head, rest)) = text.split_once('(') else { return Ok(None) };
    let values = rest.strip_suffix(')').ok_or_else(|| bad_labels(text, "the list must end with )"))?;
    let values = values.split(',').map(|value| label_value(text, value)).collect::<Result<Vec<_>, _>>()?;
    let mut words = head.split_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some(key), Some("in"), None) => Ok(Some((key, LabelTest::In(values)))),
        (Some(key), Some("notin"), None) => Ok(Some((key, LabelTest::NotIn(values)))),
        _ => Err(bad_labels(text, "a list in ( ) must follow `key in` or `key notin`")),
    }
}

fn label_value(text: &str, value: &str) -> Result<String, ApiError> {
    let value = value.trim();
    if is_label_value(value) {
        Ok(value.to_owned())
    } else {
        Err(bad_labels(
            text,
            "the value must be a label value: at most 63 of letters, digits, '-', '_' and '.'",
        ))
    }
}

fn label_bound(text: &str, value: &str) -> Result<i64, ApiError> {
    value.trim().parse().map_err(|_| bad_labels(text, "> and < need an integer"))
}

fn parse_fields(resource: Resource, text: &str) -> Result<Vec<FieldRequirement>, ApiError> {
    let mut requirements = Vec::new();
    for term in split_unescaped(text) {
        if term.is_empty() {
            continue;
        }
        let (field, equal, value) = split_field(term).ok_or_else(|| {
            bad_fields(term, "a field selector is field=value, field==value or field!=value")
        })?;
        let field = selectable(resource, field)
            .ok_or_else(|| bad_fields(term, "this field of the resource is not selectable"))?;
        let value = unescape(value).ok_or_else(|| bad_fields(term, "\\ may only precede \\, comma or ="))?;
        requirements.push(FieldRequirement { field, value, equal });
    }
    Ok(requirements)
}

fn selectable(resource: Resource, field: &str) -> Option<Field> {
    match field {
        "metadata.name" => Some(Field::Name),
        "metadata.namespace" if resource.info().namespaced => Some(Field::Namespace),
        other => {
            let field = resource.info().selectable.iter().find(|it| **it == other)?;
            view::stored_field(resource, field).map(Field::Other)
        }
    }
}

/// Splits at commas without a backslash before them.
fn split_unescaped(text: &str) -> Vec<&str> {
    let mut escaped = false;
    text.split(|character| {
        let was_escaped = std::mem::take(&mut escaped);
        escaped = character == '\\' && !was_escaped;
        character == ',' && !was_escaped
    })
    .collect()
}

fn split_field(term: &str) -> Option<(&str, bool, &str)> {
    let (head, value) = term.split_once('=')?;
    if let Some(field) = head.strip_suffix('!') {
        return Some((field, false, value));
    }
    Some((head, true, value.strip_prefix('=').unwrap_or(value)))
}

fn unescape(value: &str) -> Option<String> {
    let mut plain = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => plain.push(characters.next().filter(|next| matches!(next, '\\' | ',' | '='))?),
            '=' => return None,
            other => plain.push(other),
        }
    }
    Some(plain)
}
