//! Parsers of flag values, in the syntax of Go's parsers.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use portolan_node::address::{self, AddressError};
use portolan_node::config::{DurationError, VmoduleItem, parse_duration};

/// Why a text is not a valid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ValueError {
    /// Not a boolean.
    #[error("not a boolean; write true or false")]
    Boolean,
    /// Not a whole number of 32 bits.
    #[error("not a whole number of 32 bits")]
    Integer,
    /// Not a number of 32 bits.
    #[error("not a number of 32 bits")]
    Number,
    /// Not a verbosity.
    #[error("not a verbosity; write 0 to 2147483647")]
    Level,
    /// Not `NAME=BOOL`.
    #[error("`{0}` is not a feature gate with a value; write NAME=true or NAME=false")]
    Gate(String),
    /// Not `PATTERN=N`.
    #[error("`{0}` is not a file pattern with a verbosity; write PATTERN=N")]
    Pattern(String),
    /// Neither a boolean, nor `raw`, nor a version that this program may report.
    #[error("write true, raw, or a version that starts with v{expected}")]
    Version {
        /// The version of Kubernetes that this program follows.
        expected: &'static str,
    },
    /// Not a duration.
    #[error(transparent)]
    Duration(#[from] DurationError),
    /// Not an address.
    #[error(transparent)]
    Address(#[from] AddressError),
}

/// The version of kube-proxy that this program follows.
pub(super) const KUBERNETES: &str = "1.36.2";

/// `--version`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VersionFlag {
    /// Not given.
    No,
    /// Print one line.
    Short,
    /// Print all version fields.
    Raw,
    /// Run, and report this version.
    Report(String),
}

/// `IP` or `IP:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BindAddress {
    pub(super) ip: IpAddr,
    pub(super) port: Option<u16>,
}

impl std::fmt::Display for BindAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.ip, port).fmt(f),
            None => self.ip.fmt(f),
        }
    }
}

impl BindAddress {
    pub(super) fn or_port(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, self.port.unwrap_or(port))
    }
}

/// Go's `strconv.ParseBool`.
pub(super) fn boolean(text: &str) -> Result<bool, ValueError> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(ValueError::Boolean),
    }
}

/// Go's `strconv.ParseInt` with base 0: also `0x1f`, `0o17`, `017`, `0b1` and `1_000`.
pub(super) fn integer(text: &str) -> Result<i32, ValueError> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = unsigned.to_ascii_lowercase();
    let based = [("0x", 16), ("0o", 8), ("0b", 2), ("0", 8)].into_iter().find_map(|(prefix, base)| {
        Some((lower.strip_prefix(prefix)?, base)).filter(|(digits, _)| !digits.is_empty())
    });
    let (digits, base) = based.unwrap_or((lower.as_str(), 10));
    let digits = digits.replace('_', "");
    let number = Some(&digits).filter(|digits| !digits.starts_with(['-', '+']));
    let number = number.and_then(|digits| i64::from_str_radix(digits, base).ok());
    let signed = number.map(|number| if negative { -number } else { number });
    signed.and_then(|number| i32::try_from(number).ok()).ok_or(ValueError::Integer)
}

/// A finite number.
pub(super) fn number(text: &str) -> Result<f32, ValueError> {
    text.parse::<f32>().ok().filter(|number| number.is_finite()).ok_or(ValueError::Number)
}

/// A duration, zero or more.
pub(super) fn duration(text: &str) -> Result<Duration, ValueError> {
    Ok(parse_duration(text)?)
}

/// A klog verbosity.
pub(super) fn level(text: &str) -> Result<u32, ValueError> {
    text.parse::<u32>().ok().filter(|level| i32::try_from(*level).is_ok()).ok_or(ValueError::Level)
}

/// An address, or `None` for an empty text.
pub(super) fn ip(text: &str) -> Result<Option<IpAddr>, ValueError> {
    let trimmed = text.trim();
    if trimmed.is_empty() { Ok(None) } else { Ok(Some(address::parse_ip(trimmed)?)) }
}

/// An address with or without a port, or `None` for an empty text.
pub(super) fn ip_port(text: &str) -> Result<Option<BindAddress>, ValueError> {
    if text.is_empty() {
        return Ok(None);
    }
    if let Ok(ip) = address::parse_ip(text) {
        return Ok(Some(BindAddress { ip, port: None }));
    }
    let at = address::parse_socket_address(text, 0)?;
    Ok(Some(BindAddress { ip: at.ip(), port: Some(at.port()) }))
}

/// `NAME=BOOL,...`. Blanks around an item and empty items are ignored.
pub(super) fn gates(text: &str) -> Result<BTreeMap<String, bool>, ValueError> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let gates = items.map(|item| {
        let wrong = || ValueError::Gate(item.to_owned());
        let (name, value) = item.split_once('=').ok_or_else(wrong)?;
        let name = Some(name.trim()).filter(|name| !name.is_empty()).ok_or_else(wrong)?;
        Ok((name.to_owned(), boolean(value.trim()).map_err(|_| wrong())?))
    });
    gates.collect()
}

/// `PATTERN=N,...`. Empty items are ignored.
pub(super) fn patterns(text: &str) -> Result<Vec<VmoduleItem>, ValueError> {
    let items = text.split(',').filter(|item| !item.is_empty());
    let parsed = items.map(|item| {
        let wrong = || ValueError::Pattern(item.to_owned());
        let (pattern, verbosity) = item.split_once('=').ok_or_else(wrong)?;
        let verbosity = level(verbosity).map_err(|_| wrong())?;
        Ok(VmoduleItem { file_pattern: pattern.to_owned(), verbosity })
    });
    parsed.collect()
}

/// A boolean, `raw`, or a version with the same major, minor and patch numbers as [`KUBERNETES`].
pub(super) fn version(text: &str) -> Result<VersionFlag, ValueError> {
    let wrong = ValueError::Version { expected: KUBERNETES };
    if text == "raw" {
        return Ok(VersionFlag::Raw);
    }
    if let Some(version) = text.strip_prefix('v') {
        let rest = version.strip_prefix(KUBERNETES).ok_or_else(|| wrong.clone())?;
        let same = rest.is_empty() || rest.starts_with(['-', '+']);
        return if same { Ok(VersionFlag::Report(text.to_owned())) } else { Err(wrong) };
    }
    match boolean(text) {
        Ok(true) => Ok(VersionFlag::Short),
        Ok(false) => Ok(VersionFlag::No),
        Err(_) => Err(wrong),
    }
}
