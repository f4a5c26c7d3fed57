//! Event: one kind of object in two forms (`events/v1` and `core/v1`).

use crate::shape::{
    Struct,
    Type::{Int32, MicroTime, Object, Text, Time},
    field,
    meta::{API_VERSION, KIND, OBJECT_META, OBJECT_REFERENCE},
    structure,
};

pub(crate) static CORE_EVENT: Struct = structure(
    "io.k8s.api.core.v1.Event",
    "A report of something that happened; the same objects as in events.k8s.io.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).required().doc("Standard metadata."),
        field("involvedObject", 2, Object(&OBJECT_REFERENCE)).required().doc("The object that it is about."),
        field("reason", 3, Text).doc("Why, in one word for programs."),
        field("message", 4, Text).doc("What happened, for people."),
        field("source", 5, Object(&EVENT_SOURCE)).doc("Who reports it."),
        field("firstTimestamp", 6, Time).doc("When it was first seen."),
        field("lastTimestamp", 7, Time).doc("When it was last seen."),
        field("count", 8, Int32).doc("How often it was seen."),
        field("type", 9, Text).doc("Normal or Warning."),
        field("eventTime", 10, MicroTime).doc("When it was first seen."),
        field("series", 11, Object(&CORE_EVENT_SERIES))
            .pointer()
            .doc("The series that it stands for, if it was seen more than once."),
        field("action", 12, Text).doc("What was done about the object."),
        field("related", 13, Object(&OBJECT_REFERENCE)).pointer().doc("Another object that takes part."),
        field("reportingComponent", 14, Text).always().doc("Name of the controller that reports it."),
        field("reportingInstance", 15, Text).always().doc("Which instance of the controller."),
    ],
);

pub(crate) static CORE_EVENT_SERIES: Struct = structure(
    "io.k8s.api.core.v1.EventSeries",
    "How often an event was seen.",
    &[
        field("count", 1, Int32).doc("How often it was seen."),
        field("lastObservedTime", 2, MicroTime).doc("When it was last seen."),
    ],
);

pub(crate) static EVENT_SOURCE: Struct = structure(
    "io.k8s.api.core.v1.EventSource",
    "Who reports an event.",
    &[
        field("component", 1, Text).doc("Name of the program."),
        field("host", 2, Text).doc("Node that it runs on."),
    ],
);

pub(crate) static EVENT: Struct = structure(
    "io.k8s.api.events.v1.Event",
    "A report of something that happened; kept for a limited time.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).always().doc("Standard metadata."),
        field("eventTime", 2, MicroTime).required().doc("When it was first seen."),
        field("series", 3, Object(&EVENT_SERIES))
            .pointer()
            .doc("The series that it stands for, if it was seen more than once."),
        field("reportingController", 4, Text).doc("Name of the controller that reports it."),
        field("reportingInstance", 5, Text).doc("Which instance of the controller."),
        field("action", 6, Text).doc("What was done about the object."),
        field("reason", 7, Text).doc("Why it was done, in one word for programs."),
        field("regarding", 8, Object(&OBJECT_REFERENCE)).doc("The object that it is about."),
        field("related", 9, Object(&OBJECT_REFERENCE)).pointer().doc("Another object that takes part."),
        field("note", 10, Text).doc("What happened, for people."),
        field("type", 11, Text).doc("Normal or Warning."),
        field("deprecatedSource", 12, Object(&EVENT_SOURCE)).doc("Who reports it, in the form of core/v1."),
        field("deprecatedFirstTimestamp", 13, Time).doc("When it was first seen, in the form of core/v1."),
        field("deprecatedLastTimestamp", 14, Time).doc("When it was last seen, in the form of core/v1."),
        field("deprecatedCount", 15, Int32).doc("How often it was seen, in the form of core/v1."),
    ],
);

pub(crate) static EVENT_SERIES: Struct = structure(
    "io.k8s.api.events.v1.EventSeries",
    "How often an event was seen.",
    &[
        field("count", 1, Int32).required().doc("How often it was seen."),
        field("lastObservedTime", 2, MicroTime).required().doc("When it was last seen."),
    ],
);
