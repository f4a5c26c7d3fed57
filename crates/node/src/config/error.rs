//! What is wrong with a configuration: the field, its value, the mend.

use std::fmt;
use std::path::PathBuf;

use super::duration::DurationError;
use crate::address::AddressError;
use crate::gates::GateError;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read configuration file {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not a YAML (or JSON) document.
    #[error("the configuration is not valid YAML: {0}")]
    Syntax(Box<serde_saphyr::Error>),
    /// Fields are wrong.
    #[error(transparent)]
    Invalid(#[from] FieldErrors),
}

/// Every field that is wrong, in the order found; never empty.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct FieldErrors(Vec<FieldError>);

impl FieldErrors {
    /// The single errors.
    pub fn iter(&self) -> impl Iterator<Item = &FieldError> {
        self.0.iter()
    }

    /// Nothing wrong with an empty list.
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

/// One field that is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct FieldError {
    /// Path of the field, such as `nftables.masqueradeBit` or `nodePortAddresses[1]`.
    pub path: String,
    /// Where its name stands in the file; nothing if it is not there or there is no file.
    pub place: Option<Place>,
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
            Some(Place { line, column }) => {
                write!(f, "{} (line {line}, column {column}): {}", self.path, self.problem)
            }
            None => write!(f, "{}: {}", self.path, self.problem),
        }
    }
}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line, from 1.
    pub line: u64,
    /// The character in it, from 1.
    pub column: u64,
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    /// A field that does not exist there.
    #[error("unknown field; {}", meant_or_known(*.meant, .known))]
    UnknownField {
        /// The field that was probably meant.
        meant: Option<&'static str>,
        /// What does exist there.
        known: Vec<&'static str>,
    },
    /// A field that is there already.
    #[error("written twice; leave one of them")]
    Duplicate,
    /// A field of an earlier version, which means nothing any more.
    #[error("not part of v1alpha1 any more, and ignored; it can be deleted")]
    Former,
    /// A feature gate that cannot be set so.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// A setting that a feature gate must allow.
    #[error("needs the feature gate {gate}; enable it under featureGates or leave this out")]
    NeedsGate {
        /// The gate.
        gate: &'static str,
    },
    /// A bad quantity.
    #[error("`{value}` is not a quantity; write a number, with a unit if need be: 4096, 64Ki, 1M")]
    Quantity {
        /// What was written.
        value: String,
    },
    /// A field without which the document says nothing.
    #[error("missing; it must be `{want}`")]
    Missing {
        /// The only value that it can have.
        want: &'static str,
    },
    /// A value of the wrong kind.
    #[error("{found} is not {expected}")]
    WrongType {
        /// What was written.
        found: String,
        /// What belongs there.
        expected: &'static str,
    },
    /// A value that is none of the possible ones.
    #[error("`{value}` is not supported; write one of: {}", .allowed.join(", "))]
    NotOneOf {
        /// What was written.
        value: String,
        /// What is possible.
        allowed: Vec<&'static str>,
    },
    /// A number outside its range.
    #[error("{value} is out of range; write {minimum} to {maximum}")]
    OutOfRange {
        /// What was written.
        value: i64,
        /// Least value.
        minimum: i64,
        /// Greatest value.
        maximum: i64,
    },
    /// A bad duration.
    #[error("`{value}`: {reason}")]
    Duration {
        /// What was written.
        value: String,
        /// What is wrong with it.
        reason: DurationError,
    },
    /// A bad range of ports.
    #[error("`{value}` is not a range of two ports or more; write FIRST-LAST, or leave it empty")]
    PortRange {
        /// What was written.
        value: String,
    },
    /// A bad address, CIDR or IP:port.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A duration of zero where time must pass.
    #[error("zero; write a duration above 0s")]
    ZeroDuration,
    /// The least time between syncs is above the greatest.
    #[error("{min} is above syncPeriod ({sync}); write at most that")]
    AboveSyncPeriod {
        /// minSyncPeriod.
        min: String,
        /// syncPeriod.
        sync: String,
    },
    /// More CIDRs than one for each family.
    #[error("`{value}`: write one CIDR, or two of different families")]
    OneCidrPerFamily {
        /// What was written.
        value: String,
    },
    /// `primary` in a list with other elements.
    #[error("`primary` cannot be mixed with CIDRs; write it alone or leave it out")]
    PrimaryMixed,
    /// An empty name that the mode needs.
    #[error("empty; detectLocalMode {mode} needs it")]
    NeededByMode {
        /// The mode of local detection.
        mode: &'static str,
    },
    /// A name of blanks only.
    #[error("only blanks; write the node's name or leave it out")]
    Blank,
    /// No name for this node at all.
    #[error("neither the configuration nor the host gives a node name; set it")]
    NoHostname,
    /// A pattern that `vmodule` cannot express.
    #[error("`{value}` is not a file pattern; write one that is not empty and has neither `=` nor `,`")]
    FilePattern {
        /// What was written.
        value: String,
    },
    /// A setting that only the text log format has.
    #[error("only for logging.format text; leave it out")]
    TextFormatOnly,
}

fn meant_or_known(meant: Option<&str>, known: &[&str]) -> String {
    match meant {
        Some(field) => format!("did you mean `{field}`?"),
        None => format!("known fields here: {}", known.join(", ")),
    }
}
