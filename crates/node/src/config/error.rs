//! Errors of a configuration: the field, its value, and the fix.

use std::fmt;
use std::path::PathBuf;

use super::duration::DurationError;
use crate::address::AddressError;
use crate::gates::GateError;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read configuration file {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The text is not a YAML (or JSON) document.
    #[error("the configuration is not valid YAML: {0}")]
    Syntax(Box<serde_saphyr::Error>),
    /// Fields are wrong.
    #[error(transparent)]
    Invalid(#[from] FieldErrors),
}

/// Every field that is wrong, in the order found. Never empty.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct FieldErrors(Vec<FieldError>);

impl FieldErrors {
    /// Returns the single errors.
    pub fn iter(&self) -> impl Iterator<Item = &FieldError> {
        self.0.iter()
    }

    /// Returns `Ok` for an empty list.
    ///
    /// # Errors
    /// The list, if it is not empty.
    pub fn from_list(errors: Vec<FieldError>) -> Result<(), Self> {
        if errors.is_empty() { Ok(()) } else { Err(Self(errors)) }
    }
}

impl fmt::Display for FieldErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the configuration is invalid:")?;
        self.0.iter().try_for_each(|error| write!(f, "\n  {error}"))
    }
}

/// A field that is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct FieldError {
    /// The path of the field, such as `nftables.masqueradeBit` or `nodePortAddresses[1]`.
    pub path: String,
    /// The place of its name in the file; `None` if it is not in the file or there is no file.
    pub place: Option<TextPosition>,
    /// What is wrong with it.
    pub problem: Problem,
}

impl FieldError {
    pub(super) fn new(path: impl Into<String>, problem: Problem) -> Self {
        Self { path: path.into(), place: None, problem }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some(TextPosition { line, column }) => {
                write!(f, "{} (line {line}, column {column}): {}", self.path, self.problem)
            }
            None => write!(f, "{}: {}", self.path, self.problem),
        }
    }
}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextPosition {
    /// The line, from 1.
    pub line: u64,
    /// The character in the line, from 1.
    pub column: u64,
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    /// The field does not exist in its section.
    #[error("unknown field; {}", meant_or_known(*.meant, .known))]
    UnknownField {
        /// The known field with a similar name.
        meant: Option<&'static str>,
        /// The fields that exist in the section.
        known: Vec<&'static str>,
    },
    /// The field is written a second time.
    #[error("written twice; leave one of them")]
    Duplicate,
    /// The field is of an earlier version, and has no effect.
    #[error("not part of v1alpha1 any more, and ignored; it can be deleted")]
    Former,
    /// The feature gate cannot have this value.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The setting needs a feature gate.
    #[error("needs the feature gate {gate}; enable it under featureGates or leave this out")]
    NeedsGate {
        /// The gate.
        gate: &'static str,
    },
    /// The value is not a quantity.
    #[error("`{value}` is not a quantity; write a number, with a unit if need be: 4096, 64Ki, 1M")]
    Quantity {
        /// The written value.
        value: String,
    },
    /// A required field is missing.
    #[error("missing; it must be `{want}`")]
    Missing {
        /// The only valid value.
        want: &'static str,
    },
    /// The value has the wrong type.
    #[error("{found} is not {expected}")]
    WrongType {
        /// The written value.
        found: String,
        /// The expected type.
        expected: &'static str,
    },
    /// The value is not one of the supported values.
    #[error("`{value}` is not supported; write one of: {}", .allowed.join(", "))]
    NotOneOf {
        /// The written value.
        value: String,
        /// The supported values.
        allowed: Vec<&'static str>,
    },
    /// The number is out of range.
    #[error("{value} is out of range; write {minimum} to {maximum}")]
    OutOfRange {
        /// The written value.
        value: i64,
        /// The least valid value.
        minimum: i64,
        /// The greatest valid value.
        maximum: i64,
    },
    /// The value is not a valid duration.
    #[error("`{value}`: {reason}")]
    Duration {
        /// The written value.
        value: String,
        /// What is wrong with it.
        reason: DurationError,
    },
    /// The value is not a range of ports.
    #[error("`{value}` is not a range of two ports or more; write FIRST-LAST, or leave it empty")]
    PortRange {
        /// The written value.
        value: String,
    },
    /// The value is not a valid address, CIDR or IP:port.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The duration is zero, but must not be.
    #[error("zero; write a duration above 0s")]
    ZeroDuration,
    /// The duration is longer than the kernel accepts.
    #[error("{value} is longer than the kernel accepts; write at most {longest}")]
    TooLong {
        /// The written value.
        value: String,
        /// The longest valid value.
        longest: String,
    },
    /// `minSyncPeriod` is above `syncPeriod`.
    #[error("{min} is above syncPeriod ({sync}); write at most that")]
    AboveSyncPeriod {
        /// The written `minSyncPeriod`.
        min: String,
        /// The effective `syncPeriod`.
        sync: String,
    },
    /// There is more than one CIDR for a family.
    #[error("`{value}`: write one CIDR, or two of different families")]
    OneCidrPerFamily {
        /// The written value.
        value: String,
    },
    /// `primary` is in a list with other elements.
    #[error("`primary` cannot be mixed with CIDRs; write it alone or leave it out")]
    PrimaryMixed,
    /// The mode needs a name, but it is empty.
    #[error("empty; detectLocalMode {mode} needs it")]
    NeededByMode {
        /// The mode of local detection.
        mode: &'static str,
    },
    /// No interface can have this name, or iptables cannot match it (`IFNAMSIZ` and `dev_valid_name` of the kernel; a
    /// final `+` is iptables' sign for a prefix).
    #[error(
        "`{value}` is not {what}; write 1 to {longest} bytes without `/`, `:`, blanks and control characters, and without \
         `+` or `*` at the end"
    )]
    InterfaceName {
        /// The written value.
        value: String,
        /// What the value should be.
        what: &'static str,
        /// The most bytes that it can have.
        longest: usize,
    },
    /// The name consists of blanks only.
    #[error("only blanks; write the node's name or leave it out")]
    Blank,
    /// There is no name for this node.
    #[error("neither the configuration nor the host gives a node name; set it")]
    NoHostname,
    /// `vmodule` cannot express the pattern.
    #[error("`{value}` is not a file pattern; write one that is not empty and has neither `=` nor `,`")]
    FilePattern {
        /// The written value.
        value: String,
    },
    /// The text is not a key of Kubernetes.
    #[error(
        "`{value}` is not a key of Kubernetes; write NAME or DOMAIN/NAME, such as portolan.dev/agent-not-ready"
    )]
    NotAKey {
        /// The written value.
        value: String,
    },
    /// The kubelet sets the condition.
    #[error("`{value}` is a condition of the kubelet; choose another type")]
    OfKubelet {
        /// The written value.
        value: String,
    },
    /// The text is not the path of a Unix socket.
    #[error(
        "`{value}` is not the path of a socket; write an absolute path of at most 107 bytes, or leave it empty"
    )]
    SocketPath {
        /// The written value.
        value: String,
    },
    /// The setting exists for the text log format only.
    #[error("only for logging.format text; leave it out")]
    TextFormatOnly,
}

fn meant_or_known(meant: Option<&str>, known: &[&str]) -> String {
    match meant {
        Some(field) => format!("did you mean `{field}`?"),
        None => format!("known fields here: {}", known.join(", ")),
    }
}
