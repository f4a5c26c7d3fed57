//! Parameters of operations.

use crate::json::{Value, json};

use super::Dialect;

/// Name, type and description of a query parameter.
type Parameter = (&'static str, &'static str, &'static str);

const PRETTY: Parameter = ("pretty", "string", "True for an indented answer.");
const DRY_RUN: Parameter =
    ("dryRun", "string", "All: the request is checked in full, and nothing is written.");
const FIELD_MANAGER: Parameter = ("fieldManager", "string", "Name of the manager of the written fields.");
const FIELD_VALIDATION: Parameter = (
    "fieldValidation",
    "string",
    "Treatment of unknown and duplicate fields. Ignore: dropped. Warn: dropped with a warning. Strict: the request is refused.",
);
const FORCE: Parameter = ("force", "boolean", "True if an apply takes over the fields of other managers.");

pub(super) const READ: &[Parameter] = &[PRETTY];
pub(super) const WRITE: &[Parameter] = &[PRETTY, DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION];
pub(super) const PATCH: &[Parameter] = &[PRETTY, DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION, FORCE];
pub(super) const DELETE: &[Parameter] = &[
    PRETTY,
    DRY_RUN,
    (
        "gracePeriodSeconds",
        "integer",
        "Seconds for the object to end gracefully. The kinds of this server are deleted at once.",
    ),
    ("orphanDependents", "boolean", "Deprecated form of propagationPolicy."),
    (
        "propagationPolicy",
        "string",
        "What happens to dependents. Background: deleted after the object. Foreground: deleted before the object. Orphan: kept.",
    ),
];
pub(super) const SELECT: &[Parameter] = &[
    ("labelSelector", "string", "Labels that the objects must have."),
    ("fieldSelector", "string", "Fields that the objects must have."),
];
pub(super) const LIST: &[Parameter] = &[
    ("allowWatchBookmarks", "boolean", "True if a watch may send bookmarks."),
    ("continue", "string", "The token of the previous page."),
    ("limit", "integer", "Maximum number of objects of a page."),
    ("resourceVersion", "string", "Minimum version of the list, or the version after which a watch starts."),
    ("resourceVersionMatch", "string", "Meaning of resourceVersion: Exact or NotOlderThan."),
    ("sendInitialEvents", "boolean", "True if a watch starts with the current objects."),
    ("timeoutSeconds", "integer", "Duration of a watch in seconds."),
    ("watch", "boolean", "True for changes instead of a list."),
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
