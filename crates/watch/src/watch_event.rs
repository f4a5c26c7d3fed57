//! The events that the reflectors report.

use std::time::Duration;

use portolan_model::Event;
use portolan_model::object::{DecodeError, Kind};

use crate::reflector::RestartReason;

/// One event for the consumer.
#[derive(Debug)]
pub enum WatchEvent {
    /// Events of one collection in order, all that arrived together. A list is enclosed in `ListStart` and
    /// `ListEnd`. A `ListStart` without its end may be followed by another one, which begins the list anew.
    /// `ServiceCidrsUnavailable` comes when the server has no ServiceCIDRs or forbids reading them, and again at
    /// each slow retry.
    Objects(Vec<Event>),
    /// A whole list, an event after it or a bookmark came, so that the known objects of this collection are those of
    /// the API server at this time. Sent after the events.
    Heard(Kind),
    /// A list was empty where this many objects were known. Another list is requested before it is accepted
    /// ([`Timing::empty_list_hold`](crate::Timing::empty_list_hold)). Sent once until a list is accepted.
    EmptyListHeld {
        /// The collection.
        kind: Kind,
        /// Number of known objects.
        known: usize,
    },
    /// A request failed and will be repeated. The known objects stay valid.
    Restarted {
        /// The collection.
        kind: Kind,
        /// Why the request failed.
        reason: RestartReason,
        /// True if the collection is listed again; false if the request continues where it was.
        relist: bool,
        /// The wait before the next request.
        delay: Duration,
        /// Number of requests in a row that failed. One whose answer began well ends the row, also if the answer broke off.
        failures: u32,
    },
    /// One object was skipped because it cannot be identified. (Faults inside an object come with the object.)
    Fault {
        /// The collection.
        kind: Kind,
        /// What is wrong with the object.
        error: ObjectError,
    },
}

/// Why an object of a list or a watch was skipped.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The object does not decode or has no name.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A line of a watch is JSON but has no `type` and `object`.
    #[error("a line of the watch is no watch event: it needs a \"type\" and an \"object\"")]
    NotAnEvent,
    /// A watch event has a type that the API does not define.
    #[error("watch event of unknown type {0:?}")]
    UnknownType(Box<str>),
    /// A bookmark has no readable metadata.
    #[error("a bookmark without usable metadata: {0}")]
    Bookmark(#[source] DecodeError),
}
