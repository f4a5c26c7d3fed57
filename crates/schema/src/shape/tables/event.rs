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
    "A report of something that happened. The API group events.k8s.io shows the same objects.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).required().doc("Standard metadata."),
        field("involvedObject", 2, Object(&OBJECT_REFERENCE)).required().doc("The object that it is about."),
        field("reason", 3, Text).doc("Reason, as one word."),
        field("message", 4, Text).doc("Description of what happened."),
        field("source", 5, Object(&EVENT_SOURCE)).doc("Program that reports the event."),
        field("firstTimestamp", 6, Time).doc("Time at which it was first observed."),
        field("lastTimestamp", 7, Time).doc("Time at which it was last observed."),
        field("count", 8, Int32).doc("Number of observations."),
        field("type", 9, Text).doc("Normal or Warning."),
        field("eventTime", 10, MicroTime).doc("Time at which it was first observed."),
        field("series", 11, Object(&CORE_EVENT_SERIES))
            .pointer()
            .doc("Series of observations, if there was more than one."),
        field("action", 12, Text).doc("Action that was taken or failed."),
        field("related", 13, Object(&OBJECT_REFERENCE))
            .pointer()
            .doc("Another object that the event concerns."),
        field("reportingComponent", 14, Text).always().doc("Name of the controller that reports it."),
        field("reportingInstance", 15, Text).always().doc("Instance of the controller."),
    ],
);

pub(crate) static CORE_EVENT_SERIES: Struct = structure(
    "io.k8s.api.core.v1.EventSeries",
    "A series of observations.",
    &[
        field("count", 1, Int32).doc("Number of observations."),
        field("lastObservedTime", 2, MicroTime).doc("Time at which it was last observed."),
    ],
);

pub(crate) static EVENT_SOURCE: Struct = structure(
    "io.k8s.api.core.v1.EventSource",
    "The program that reports an event.",
    &[
        field("component", 1, Text).doc("Name of the program."),
        field("host", 2, Text).doc("Node of the program."),
    ],
);

pub(crate) static EVENT: Struct = structure(
    "io.k8s.api.events.v1.Event",
    "A report of something that happened. It is deleted after a time.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).always().doc("Standard metadata."),
        field("eventTime", 2, MicroTime).required().doc("Time at which it was first observed."),
        field("series", 3, Object(&EVENT_SERIES))
            .pointer()
            .doc("Series of observations, if there was more than one."),
        field("reportingController", 4, Text).doc("Name of the controller that reports it."),
        field("reportingInstance", 5, Text).doc("Instance of the controller."),
        field("action", 6, Text).doc("Action that was taken or failed."),
        field("reason", 7, Text).doc("Reason of the action, as one word."),
        field("regarding", 8, Object(&OBJECT_REFERENCE)).doc("The object that it is about."),
        field("related", 9, Object(&OBJECT_REFERENCE))
            .pointer()
            .doc("Another object that the event concerns."),
        field("note", 10, Text).doc("Description of what happened."),
        field("type", 11, Text).doc("Normal or Warning."),
        field("deprecatedSource", 12, Object(&EVENT_SOURCE))
            .doc("Program that reports the event, as in core/v1."),
        field("deprecatedFirstTimestamp", 13, Time)
            .doc("Time at which it was first observed, as in core/v1."),
        field("deprecatedLastTimestamp", 14, Time).doc("Time at which it was last observed, as in core/v1."),
        field("deprecatedCount", 15, Int32).doc("Number of observations, as in core/v1."),
    ],
);

pub(crate) static EVENT_SERIES: Struct = structure(
    "io.k8s.api.events.v1.EventSeries",
    "A series of observations.",
    &[
        field("count", 1, Int32).required().doc("Number of observations."),
        field("lastObservedTime", 2, MicroTime).required().doc("Time at which it was last observed."),
    ],
);
