//! Logs in the formats of Kubernetes' components: klog's text lines or their JSON, at klog's verbosities.
//!
//! The input is `tracing` events and the logging section of a configuration. The output is lines on stderr, and on
//! stdout if streams are split. Each line is written at once with one write, so there is no buffer to flush or lose.
//! Spans are not logged.

use std::cell::RefCell;
use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::SystemTime;

use anyhow::Context as _;
use portolan_node::config::{LogFormat, Logging, VmoduleItem};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use self::record::Scratch;

mod glob;
mod record;
#[cfg(test)]
mod tests;

/// The only logger of the process. The subscriber of `tracing` shares it.
static LOGGER: OnceLock<Arc<Logger>> = OnceLock::new();

/// Starts logging. A second call changes the settings of the running logger.
pub fn start(settings: &Logging) -> anyhow::Result<Handle> {
    if let Some(logger) = LOGGER.get() {
        logger.configure(settings);
        return Ok(Handle(Arc::clone(logger)));
    }
    let logger = Arc::new(Logger::new(settings, write));
    tracing::subscriber::set_global_default(Shared(Arc::clone(&logger))).context("logging")?;
    let logger = LOGGER.get_or_init(|| logger);
    Ok(Handle(Arc::clone(logger)))
}

/// Returns the running logger, if logging has started.
pub fn handle() -> Option<Handle> {
    LOGGER.get().map(|logger| Handle(Arc::clone(logger)))
}

/// Handle to change the running logger.
#[derive(Clone)]
pub struct Handle(Arc<Logger>);

impl Handle {
    /// Logs events up to this klog verbosity: events at 2, decisions at 4, and those of libraries at 6 and 8.
    pub fn set_verbosity(&self, verbosity: u32) {
        self.0.set_verbosity(verbosity);
    }
}

/// Output stream of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Stdout,
    Stderr,
}

struct Logger {
    verbosity: AtomicU32,
    settings: RwLock<Settings>,
    process: u32,
    now: fn() -> SystemTime,
    write: fn(Stream, &str),
}

/// The used fields of the logging configuration. The flush interval and the buffer size have no effect.
struct Settings {
    format: LogFormat,
    split: bool,
    vmodule: Vec<VmoduleItem>,
}

impl Settings {
    fn of(settings: &Logging) -> Self {
        let Logging { format, vmodule, text, json, .. } = settings;
        match format {
            LogFormat::Text => Self { format: *format, split: text.split_stream, vmodule: vmodule.clone() },
            // klog supports file patterns only in its text format.
            LogFormat::Json => Self { format: *format, split: json.split_stream, vmodule: Vec::new() },
        }
    }
}

impl Logger {
    fn new(settings: &Logging, write: fn(Stream, &str)) -> Self {
        Self {
            verbosity: AtomicU32::new(settings.verbosity),
            settings: RwLock::new(Settings::of(settings)),
            process: std::process::id(),
            now: SystemTime::now,
            write,
        }
    }

    fn configure(&self, settings: &Logging) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Settings::of(settings);
        self.set_verbosity(settings.verbosity);
    }

    fn set_verbosity(&self, verbosity: u32) {
        self.verbosity.store(verbosity, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }

    fn read<T>(&self, look: impl FnOnce(&Settings) -> T) -> T {
        look(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the verbosity at the source location of an event. As in klog, a pattern can only raise it, and the
    /// first matching one counts.
    fn verbosity_at(&self, metadata: &Metadata<'_>) -> u32 {
        let matching = |settings: &Settings| {
            settings
                .vmodule
                .iter()
                .find(|item| matches(&item.file_pattern, metadata))
                .map(|item| item.verbosity)
        };
        self.read(matching).unwrap_or(0).max(self.verbosity.load(Ordering::Relaxed))
    }

    fn highest_verbosity(&self) -> u32 {
        let by_pattern = self.read(|settings| settings.vmodule.iter().map(|item| item.verbosity).max());
        by_pattern.unwrap_or(0).max(self.verbosity.load(Ordering::Relaxed))
    }

    fn log(&self, event: &Event<'_>, scratch: &mut Scratch) {
        let (format, split) = self.read(|settings| (settings.format, settings.split));
        let metadata = event.metadata();
        let now = (self.now)();
        match format {
            LogFormat::Text => scratch.text(event, now, self.process),
            LogFormat::Json => scratch.json(event, now, verbosity_of(metadata)),
        }
        // As upstream: with split streams, stdout gets klog's info lines. In JSON, stderr only gets errors.
        let last_info = if format == LogFormat::Text { Level::INFO } else { Level::WARN };
        let stream = if split && *metadata.level() >= last_info { Stream::Stdout } else { Stream::Stderr };
        (self.write)(stream, scratch.line());
    }
}

/// The subscriber of `tracing`.
struct Shared(Arc<Logger>);

impl Subscriber for Shared {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && verbosity_of(metadata) <= self.0.verbosity_at(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match self.0.highest_verbosity() {
            0 | 1 => LevelFilter::INFO,
            2 | 3 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn event(&self, event: &Event<'_>) {
        thread_local! {
            static SCRATCH: RefCell<Scratch> = RefCell::default();
        }
        // The buffer is busy if the `Debug` of a field logs, and gone when the thread ends.
        let reused = SCRATCH.try_with(|scratch| match scratch.try_borrow_mut() {
            Ok(mut scratch) => self.0.log(event, &mut scratch),
            Err(_) => self.0.log(event, &mut Scratch::default()),
        });
        if reused.is_err() {
            self.0.log(event, &mut Scratch::default());
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // Spans are never enabled, so all may share one id.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Returns the klog verbosity at which an event is logged. Events of libraries need a higher one than ours.
fn verbosity_of(metadata: &Metadata<'_>) -> u32 {
    let ours = metadata.target().starts_with("portolan");
    match *metadata.level() {
        Level::DEBUG => {
            if ours {
                2
            } else {
                6
            }
        }
        Level::TRACE => {
            if ours {
                4
            } else {
                8
            }
        }
        _ => 0,
    }
}

/// Returns true if a pattern matches the source location of an event: its file name without extension, as in klog;
/// its path if the pattern has a slash; or its module path.
fn matches(pattern: &str, metadata: &Metadata<'_>) -> bool {
    let path = metadata.file().unwrap_or_default().trim_end_matches(".rs");
    let file = if pattern.contains('/') { path } else { path.rsplit('/').next().unwrap_or(path) };
    glob::matches(pattern, file) || glob::matches(pattern, metadata.module_path().unwrap_or_default())
}

fn write(stream: Stream, line: &str) {
    // A failure to write the log cannot be reported.
    let _ = match stream {
        Stream::Stderr => std::io::stderr().lock().write_all(line.as_bytes()),
        Stream::Stdout => {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush())
        }
    };
}
