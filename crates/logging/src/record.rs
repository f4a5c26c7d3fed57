//! Formats one event as one line.

use std::error::Error;
use std::fmt::{self, Debug, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use portolan_node::time::Parts;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};

/// Buffers that are reused for the next line.
#[derive(Default)]
pub(super) struct Scratch {
    line: String,
    message: String,
    /// The field that klog calls `err` and writes at its own position.
    error: String,
    fields: String,
}

impl Scratch {
    /// Returns the last formatted line.
    pub(super) fn line(&self) -> &str {
        &self.line
    }

    /// Formats klog's text: `I1120 16:21:04.123456      42 file.rs:7] "message" err="..." key="value"`.
    pub(super) fn text(&mut self, event: &Event<'_>, now: SystemTime, process: u32) {
        self.take(event, Dialect::Text);
        let metadata = event.metadata();
        let severity = match *metadata.level() {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            _ => 'I',
        };
        let Parts { month, day, hour, minute, second, nanosecond, .. } = Parts::of(now);
        let microsecond = nanosecond / 1000;
        let (file, line) = place(metadata);
        let file = file.rsplit('/').next().unwrap_or(file);
        let Self { line: text, message, error, fields } = self;
        let _ = write!(
            text,
            "{severity}{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{microsecond:06} {process:>7} \
             {file}:{line}] "
        );
        text.push_str(if message.is_empty() { "\"\"" } else { message });
        text.extend([error.as_str(), fields, "\n"]);
    }

    /// Formats Kubernetes' JSON: time in milliseconds, source location, message, verbosity (not for errors), fields,
    /// error.
    pub(super) fn json(&mut self, event: &Event<'_>, now: SystemTime, verbosity: u32) {
        self.take(event, Dialect::Json);
        let metadata = event.metadata();
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (file, line) = place(metadata);
        let Self { line: text, message, error, fields } = self;
        let (millisecond, microsecond) = (since.as_millis(), since.subsec_micros() % 1000);
        let _ = write!(text, "{{\"ts\":{millisecond}.{microsecond:03},\"caller\":\"");
        for part in short(file) {
            Escape { to: text, dialect: Dialect::Json }.append(part);
        }
        let message = if message.is_empty() { "\"\"" } else { message };
        let _ = write!(text, ":{line}\",\"msg\":{message}");
        if *metadata.level() != Level::ERROR {
            let _ = write!(text, ",\"v\":{verbosity}");
        }
        text.extend([fields.as_str(), error, "}\n"]);
    }

    fn take(&mut self, event: &Event<'_>, dialect: Dialect) {
        for text in [&mut self.line, &mut self.message, &mut self.error, &mut self.fields] {
            text.clear();
            // Releases the memory of a long line.
            text.shrink_to(4096);
        }
        event.record(&mut Fields { scratch: self, dialect });
    }
}

/// Returns the source file and line, or klog's placeholders if they are unknown.
fn place(metadata: &Metadata<'static>) -> (&'static str, u32) {
    (metadata.file().unwrap_or("???"), metadata.line().unwrap_or(1))
}

/// Returns the name of a file after that of its folder: `watch/driver.rs`, `health/service.rs`. A file in the folder
/// `src` gets the name of its crate's folder.
fn short(file: &str) -> [&str; 3] {
    let mut names = file.rsplit('/');
    let name = names.next().unwrap_or(file);
    match names.find(|folder| *folder != "src") {
        Some(folder) => [folder, "/", name],
        None => ["", "", name],
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Text,
    Json,
}

struct Fields<'a> {
    scratch: &'a mut Scratch,
    dialect: Dialect,
}

impl Fields<'_> {
    /// Starts a field and returns the buffer for its value.
    fn begin(&mut self, field: &Field) -> &mut String {
        let Scratch { message, error, fields, .. } = &mut *self.scratch;
        let (to, name) = match field.name() {
            "message" => return message,
            "error" | "err" => (error, "err"),
            name => (fields, name),
        };
        match self.dialect {
            Dialect::Text => to.extend([" ", name, "="]),
            Dialect::Json => to.extend([",\"", name, "\":"]),
        }
        to
    }

    fn quoted(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let dialect = self.dialect;
        let to = self.begin(field);
        to.push('"');
        let _ = Escape { to, dialect }.write_fmt(value);
        to.push('"');
    }

    fn plain(&mut self, field: &Field, value: impl fmt::Display) {
        let _ = write!(self.begin(field), "{value}");
    }
}

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.quoted(field, format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.quoted(field, format_args!("{value}"));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.quoted(field, format_args!("{value}"));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if value.is_finite() { self.plain(field, value) } else { self.quoted(field, format_args!("{value}")) }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.plain(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.plain(field, value);
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.plain(field, value);
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.plain(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.plain(field, value);
    }
}

/// Escapes text inside a quoted string: Go's escapes for klog's text, JSON's otherwise. A value can never end its
/// line.
struct Escape<'a> {
    to: &'a mut String,
    dialect: Dialect,
}

impl Escape<'_> {
    fn append(&mut self, text: &str) {
        // Writing into a String does not fail.
        let _ = self.write_str(text);
    }

    fn control(&mut self, letter: char) -> fmt::Result {
        let code = u32::from(letter);
        match (letter, self.dialect) {
            ('\n', _) => self.to.push_str("\\n"),
            ('\r', _) => self.to.push_str("\\r"),
            ('\t', _) => self.to.push_str("\\t"),
            (_, Dialect::Text) if code < 0x80 => write!(self.to, "\\x{code:02x}")?,
            _ => write!(self.to, "\\u{code:04x}")?,
        }
        Ok(())
    }
}

impl Write for Escape<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            match letter {
                '"' => self.to.push_str("\\\""),
                '\\' => self.to.push_str("\\\\"),
                letter if letter.is_control() => self.control(letter)?,
                letter => self.to.push(letter),
            }
        }
        Ok(())
    }
}
