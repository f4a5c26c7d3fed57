//! Logs as Kubernetes' components write them: klog's text lines, or their JSON, at klog's verbosities.
//!
//! In flow events of `tracing` and the logging part of a configuration; out flow lines on stderr (and stdout,
//! where streams are split). Each line is written at once and in one piece: there is nothing to flush, and
//! nothing to lose. Spans are not shown.

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

/// The one logger of the process, which `tracing` holds, too.
static LOGGER: OnceLock<Arc<Logger>> = OnceLock::new();

/// Starts logging. Called again, it changes how the process logs from then on.
pub(crate) fn start(settings: &Logging) -> anyhow::Result<Handle> {
    if let Some(logger) = LOGGER.get() {
        logger.configure(settings);
        return Ok(Handle(Arc::clone(logger)));
    }
    let logger = Arc::new(Logger::new(settings, write));
    tracing::subscriber::set_global_default(Shared(Arc::clone(&logger))).context("logging")?;
    let logger = LOGGER.get_or_init(|| logger);
    Ok(Handle(Arc::clone(logger)))
}

/// The running log of this process, once it was started.
pub(crate) fn handle() -> Option<Handle> {
    LOGGER.get().map(|logger| Handle(Arc::clone(logger)))
}

/// Changes a running log.
#[derive(Clone)]
pub(crate) struct Handle(Arc<Logger>);

impl Handle {
    /// Shows events up to this klog verbosity: from 2 on what happens, from 4 on what is decided, from 6 and 8 on
    /// what libraries say about both.
    pub(crate) fn set_verbosity(&self, verbosity: u32) {
        self.0.set_verbosity(verbosity);
    }
}

/// Where a line goes.
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

/// What of a configuration matters here. How often to flush and how much to buffer does not.
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
            // klog knows patterns of files only in its text format.
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

    /// The verbosity that holds for the place that an event comes from. As in klog, the first pattern that matches
    /// it can only let more be shown.
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
        // As upstream: whatever is not an info line of klog goes to stderr, and of JSON only errors do.
        let last_info = if format == LogFormat::Text { Level::INFO } else { Level::WARN };
        let stream = if split && *metadata.level() >= last_info { Stream::Stdout } else { Stream::Stderr };
        (self.write)(stream, scratch.line());
    }
}

/// What `tracing` talks to.
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
        // Busy where the Debug of a field logs, and gone where a thread ends.
        let reused = SCRATCH.try_with(|scratch| match scratch.try_borrow_mut() {
            Ok(mut scratch) => self.0.log(event, &mut scratch),
            Err(_) => self.0.log(event, &mut Scratch::default()),
        });
        if reused.is_err() {
            self.0.log(event, &mut Scratch::default());
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // Spans are never enabled; all of them may share one name.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The klog verbosity from which on events of this kind are shown. Libraries tell their own story, which few
/// want to hear.
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

/// Whether a pattern means the place of an event: by the name of its source file without extension, as in klog,
/// by its path where the pattern has a slash, or by the path of its module.
fn matches(pattern: &str, metadata: &Metadata<'_>) -> bool {
    let path = metadata.file().unwrap_or_default().trim_end_matches(".rs");
    let file = if pattern.contains('/') { path } else { path.rsplit('/').next().unwrap_or(path) };
    glob::matches(pattern, file) || glob::matches(pattern, metadata.module_path().unwrap_or_default())
}

fn write(stream: Stream, line: &str) {
    // There is nobody to tell that the log cannot be written.
    let _ = match stream {
        Stream::Stderr => std::io::stderr().lock().write_all(line.as_bytes()),
        Stream::Stdout => {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush())
        }
    };
}
