//! The row of an Event of `v1` or `events.k8s.io/v1`, which have the same content in different fields.

use portolan_schema::json::{self, Object, Value};

use super::{Column, NAME, age, column, name, wide};

pub(super) const COLUMNS: &[Column] = &[
    column("Last Seen", "Time since the event was last observed."),
    column("Type", "Normal or Warning."),
    column("Reason", "Why this happened, as one word for machines."),
    column("Object", "The object that the event is about."),
    wide("Subobject", "The part of the object that the event is about."),
    wide("Source", "Who reported the event."),
    column("Message", "What happened."),
    wide("First Seen", "Time since the event was first observed."),
    wide("Count", "How often the event was observed."),
    Column { wide: true, ..NAME },
];

pub(super) fn cells(event: &Object, now: i64) -> Vec<Value> {
    let empty = Object::new();
    let text = |names: [&str; 2]| names.into_iter().find_map(|name| json::text(event, name));
    let object = |names: [&str; 2]| names.into_iter().find_map(|name| json::object(event, name));
    let about = object(["involvedObject", "regarding"]).unwrap_or(&empty);
    let series = json::object(event, "series");
    let event_time = json::text(event, "eventTime");
    let first = text(["firstTimestamp", "deprecatedFirstTimestamp"]).or(event_time);
    let last = series
        .and_then(|series| json::text(series, "lastObservedTime"))
        .or_else(|| text(["lastTimestamp", "deprecatedLastTimestamp"]))
        .or(first);
    let count = ["count", "deprecatedCount"].into_iter().find_map(|name| json::integer(event, name));
    let count = series.and_then(|series| json::integer(series, "count")).or(count).unwrap_or(1);
    vec![
        age(last, now).into(),
        json::text(event, "type").unwrap_or_default().into(),
        json::text(event, "reason").unwrap_or_default().into(),
        subject(about).into(),
        json::text(about, "fieldPath").unwrap_or_default().into(),
        source(event, object(["source", "deprecatedSource"]).unwrap_or(&empty)).into(),
        text(["message", "note"]).unwrap_or_default().trim().into(),
        age(first, now).into(),
        count.into(),
        name(event),
    ]
}

fn subject(about: &Object) -> String {
    let kind = json::text(about, "kind").unwrap_or_default().to_lowercase();
    match json::text(about, "name") {
        Some(name) => format!("{kind}/{name}"),
        None => kind,
    }
}

fn source(event: &Object, source: &Object) -> String {
    let (who, place) = if let Some(component) = json::text(source, "component") {
        (component, json::text(source, "host"))
    } else {
        let names = ["reportingComponent", "reportingController"];
        let who = names.into_iter().find_map(|name| json::text(event, name)).unwrap_or_default();
        (who, json::text(event, "reportingInstance"))
    };
    place.map_or_else(|| who.to_owned(), |place| format!("{who}, {place}"))
}
