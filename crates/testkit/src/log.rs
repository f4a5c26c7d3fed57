//! The log of a test.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, Interest};
use tracing::{Event, Level, Metadata, Subscriber};

/// Sets the subscriber of the other threads.
static OTHERS: Once = Once::new();

/// What one thread logs, at all levels; nothing for the threads that do not listen.
#[derive(Debug, Clone)]
pub struct Log(Option<Arc<Mutex<Vec<Line>>>>);

/// The level and the fields of an event.
type Line = (Level, String);

impl Log {
    /// Records what this thread logs while the guard is held.
    pub fn listen() -> (Self, DefaultGuard) {
        // Without it, the thread that first comes to an event's place in the code decides for all threads whether the event is of
        // interest, as long as only one thread listens. If the program has a subscriber, that one does it.
        OTHERS.call_once(|| drop(tracing::subscriber::set_global_default(Self(None))));
        let log = Self(Some(Arc::default()));
        (log.clone(), tracing::subscriber::set_default(log))
    }

    /// Returns the lines so far: the level and the fields of each event.
    pub fn text(&self) -> String {
        let lines: Vec<String> =
            self.lines().iter().map(|(level, fields)| format!("{level}{fields}\n")).collect();
        lines.concat()
    }

    /// Returns the fields of each error so far.
    pub fn errors(&self) -> Vec<String> {
        let errors = self.lines().into_iter().filter(|(level, _)| *level == Level::ERROR);
        errors.map(|(_, fields)| fields).collect()
    }

    fn lines(&self) -> Vec<Line> {
        let lines = |lines: &Arc<Mutex<Vec<_>>>| lines.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.0.as_ref().map(lines).unwrap_or_default()
    }
}

impl Subscriber for Log {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        self.0.is_some()
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if let Some(lines) = &self.0 {
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            lines.push((*event.metadata().level(), fields.0));
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
struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a String cannot fail.
        let _ = write!(self.0, " {field}={value:?}");
    }
}
