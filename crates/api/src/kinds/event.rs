//! Event, in both of its forms. In `events.k8s.io/v1` a new Event must be complete, and only its series may change.
//! `core/v1` is lenient. The fields in errors have the names of `core/v1` in both forms, as upstream; only the reporter
//! has the name of the form of the request. Source: `pkg/apis/core/validation/events.go`.

use portolan_schema::{
    Resource,
    json::{self, Object, Value},
};

use crate::{error::FieldError, names};

#[cfg(test)]
mod tests;

/// Most bytes of reportingInstance, action and reason.
const WORD_LIMIT: usize = 128;
/// Most bytes of a note.
const NOTE_LIMIT: usize = 1024;
const TYPES: [&str; 2] = ["Normal", "Warning"];

/// The fields of `events.k8s.io/v1` that may not change, and their names in errors.
const FIXED: [(&str, &str); 13] = [
    ("regarding", "involvedObject"),
    ("reason", "reason"),
    ("note", "message"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("type", "type"),
    ("eventTime", "eventTime"),
    ("action", "action"),
    ("related", "related"),
    ("reportingController", "reportingController"),
    ("reportingInstance", "reportingInstance"),
];

/// The names of fields that differ between the two forms.
struct Names {
    regarding: &'static str,
    note: &'static str,
    controller: &'static str,
}

const EVENTS: Names = Names { regarding: "regarding", note: "note", controller: "reportingController" };
const CORE: Names = Names { regarding: "involvedObject", note: "message", controller: "reportingComponent" };

pub(super) fn validate(resource: Resource, object: &Object, old: Option<&Object>) -> Vec<FieldError> {
    let is_strict = resource == Resource::Event;
    let names = if is_strict { &EVENTS } else { &CORE };
    let mut errors = Vec::new();
    common(names, object, &mut errors);
    match old {
        _ if !is_strict => {}
        None => complete(object, &mut errors),
        Some(old) => unchanged(object, old, &mut errors),
    }
    errors
}

/// Checks the rules of both forms. An Event with an eventTime is of the new form and must name its reporter.
fn common(names: &Names, object: &Object, errors: &mut Vec<FieldError>) {
    let own = json::object(object, "metadata").and_then(|it| json::text(it, "namespace")).unwrap_or_default();
    let its = json::object(object, names.regarding).and_then(|it| json::text(it, "namespace"));
    let is_new = object.contains_key("eventTime");
    let agree = match its {
        None if is_new => matches!(own, "default" | "kube-system"),
        None => own == "default",
        Some(its) => is_new || its == own,
    };
    if !agree {
        let field = "involvedObject.namespace";
        errors.push(FieldError::invalid(field, its.unwrap_or_default(), "must be the Event's own namespace"));
    }
    if !is_new {
        return;
    }
    let controller = json::text(object, names.controller).unwrap_or_default();
    if controller.is_empty() {
        errors.push(FieldError::required(names.controller, "an Event with an eventTime says it"));
    }
    if !names::is_qualified_name(controller) {
        errors.push(FieldError::invalid(names.controller, controller, "must be a qualified name"));
    }
    for key in ["reportingInstance", "action", "reason"] {
        if json::text(object, key).is_none() {
            errors.push(FieldError::required(key, "an Event with an eventTime says it"));
        }
    }
    let limits = [
        ("reportingInstance", "reportingInstance", WORD_LIMIT),
        ("action", "action", WORD_LIMIT),
        ("reason", "reason", WORD_LIMIT),
        (names.note, "message", NOTE_LIMIT),
    ];
    for (key, field, limit) in limits {
        if json::text(object, key).is_some_and(|text| text.len() > limit) {
            errors.push(FieldError::invalid(field, "", &format!("can have at most {limit} characters")));
        }
    }
}

fn complete(object: &Object, errors: &mut Vec<FieldError>) {
    series(object, errors);
    if !object.contains_key("eventTime") {
        errors.push(FieldError::required("eventTime", "when it happened"));
    }
    let kind = json::text(object, "type").unwrap_or_default();
    if !TYPES.contains(&kind) {
        errors.push(FieldError::invalid("type", kind, "must be Normal or Warning"));
    }
    let is_set = |key: &str| match object.get(key) {
        Some(Value::Object(members)) => !members.is_empty(),
        Some(Value::Number(number)) => number.as_i64() != Some(0),
        other => other.is_some(),
    };
    for (key, field) in FIXED.into_iter().filter(|(key, _)| key.starts_with("deprecated")) {
        if is_set(key) {
            errors.push(FieldError::invalid(field, object.get(key).cloned(), "must not be set"));
        }
    }
}

fn unchanged(object: &Object, old: &Object, errors: &mut Vec<FieldError>) {
    if object.get("series") != old.get("series") {
        series(object, errors);
    }
    for (key, field) in FIXED {
        if object.get(key) != old.get(key) {
            errors.push(FieldError::invalid(field, object.get(key).cloned(), "field is immutable"));
        }
    }
}

fn series(object: &Object, errors: &mut Vec<FieldError>) {
    let Some(series) = json::object(object, "series") else { return };
    let count = series.get("count").and_then(Value::as_i64).unwrap_or(0);
    if count < 2 {
        errors.push(FieldError::invalid("series.count", count, "must be at least 2"));
    }
    if !series.contains_key("lastObservedTime") {
        errors.push(FieldError::required("series.lastObservedTime", "when it was last seen"));
    }
}
