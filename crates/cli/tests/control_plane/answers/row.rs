//! Reads the rows of the table: text in, one [`Row`] for each kind and verb out.

use serde_json::{Value, json};

use super::world::{KINDS, Kind};

/// What a row asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Create,
    /// A create of the name that the object before has.
    CreateAgain,
    /// A create with the request as YAML, unchanged.
    Yaml,
    Put,
    Merge,
    Strategic,
    Json,
    Apply,
    ApplyNew,
    StatusGet,
    StatusPut,
    StatusMerge,
    StatusStrategic,
    StatusJson,
    StatusApply,
    Finalize,
    Get,
    /// A list of the object of the row alone.
    List,
    /// A watch of the object of the row alone. The answer is the first event.
    Watch,
    Delete,
    /// A delete of the collection, as far as it is the object of the row.
    DeleteCollection,
}

/// One request and its answer.
#[derive(Debug, Clone)]
pub(super) struct Row {
    /// File and line.
    pub(super) place: String,
    pub(super) verb: Verb,
    /// Query parameters.
    pub(super) query: String,
    pub(super) kind: &'static Kind,
    /// Laid over the base object before the request.
    pub(super) before: Value,
    /// The request as it is written in the row.
    pub(super) text: String,
    pub(super) answer: Answer,
}

/// The expected answer.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    /// A part of the object.
    Object { code: u16, object: Value },
    /// The whole object.
    Whole { code: u16, object: Value },
    /// A Status, with its causes in alphabetical order.
    Refusal { code: u16, reason: String, causes: Vec<String> },
}

impl Verb {
    pub(super) const ALL: [Self; 21] = [
        Self::Create,
        Self::CreateAgain,
        Self::Yaml,
        Self::Put,
        Self::Merge,
        Self::Strategic,
        Self::Json,
        Self::Apply,
        Self::ApplyNew,
        Self::StatusGet,
        Self::StatusPut,
        Self::StatusMerge,
        Self::StatusStrategic,
        Self::StatusJson,
        Self::StatusApply,
        Self::Finalize,
        Self::Get,
        Self::List,
        Self::Watch,
        Self::Delete,
        Self::DeleteCollection,
    ];

    /// Returns true if the request makes the object of the row.
    pub(super) fn creates(self) -> bool {
        matches!(self, Self::Create | Self::Yaml | Self::ApplyNew)
    }

    /// Returns what discovery calls it: a subresource, or nothing, and a verb.
    pub(super) fn discovered(self) -> (&'static str, &'static str) {
        match self {
            Self::Create | Self::CreateAgain | Self::Yaml => ("", "create"),
            Self::Put => ("", "update"),
            Self::Merge | Self::Strategic | Self::Json | Self::Apply | Self::ApplyNew => ("", "patch"),
            Self::StatusGet => ("/status", "get"),
            Self::StatusPut => ("/status", "update"),
            Self::StatusMerge | Self::StatusStrategic | Self::StatusJson | Self::StatusApply => {
                ("/status", "patch")
            }
            Self::Finalize => ("/finalize", "update"),
            Self::Get => ("", "get"),
            Self::List => ("", "list"),
            Self::Watch => ("", "watch"),
            Self::Delete => ("", "delete"),
            Self::DeleteCollection => ("", "deletecollection"),
        }
    }

    fn of(text: &str) -> Option<Self> {
        let name = |verb: &Self| {
            let name = format!("{verb:?}").chars().fold(String::new(), |mut name, letter| {
                if letter.is_uppercase() && !name.is_empty() {
                    name.push('-');
                }
                name.extend(letter.to_lowercase());
                name
            });
            name == text
        };
        Self::ALL.into_iter().find(name)
    }
}

impl Row {
    /// Returns the request as JSON.
    pub(super) fn request(&self) -> Value {
        value(&self.text, &self.place)
    }
}

impl Answer {
    pub(super) fn code(&self) -> u16 {
        match self {
            Self::Object { code, .. } | Self::Whole { code, .. } | Self::Refusal { code, .. } => *code,
        }
    }

    fn of(text: &str, place: &str) -> Self {
        if let Some((code, object)) = text.split_once("= ")
            && let Ok(code) = code.parse()
        {
            return Self::Whole { code, object: value(object, place) };
        }
        let (head, rest) = text.split_once(": ").unwrap_or((text, ""));
        let (code, reason) = head.split_once(' ').unwrap_or((head, ""));
        let code = code.parse().unwrap_or_else(|_| panic!("{place}: {text} is no answer"));
        if reason.is_empty() {
            return Self::Object { code, object: value(rest, place) };
        }
        let mut causes: Vec<String> =
            rest.split(", ").filter(|cause| !cause.is_empty()).map(str::to_owned).collect();
        causes.sort();
        Self::Refusal { code, reason: reason.to_owned(), causes }
    }
}

/// Returns the rows of one file.
pub(super) fn parse(subject: &str, text: &str) -> Vec<Row> {
    let lines =
        text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    lines.flat_map(|(index, line)| rows(&format!("answers/{subject}.txt:{}", index + 1), line)).collect()
}

fn rows(place: &str, line: &str) -> Vec<Row> {
    let columns: Vec<&str> = line.split('|').map(str::trim).collect();
    let [verbs, kinds, before, request, answer] = columns[..] else {
        panic!("{place}: a row has five columns");
    };
    let mut rows = Vec::new();
    for verb in verbs.split(',') {
        let (verb, query) = verb.trim().split_once('?').unwrap_or((verb.trim(), ""));
        let verb = Verb::of(verb).unwrap_or_else(|| panic!("{place}: {verb} is no verb"));
        for kind in KINDS.iter().filter(|kind| is_meant(kind, kinds)) {
            rows.push(Row {
                place: place.to_owned(),
                verb,
                query: query.to_owned(),
                kind,
                before: value(before, place),
                text: request.to_owned(),
                answer: Answer::of(answer, place),
            });
        }
    }
    assert!(!rows.is_empty(), "{place}: {kinds} names no kind");
    rows
}

/// Returns true if `kinds` means this kind: `*` for all whose objects are stored, and names, which `-` leaves out.
fn is_meant(kind: &Kind, kinds: &str) -> bool {
    let mut is_meant = false;
    for word in kinds.split_whitespace() {
        match word.strip_prefix('-') {
            Some(left_out) if left_out == kind.name => return false,
            Some(_) => {}
            None => is_meant |= (word == "*" && kind.is_stored()) || word == kind.name,
        }
    }
    is_meant
}

fn value(text: &str, place: &str) -> Value {
    if text.is_empty() {
        return json!({});
    }
    serde_json::from_str(&expanded(text)).unwrap_or_else(|error| panic!("{place}: {error}: {text}"))
}

/// Writes out `x*N` within quotes: a text of N letters.
fn expanded(text: &str) -> String {
    let mut parts = text.split("x*");
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(part.len());
        let (count, rest) = part.split_at(end);
        expanded.push_str(&"x".repeat(count.parse().unwrap()));
        expanded.push_str(rest);
    }
    expanded
}
