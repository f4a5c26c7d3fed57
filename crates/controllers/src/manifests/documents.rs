//! Splits files into objects: the documents of a YAML or JSON file, and the items of lists in them.

use std::path::Path;

use portolan_api::ApiError;
use portolan_schema::json::{self, Object, Value};

/// One object of a file, or the reason why it cannot be read.
#[derive(Debug)]
pub(super) struct Document {
    /// Number of the document in the file, from 0.
    pub(super) index: usize,
    /// Line of the file at which the document starts, from 1.
    pub(super) line: usize,
    /// Number of the item in a list, from 0. `None` if the document is not a list.
    pub(super) item: Option<usize>,
    pub(super) object: Result<Value, ApiError>,
}

/// Returns all objects of a file.
pub(super) fn split(path: &Path, content: &[u8]) -> Vec<Document> {
    let json = path.extension().is_some_and(|extension| extension == "json");
    let documents = if json { json_documents(content) } else { yaml_documents(content) };
    documents.into_iter().flat_map(items).collect()
}

fn json_documents(content: &[u8]) -> Vec<Document> {
    let mut stream = serde_json::Deserializer::from_slice(content).into_iter::<Value>();
    let (mut documents, mut line, mut counted) = (Vec::new(), 1, 0);
    loop {
        let rest = content.get(stream.byte_offset()..).unwrap_or_default();
        let blanks = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let start = stream.byte_offset() + blanks;
        line += lines(content.get(counted..start).unwrap_or_default());
        counted = start;
        let Some(value) = stream.next() else { return documents };
        let refused = |error: serde_json::Error| undecodable("JSON", &error);
        documents.push(document(documents.len(), line, value.map_err(refused)));
    }
}

fn lines(text: &[u8]) -> usize {
    text.split(|byte| *byte == b'\n').skip(1).count()
}

fn yaml_documents(content: &[u8]) -> Vec<Document> {
    let text = match std::str::from_utf8(content) {
        Ok(text) => text,
        Err(error) => return vec![document(0, 0, Err(undecodable("YAML", &error)))],
    };
    // Each document is parsed separately, so that an error in one does not hide the others.
    let parsed =
        yaml_texts(text).into_iter().filter_map(|(line, text)| match serde_saphyr::from_str::<Value>(text) {
            Ok(Value::Null) => None,
            Ok(value) => Some((line, Ok(value))),
            Err(_) if is_blank(text) => None,
            Err(_) => Some((line, Err(mistake(line, text)))),
        });
    parsed.enumerate().map(|(index, (line, object))| document(index, line, object)).collect()
}

/// Returns the error of a document with its position in the file. The text is padded with empty lines, because the
/// parser counts only the lines that it reads.
fn mistake(line: usize, text: &str) -> ApiError {
    let padded = format!("{}{text}", "\n".repeat(line.saturating_sub(1)));
    match serde_saphyr::from_str::<Value>(&padded) {
        Err(error) => undecodable("YAML", &error),
        Ok(_) => ApiError::Undecodable { format: "YAML", reason: format!("line {line}: not a document") },
    }
}

/// Returns the texts between `---` markers, with the line at which each starts.
fn yaml_texts(text: &str) -> Vec<(usize, &str)> {
    let (mut texts, mut start, mut start_line, mut offset) = (Vec::new(), 0, 1, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let marker = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        if marker {
            texts.push((start_line, text.get(start..offset).unwrap_or_default()));
            (start, start_line) = (offset + 3, number + 1);
        }
        offset += line.len();
    }
    texts.push((start_line, text.get(start..).unwrap_or_default()));
    texts.retain(|(_, text)| !is_blank(text));
    texts
}

fn is_blank(text: &str) -> bool {
    text.lines().all(|line| {
        let line = line.trim();
        line.is_empty() || line.starts_with('#')
    })
}

/// Returns the items of a `List` (or `ServiceList` and the like), or the object itself.
fn items(document: Document) -> Vec<Document> {
    let list_kind = document.object.as_ref().ok().and_then(Value::as_object).and_then(|object| {
        let kind = json::text(object, "kind")?.strip_suffix("List")?;
        object.get("items")?.as_array()?;
        Some((kind.to_owned(), object.get("apiVersion").cloned().unwrap_or_default()))
    });
    let (Some((kind, api_version)), Ok(Value::Object(mut list))) = (list_kind, document.object.clone())
    else {
        return vec![document];
    };
    let Some(Value::Array(items)) = list.remove("items") else { return vec![document] };
    let (index, line) = (document.index, document.line);
    let item = |(number, object)| {
        let object = Ok(with_kind(object, &kind, &api_version));
        Document { index, line, item: Some(number), object }
    };
    items.into_iter().enumerate().map(item).collect()
}

/// Sets the kind of an item, which a typed list may omit.
fn with_kind(item: Value, kind: &str, api_version: &Value) -> Value {
    match item {
        Value::Object(object) if !kind.is_empty() && !object.contains_key("kind") => {
            let mut typed: Object = object;
            typed.insert("kind".to_owned(), kind.into());
            typed.entry("apiVersion").or_insert_with(|| api_version.clone());
            Value::Object(typed)
        }
        other => other,
    }
}

fn document(index: usize, line: usize, object: Result<Value, ApiError>) -> Document {
    Document { index, line, item: None, object }
}

pub(super) fn undecodable(format: &'static str, error: &dyn std::error::Error) -> ApiError {
    ApiError::Undecodable { format, reason: error.to_string() }
}
