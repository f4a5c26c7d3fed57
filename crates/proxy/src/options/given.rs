//! The parsed command line, with typed access to its flags.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use clap::builder::ValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};
use portolan_node::config::{VmoduleItem, format_duration};

use super::flags::{FLAGS, Flag, Kind};
use super::value::{self, BindAddress, VersionFlag};

/// The parsed command line. Every flag has a value: its default if it is not given.
#[derive(Clone, Debug)]
pub(super) struct Given(pub(super) ArgMatches);

impl Given {
    /// Returns true if the flag is on the command line.
    pub(super) fn is_given(&self, name: &str) -> bool {
        let source = || self.0.value_source(name);
        self.0.try_contains_id(name).is_ok() && source() == Some(ValueSource::CommandLine)
    }

    /// Returns the flags that are on the command line.
    pub(super) fn flags(&self) -> impl Iterator<Item = &'static Flag> {
        FLAGS.iter().filter(|flag| self.is_given(flag.name))
    }

    /// Returns a text. Empty if there is none.
    pub(super) fn text(&self, name: &str) -> String {
        self.one(name).unwrap_or_default()
    }

    /// Returns a text if it is not empty.
    pub(super) fn non_empty(&self, name: &str) -> Option<String> {
        Some(self.text(name)).filter(|text| !text.is_empty())
    }

    /// Removes a flag and returns its text if it is not empty.
    pub(super) fn take_text(&mut self, name: &str) -> Option<String> {
        let text: Option<String> = self.0.try_remove_one(name).ok().flatten();
        text.filter(|text| !text.is_empty())
    }

    pub(super) fn boolean(&self, name: &str) -> bool {
        self.one(name).unwrap_or_default()
    }

    pub(super) fn integer(&self, name: &str) -> i32 {
        self.one(name).unwrap_or_default()
    }

    pub(super) fn number(&self, name: &str) -> f32 {
        self.one(name).unwrap_or_default()
    }

    pub(super) fn level(&self, name: &str) -> u32 {
        self.one(name).unwrap_or_default()
    }

    pub(super) fn duration(&self, name: &str) -> Duration {
        self.one(name).unwrap_or_default()
    }

    /// Returns the last address that is not empty.
    pub(super) fn ip(&self, name: &str) -> Option<IpAddr> {
        self.one(name).flatten()
    }

    /// Returns the last address that is not empty.
    pub(super) fn ip_port(&self, name: &str) -> Option<BindAddress> {
        self.one(name).flatten()
    }

    /// Returns the elements of all uses, without empty ones.
    pub(super) fn list(&self, name: &str) -> Vec<String> {
        let elements = |text: String| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        self.many::<String>(name).flat_map(elements).filter(|element| !element.is_empty()).collect()
    }

    /// Returns the gates of all uses. The last use of a name wins.
    pub(super) fn gates(&self, name: &str) -> BTreeMap<String, bool> {
        self.many::<BTreeMap<String, bool>>(name).flatten().collect()
    }

    pub(super) fn patterns(&self, name: &str) -> Vec<VmoduleItem> {
        self.many::<Vec<VmoduleItem>>(name).flatten().collect()
    }

    pub(super) fn version(&self, name: &str) -> VersionFlag {
        self.one(name).unwrap_or(VersionFlag::No)
    }

    /// Returns every flag with the text of its value, for `/flagz`.
    pub(super) fn texts(&self) -> Vec<(String, String)> {
        FLAGS.iter().map(|flag| (flag.name.to_owned(), self.text_of(flag))).collect()
    }

    fn text_of(&self, flag: &Flag) -> String {
        let name = flag.name;
        let or_default = |text: Option<String>| text.unwrap_or_else(|| flag.default.to_owned());
        match flag.kind {
            Kind::Boolean => self.boolean(name).to_string(),
            Kind::Text | Kind::File | Kind::Quantity => self.text(name),
            Kind::Integer => self.integer(name).to_string(),
            Kind::Number => self.number(name).to_string(),
            Kind::Level => self.level(name).to_string(),
            Kind::Duration => format_duration(self.duration(name)),
            Kind::Ip => or_default(self.ip(name).map(|ip| ip.to_string())),
            Kind::IpPort => or_default(self.ip_port(name).map(|at| at.to_string())),
            Kind::List => self.list(name).join(","),
            Kind::Gates => join(self.gates(name).iter().map(|(gate, value)| format!("{gate}={value}"))),
            Kind::Patterns => join(
                self.patterns(name).iter().map(|item| format!("{}={}", item.file_pattern, item.verbosity)),
            ),
            Kind::Version => match self.version(name) {
                VersionFlag::Report(version) => version,
                asked => (asked != VersionFlag::No).to_string(),
            },
        }
    }

    fn one<T: Clone + Send + Sync + 'static>(&self, name: &str) -> Option<T> {
        self.0.try_get_one::<T>(name).ok().flatten().cloned()
    }

    fn many<T: Clone + Send + Sync + 'static>(&self, name: &str) -> impl Iterator<Item = T> {
        self.0.try_get_many::<T>(name).ok().flatten().into_iter().flatten().cloned()
    }
}

fn join(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(",")
}

/// Returns the flag as an argument of clap.
pub(super) fn argument(flag: &'static Flag) -> Arg {
    let action = if flag.kind.is_repeatable() { ArgAction::Append } else { ArgAction::Set };
    let argument = Arg::new(flag.name)
        .long(flag.name)
        .help(flag.help)
        .help_heading(flag.group)
        .value_name(flag.kind.value_name())
        .hide(flag.hidden)
        .hide_default_value(flag.kind.is_optional() && flag.default == "false")
        .action(action)
        .value_parser(parser(flag.kind));
    let argument = if flag.name == "v" { argument.short('v') } else { argument };
    let argument = if flag.default.is_empty() { argument } else { argument.default_value(flag.default) };
    if flag.kind.is_optional() {
        argument.num_args(0..=1).require_equals(true).default_missing_value("true")
    } else {
        // As in kube-proxy, the next argument is the value, even if it starts with a hyphen.
        argument.num_args(1).allow_hyphen_values(true)
    }
}

fn parser(kind: Kind) -> ValueParser {
    match kind {
        Kind::Boolean => ValueParser::new(value::boolean),
        Kind::Text | Kind::File | Kind::Quantity | Kind::List => ValueParser::string(),
        Kind::Integer => ValueParser::new(value::integer),
        Kind::Number => ValueParser::new(value::number),
        Kind::Duration => ValueParser::new(value::duration),
        Kind::Ip => ValueParser::new(value::ip),
        Kind::IpPort => ValueParser::new(value::ip_port),
        Kind::Gates => ValueParser::new(value::gates),
        Kind::Level => ValueParser::new(value::level),
        Kind::Patterns => ValueParser::new(value::patterns),
        Kind::Version => ValueParser::new(value::version),
    }
}
