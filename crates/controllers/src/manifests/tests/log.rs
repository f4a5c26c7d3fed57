//! The errors that a test logs.

use std::{
    fmt::{Debug, Write as _},
    sync::{Arc, Mutex, Once},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::{DefaultGuard, Interest},
};

/// Sets the subscriber of the other threads.
static OTHERS: Once = Once::new();

/// The errors of one thread, or nothing.
#[derive(Clone)]
pub(in crate::manifests) struct Log(Option<Arc<Mutex<Vec<String>>>>);

impl Log {
    /// Records the errors of this thread while the guard is held.
    pub(in crate::manifests) fn listen() -> (Self, DefaultGuard) {
        // Without it, another thread may decide that an event's place in the code is of no interest to any thread.
        OTHERS.call_once(|| tracing::subscriber::set_global_default(Self(None)).unwrap());
        let log = Self(Some(Arc::default()));
        (log.clone(), tracing::subscriber::set_default(log))
    }

    pub(in crate::manifests) fn errors(&self) -> Vec<String> {
        self.0.as_ref().map(|lines| lines.lock().unwrap().clone()).unwrap_or_default()
    }
}

impl Subscriber for Log {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.0.is_some() && *metadata.level() == Level::ERROR
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        if let Some(lines) = &self.0 {
            lines.lock().unwrap().push(line.0);
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}
