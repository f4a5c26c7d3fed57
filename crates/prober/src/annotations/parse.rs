//! Reads the annotations.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{
    Annotation, CHECK, FAIL_OPEN, FALL, HOST, HealthCheck, HttpProbe, INTERVAL, PORT, PREFIX, PortChoice,
    Probe, RISE, SLOW_START, STATUSES, Statuses, TABLE, TIMEOUT, Timing, duration,
};

/// Most bytes of a path.
const MOST_PATH: usize = 1024;
/// Most characters of a value that a complaint repeats.
const MOST_VALUE: usize = 80;
const HOUR: Duration = Duration::from_secs(3600);
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(10);

/// What the annotations ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// No health check.
    Absent,
    /// This health check.
    Valid(HealthCheck),
    /// A health check that cannot be understood: what was checked before stays, and no condition changes otherwise.
    Invalid,
}

/// The result of reading the annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed {
    /// What the annotations ask for.
    pub wish: Wish,
    /// What is wrong with them, in the order of their names.
    pub complaints: Vec<Complaint>,
}

/// What is wrong with an annotation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{annotation}: {value:?} {problem}; {mend}")]
pub struct Complaint {
    /// Name of the annotation.
    pub annotation: String,
    /// Its value, cut to 80 characters.
    pub value: String,
    /// What is wrong.
    pub problem: &'static str,
    /// What to write instead.
    pub mend: String,
}

impl Complaint {
    fn new(annotation: &str, value: &str, problem: &'static str, mend: String) -> Self {
        let value = value.chars().take(MOST_VALUE).collect();
        Self { annotation: annotation.to_owned(), value, problem, mend }
    }
}

/// Reads the annotations of a Service. One invalid value makes the whole check invalid: with a default in its place
/// endpoints could fail another check than the one in the annotations.
pub fn parse(annotations: Option<&BTreeMap<String, String>>) -> Parsed {
    let Some(all) = annotations else { return Parsed { wish: Wish::Absent, complaints: Vec::new() } };
    let mut reader = Reader { all, complaints: Vec::new() };
    let wish = match all.get(CHECK.name) {
        None => {
            let mend = || format!("add {}: {}", CHECK.name, CHECK.values);
            reader.idle(&TABLE, "has no effect without the annotation of the check", &mend);
            Wish::Absent
        }
        Some(_) => reader.check().map_or(Wish::Invalid, Wish::Valid),
    };
    reader.unknown();
    reader.complaints.sort();
    Parsed { wish, complaints: reader.complaints }
}

struct Reader<'a> {
    all: &'a BTreeMap<String, String>,
    complaints: Vec<Complaint>,
}

impl Reader<'_> {
    /// Returns the check, or `None` if any of its annotations is invalid.
    fn check(&mut self) -> Option<HealthCheck> {
        let probe = self.read(CHECK, None, probe_of);
        let host = self.read(HOST, Some(None), |text| is_host(text).then(|| Some(text.to_owned())));
        let statuses = self.read(STATUSES, Some(Statuses::default()), Statuses::parse);
        let port = self.read(PORT, Some(PortChoice::First), port_of);
        let fail_open = self.read(FAIL_OPEN, Some(None), fail_open_of);
        let timing = self.timing();
        let (mut probe, host, statuses) = (probe?, host?, statuses?);
        match &mut probe {
            Probe::Http(request) => {
                request.host = host;
                request.statuses = statuses;
            }
            Probe::Tcp => {
                let mend = || format!("remove it, or set {} to http PATH", CHECK.name);
                self.idle(&[HOST, STATUSES], "has no effect on a tcp check", &mend);
            }
        }
        Some(HealthCheck { probe, port: port?, timing: timing?, fail_open: fail_open? })
    }

    fn timing(&mut self) -> Option<Timing> {
        let default = Timing::default();
        let interval =
            self.read(INTERVAL, Some(default.interval), |text| within(text, SHORTEST_INTERVAL, HOUR));
        // With an invalid interval the timeout is compared with the longest one: one mistake is one complaint.
        let longest = interval.unwrap_or(HOUR);
        let timeout = self.read(TIMEOUT, Some(default.timeout.min(longest)), |text| {
            within(text, SHORTEST_TIMEOUT, longest)
        });
        let rise = self.read(RISE, Some(default.rise), count);
        let fall = self.read(FALL, Some(default.fall), count);
        let slow_start =
            self.read(SLOW_START, Some(default.slow_start), |text| within(text, Duration::ZERO, HOUR));
        Some(Timing {
            interval: interval?,
            timeout: timeout?,
            rise: rise?,
            fall: fall?,
            slow_start: slow_start?,
        })
    }

    /// Returns the value of an annotation, the default if it is absent, or `None` after a complaint.
    fn read<T>(
        &mut self,
        row: Annotation,
        default: Option<T>,
        of: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let Some(text) = self.all.get(row.name) else { return default };
        let value = of(text.trim());
        if value.is_none() {
            self.complaints.push(Complaint::new(
                row.name,
                text,
                "is not valid",
                format!("write {}", row.values),
            ));
        }
        value
    }

    /// Complains about annotations that are present and change nothing.
    fn idle(&mut self, rows: &[Annotation], problem: &'static str, mend: &dyn Fn() -> String) {
        for row in rows {
            if let Some(value) = self.all.get(row.name) {
                self.complaints.push(Complaint::new(row.name, value, problem, mend()));
            }
        }
    }

    /// Complains about annotations with the prefix that the table does not have.
    fn unknown(&mut self) {
        let prefixed = self.all.range(PREFIX.to_owned()..).take_while(|(name, _)| name.starts_with(PREFIX));
        let unknown = prefixed.filter(|(name, _)| TABLE.iter().all(|row| row.name != name.as_str()));
        for (name, value) in unknown {
            let known: Vec<&str> =
                TABLE.iter().filter_map(|row| row.name.strip_prefix("portolan.dev/")).collect();
            let mend = format!("remove it, or write one of portolan.dev/{{{}}}", known.join(", "));
            self.complaints.push(Complaint::new(name, value, "is the value of an unknown annotation", mend));
        }
    }
}

fn probe_of(text: &str) -> Option<Probe> {
    let (kind, path) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let tls = match (kind, path.trim()) {
        ("tcp", "") => return Some(Probe::Tcp),
        ("http", _) => false,
        ("https", _) => true,
        _ => return None,
    };
    let path = path.trim();
    let is_path = path.starts_with('/') && path.len() <= MOST_PATH && !path.contains('#');
    let path = path.parse().ok().filter(|_| is_path)?;
    Some(Probe::Http(HttpProbe { tls, path, host: None, statuses: Statuses::default() }))
}

/// Returns true for what may be a `Host` header without a port: a name or an IPv4 address.
fn is_host(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

fn port_of(text: &str) -> Option<PortChoice> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().filter(|port| *port > 0).map(PortChoice::Number);
    }
    let is_name = text.len() <= 63
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    is_name.then(|| PortChoice::Name(text.to_owned()))
}

#[expect(clippy::option_option, reason = "`None` is no value, `Some(None)` is the value `never`")]
fn fail_open_of(text: &str) -> Option<Option<u8>> {
    if text == "never" {
        return Some(None);
    }
    let percentage = text.strip_suffix('%')?.parse().ok()?;
    (percentage <= 99).then_some(Some(percentage))
}

fn within(text: &str, least: Duration, most: Duration) -> Option<Duration> {
    duration::parse(text).filter(|duration| (least..=most).contains(duration))
}

fn count(text: &str) -> Option<u32> {
    text.parse().ok().filter(|count| (1..=100).contains(count))
}
