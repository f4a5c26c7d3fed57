//! Parameters of operations.

use crate::json::{Value, json};

use super::Dialect;

/// Name, type and description of a query parameter.
type Parameter = (&'static str, &'static str, &'static str);

const PRETTY: Parameter = ("pretty", "string", "Whether the answer is indented.");
const DRY_RUN: Parameter = ("dryRun", "string", "All: everything is done but the write.");
const FIELD_MANAGER: Parameter = ("fieldManager", "string", "Who writes, for the ownership of fields.");
const FIELD_VALIDATION: Parameter =
    ("fieldValidation", "string", "What becomes of unknown fields: Ignore, Warn or Strict.");
const FORCE: Parameter = ("force", "boolean", "Whether an apply takes fields away from other writers.");

pub(super) const READ: &[Parameter] = &[PRETTY];
pub(super) const WRITE: &[Parameter] = &[PRETTY, DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION];
pub(super) const PATCH: &[Parameter] = &[PRETTY, DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION, FORCE];
pub(super) const DELETE: &[Parameter] = &[
    PRETTY,
    DRY_RUN,
    ("gracePeriodSeconds", "integer", "Seconds that the object is given to end by itself."),
    ("orphanDependents", "boolean", "Deprecated form of propagationPolicy."),
    ("propagationPolicy", "string", "What becomes of dependents: Background, Foreground or Orphan."),
];
pub(super) const SELECT: &[Parameter] = &[
    ("labelSelector", "string", "Which labels the objects must have."),
    ("fieldSelector", "string", "Which fields the objects must have."),
];
pub(super) const LIST: &[Parameter] = &[
    ("allowWatchBookmarks", "boolean", "Whether a watch may send bookmarks."),
    ("continue", "string", "The token of the page before."),
    ("limit", "integer", "How many objects a page holds."),
    ("resourceVersion", "string", "How new the state must be; where a watch starts."),
    ("resourceVersionMatch", "string", "What resourceVersion means: Exact or NotOlderThan."),
    ("sendInitialEvents", "boolean", "Whether a watch starts with the present state."),
    ("timeoutSeconds", "integer", "How long a watch lasts."),
    ("watch", "boolean", "Whether to send changes instead of a list."),
];

/// Returns the query parameters as the document writes them.
pub(super) fn query<'a>(
    dialect: Dialect,
    parameters: impl IntoIterator<Item = &'a Parameter>,
) -> impl Iterator<Item = Value> {
    parameters.into_iter().map(move |(name, kind, doc)| place(dialect, name, kind, doc, "query"))
}

/// Returns a parameter that is part of the path.
pub(super) fn path(dialect: Dialect, name: &str) -> Value {
    let doc = if name == "namespace" { "The objects' namespace." } else { "The object's name." };
    place(dialect, name, "string", doc, "path")
}

fn place(dialect: Dialect, name: &str, kind: &str, doc: &str, place: &str) -> Value {
    let mut parameter = json!({"name": name, "in": place, "description": doc});
    let Some(fields) = parameter.as_object_mut() else { return parameter };
    if place == "path" {
        fields.insert("required".to_owned(), true.into());
    }
    match dialect {
        Dialect::V2 => fields.insert("type".to_owned(), kind.into()),
        Dialect::V3 => fields.insert("schema".to_owned(), json!({"type": kind})),
    };
    parameter
}
