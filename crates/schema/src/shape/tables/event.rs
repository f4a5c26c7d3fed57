//! Event: one kind of object, seen in two forms (`events/v1` and `core/v1`).

use crate::shape::{
    Struct,
    Type::{Int32, MicroTime, Object, Text, Time},
    field,
    meta::{API_VERSION, KIND, OBJECT_META, OBJECT_REFERENCE},
    structure,
};

pub(crate) static CORE_EVENT: Struct = structure(
    "io.k8s.api.core.v1.Event",
    "A report of something that happened; kept for a limited time. The same objects as in events.k8s.io.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META), "Standard metadata.").required(),
        field("involvedObject", 2, Object(&OBJECT_REFERENCE), "The object that it is about.").required(),
        field("reason", 3, Text, "Why, in one word for programs."),
        field("message", 4, Text, "What happened, for people."),
        field("source", 5, Object(&EVENT_SOURCE), "Who reports it."),
        field("firstTimestamp", 6, Time, "When it was first seen."),
        field("lastTimestamp", 7, Time, "When it was last seen."),
        field("count", 8, Int32, "How often it was seen."),
        field("type", 9, Text, "Normal or Warning."),
        field("eventTime", 10, MicroTime, "When it was first seen."),
        field(
            "series",
            11,
            Object(&CORE_EVENT_SERIES),
            "The series that it stands for, if it was seen more than once.",
        )
        .pointer(),
        field("action", 12, Text, "What was done about the object."),
        field("related", 13, Object(&OBJECT_REFERENCE), "Another object that takes part.").pointer(),
        field("reportingComponent", 14, Text, "Name of the controller that reports it.").always(),
        field("reportingInstance", 15, Text, "Which instance of the controller.").always(),
    ],
);

pub(crate) static CORE_EVENT_SERIES: Struct = structure(
    "io.k8s.api.core.v1.EventSeries",
    "How often an event was seen.",
    &[
        field("count", 1, Int32, "How often it was seen."),
        field("lastObservedTime", 2, MicroTime, "When it was last seen."),
    ],
);

pub(crate) static EVENT_SOURCE: Struct = structure(
    "io.k8s.api.core.v1.EventSource",
    "Who reports an event.",
    &[field("component", 1, Text, "Name of the program."), field("host", 2, Text, "Node that it runs on.")],
);

pub(crate) static EVENT: Struct = structure(
    "io.k8s.api.events.v1.Event",
    "A report of something that happened; kept for a limited time.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META), "Standard metadata.").always(),
        field("eventTime", 2, MicroTime, "When it was first seen.").required(),
        field(
            "series",
            3,
            Object(&EVENT_SERIES),
            "The series that it stands for, if it was seen more than once.",
        )
        .pointer(),
        field("reportingController", 4, Text, "Name of the controller that reports it."),
        field("reportingInstance", 5, Text, "Which instance of the controller."),
        field("action", 6, Text, "What was done about the object."),
        field("reason", 7, Text, "Why it was done, in one word for programs."),
        field("regarding", 8, Object(&OBJECT_REFERENCE), "The object that it is about."),
        field("related", 9, Object(&OBJECT_REFERENCE), "Another object that takes part.").pointer(),
        field("note", 10, Text, "What happened, for people."),
        field("type", 11, Text, "Normal or Warning."),
        field("deprecatedSource", 12, Object(&EVENT_SOURCE), "Who reports it, in the form of core/v1."),
        field("deprecatedFirstTimestamp", 13, Time, "When it was first seen, in the form of core/v1."),
        field("deprecatedLastTimestamp", 14, Time, "When it was last seen, in the form of core/v1."),
        field("deprecatedCount", 15, Int32, "How often it was seen, in the form of core/v1."),
    ],
);

pub(crate) static EVENT_SERIES: Struct = structure(
    "io.k8s.api.events.v1.EventSeries",
    "How often an event was seen.",
    &[
        field("count", 1, Int32, "How often it was seen.").required(),
        field("lastObservedTime", 2, MicroTime, "When it was last seen.").required(),
    ],
);
