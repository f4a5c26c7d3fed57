//! Every flag of `portolan proxy`: the table from which the parser, `/flagz` and `docs/reference/flags.md` are made.
//!
//! Names, types and defaults are those of kube-proxy v1.36 (`cmd/kube-proxy/app/options.go`).

mod table;

pub(super) use table::FLAGS;

/// What a flag takes. Spellings are Go's.
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
    /// `30s`, `1h30m`.
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
    /// Nothing, a boolean, `raw`, or a version to report.
    Version,
}

impl Kind {
    /// What the help shows for the value.
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

    /// Whether the value may be left out, and must be joined by `=` otherwise.
    pub(super) const fn is_optional(self) -> bool {
        matches!(self, Self::Boolean | Self::Version)
    }

    /// Whether later uses add to earlier ones; otherwise the last one counts.
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
    /// As written on a command line; empty for nothing.
    pub(super) default: &'static str,
    /// The field of the configuration file that says the same, if there is one.
    pub(super) field: &'static str,
    pub(super) help: &'static str,
    /// Whether it counts with `--config` too.
    pub(super) with_config: bool,
    /// Hidden from the help.
    pub(super) hidden: bool,
    /// What to do in its place, for a flag that is on its way out.
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

/// The flag of that name.
pub(super) fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}
