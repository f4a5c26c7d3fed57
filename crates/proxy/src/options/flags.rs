//! Every flag of the node agent. The parser, `/flagz` and `docs/reference/flags.md` are made from this table.
//!
//! Names, types and defaults are those of kube-proxy v1.36 (`cmd/kube-proxy/app/options.go`).

mod table;

pub(super) use table::FLAGS;

/// The type of a flag's value, in Go's syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `--name`, `--name=true`, `--name=0`.
    Boolean,
    /// Any text.
    Text,
    /// The path of a file.
    File,
    /// A whole number of 32 bits.
    Integer,
    /// A number of 32 bits.
    Number,
    /// A duration: `30s`, `1h30m`.
    Duration,
    /// An IP address; an empty one is ignored.
    Ip,
    /// `IP[:PORT]`; an empty one is ignored.
    IpPort,
    /// Texts, comma separated; the flag may be repeated.
    List,
    /// `NAME=BOOL`, comma separated; the flag may be repeated.
    Gates,
    /// A verbosity.
    Level,
    /// `PATTERN=N`, comma separated; the flag may be repeated.
    Patterns,
    /// A quantity of bytes.
    Quantity,
    /// No value, a boolean, `raw`, or a version to report.
    Version,
}

impl Kind {
    /// Returns the placeholder of the value in the help.
    pub(super) const fn value_name(self) -> &'static str {
        match self {
            Self::Boolean => "BOOL",
            Self::Text => "TEXT",
            Self::File => "FILE",
            Self::Integer | Self::Level => "N",
            Self::Number => "NUMBER",
            Self::Duration => "DURATION",
            Self::Ip => "IP",
            Self::IpPort => "IP[:PORT]",
            Self::List => "TEXT,...",
            Self::Gates => "GATE=BOOL,...",
            Self::Patterns => "PATTERN=N,...",
            Self::Quantity => "QUANTITY",
            Self::Version => "WHAT",
        }
    }

    /// Returns true if the value may be omitted. A value must then follow after `=`.
    pub(super) const fn is_optional(self) -> bool {
        matches!(self, Self::Boolean | Self::Version)
    }

    /// Returns true if later uses add to earlier ones. Otherwise the last use wins.
    pub(super) const fn is_repeatable(self) -> bool {
        matches!(self, Self::List | Self::Gates | Self::Patterns)
    }
}

/// One flag.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    pub(super) group: &'static str,
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// The default as on a command line. Empty means none.
    pub(super) default: &'static str,
    /// The field of the configuration file with the same meaning. Empty if there is none.
    pub(super) field: &'static str,
    pub(super) help: &'static str,
    /// Whether the flag has an effect together with `--config`.
    pub(super) with_config: bool,
    /// Whether the help omits the flag.
    pub(super) hidden: bool,
    /// For a deprecated flag, what to use instead.
    pub(super) deprecated: Option<&'static str>,
}

impl Flag {
    const fn counts_with_config(mut self) -> Self {
        self.with_config = true;
        self
    }

    const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    const fn deprecated(mut self, instead: &'static str) -> Self {
        self.deprecated = Some(instead);
        self.hidden()
    }

    const fn field(mut self, field: &'static str) -> Self {
        self.field = field;
        self
    }
}

const fn flag(
    group: &'static str,
    name: &'static str,
    kind: Kind,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag { group, name, kind, default, field: "", help, with_config: false, hidden: false, deprecated: None }
}

/// Returns the flag with that name.
pub(super) fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}
