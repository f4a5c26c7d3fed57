//! The flags of the node agent, which are those of kube-proxy, and the configuration that results from it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use portolan_model::{Capture, Family};
use portolan_node::config::{self, ConfigError, Configuration, FieldError, FieldErrors};
use portolan_node::gates::{FeatureGates, Stage};
use portolan_watch::LocalServer;

use self::given::Given;
use self::value::{KUBERNETES, VersionFlag};
use super::modes::{DefaultMode, Preferences};

mod apply;
mod arguments;
mod flags;
mod given;
mod over;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use self::arguments::normalise_flags;
pub use self::arguments::{is_kube_proxy, is_kubectl_plugin, normalise};

/// The configuration of a file, with the errors that only deserve a warning.
type ReadOutcome = Result<(Configuration, Vec<FieldError>), ConfigError>;

/// The flags of the node agent.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct ProxyOptions {
    given: Given,
    /// Remove the rules of all modes and exit. Takes precedence over `init_only`.
    pub(crate) cleanup: bool,
    /// With `cleanup`, keep what kube-proxy uses.
    pub(crate) only_ours: bool,
    /// Do only what needs privileges, and exit.
    pub(crate) init_only: bool,
    /// Apply changes of the configuration file.
    pub(crate) config_reload: bool,
    /// What decides about the mode besides the configuration.
    pub(crate) preferences: Preferences,
    /// How long an empty list of Services or EndpointSlices is held until another list confirms it.
    pub(crate) empty_list_hold: Duration,
    /// The API server, if it runs in the same process.
    local: Option<LocalServer>,
    /// The families whose packets the host is made to forward.
    pub(crate) forwards: Vec<Family>,
}

/// Where the API server is, by the flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// The kubeconfig file (`--kubeconfig`).
    pub kubeconfig: Option<PathBuf>,
    /// The URL, in place of the kubeconfig's (`--master`).
    pub master: Option<String>,
}

/// The command line and the configuration file together.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// The effective configuration, validated.
    pub(crate) configuration: Configuration,
    /// URL of the API server, overriding the kubeconfig's.
    pub(crate) master: Option<String>,
    /// The API server of the same process, in place of the one that the configuration and `master` name.
    pub(crate) local: Option<LocalServer>,
    /// Path of the configuration file, if any.
    pub(crate) file: Option<PathBuf>,
    /// Every flag with its effective text, for `/flagz`.
    pub(crate) flags: Vec<(String, String)>,
    /// Every feature gate.
    pub(crate) gates: FeatureGates,
    /// The version to report.
    pub(crate) version: String,
    /// Warnings for the operator.
    notes: Vec<String>,
}

impl Loaded {
    /// Returns what is loaded if an agent reports this configuration, and neither flags nor a file are known.
    pub(crate) fn reported(configuration: Configuration) -> Self {
        Self {
            gates: configuration.gates(),
            configuration,
            master: None,
            local: None,
            file: None,
            flags: Vec::new(),
            version: own_version(),
            notes: Vec::new(),
        }
    }

    /// Logs the warnings and the flags. Call it after the log has started.
    pub(crate) fn log(&self) {
        tracing::debug!(version = self.version, file = ?self.file, "loaded");
        self.log_notes();
        for (flag, value) in &self.flags {
            tracing::debug!(flag, value, "flag");
        }
    }

    /// Returns the warnings.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Logs the warnings.
    pub(crate) fn log_notes(&self) {
        for note in &self.notes {
            tracing::warn!("{note}");
        }
    }
}

impl ProxyOptions {
    /// Handles `--version` and `--write-config-to`, after which the process exits. Returns true if one was given.
    pub(crate) fn act(&self) -> anyhow::Result<bool> {
        match self.given.version("version") {
            VersionFlag::Short => println!("Kubernetes {}", own_version()),
            VersionFlag::Raw => println!("{}", raw_version()),
            VersionFlag::No | VersionFlag::Report(_) => {
                let Some(path) = self.given.non_empty("write-config-to") else { return Ok(false) };
                let written = self.load()?.configuration.to_yaml();
                std::fs::write(&path, written)
                    .with_context(|| format!("--write-config-to: cannot write {path}"))?;
            }
        }
        Ok(true)
    }

    /// Returns the options that these flags give, for a command that runs the node agent with flags of its own.
    ///
    /// # Errors
    /// A flag or its value is wrong.
    pub fn from_flags(flags: impl IntoIterator<Item = String>) -> Result<Self, clap::Error> {
        let command = Self::augment_args(Command::new("portolan")).no_binary_name(true);
        Self::from_arg_matches(&command.try_get_matches_from(flags)?)
    }

    /// Returns these options with an API server in the same process.
    #[must_use]
    pub fn with_local_server(self, server: LocalServer) -> Self {
        Self { local: Some(server), ..self }
    }

    /// Returns these options for a host that is no node of a cluster: the start turns on the forwarding of packets of these
    /// families, which are all that Services have. A clean-up leaves it on.
    #[must_use]
    pub fn with_forwarding(self, families: Vec<Family>) -> Self {
        Self { forwards: families, ..self }
    }

    /// Removes the flags of the connection to the API server, for a command that connects itself: they are not flags of the
    /// node agent then.
    pub fn take_connection(&mut self) -> Connection {
        let mut take = |name| self.given.take_text(name);
        Connection { kubeconfig: take("kubeconfig").map(PathBuf::from), master: take("master") }
    }

    /// Returns the names of the flags on the command line.
    pub fn given(&self) -> impl Iterator<Item = &'static str> {
        self.given.flags().map(|flag| flag.name)
    }

    /// Returns true if these options run the proxy, and not an action that ends by itself.
    pub fn runs_until_signal(&self) -> bool {
        let acts = matches!(self.given.version("version"), VersionFlag::Short | VersionFlag::Raw)
            || self.given.non_empty("write-config-to").is_some();
        !acts && !self.cleanup && !self.init_only
    }

    /// Reads the file, if any, and applies the flags that have precedence over it.
    ///
    /// # Errors
    /// All errors of the file and the flags together.
    pub(crate) fn load(&self) -> anyhow::Result<Loaded> {
        self.load_with(config::load_with_notes)
    }

    /// Does the same for a command that asks the API server in the place of an agent, such as a check on a node: `--kubeconfig` has
    /// precedence over the file, whose kubeconfig may exist in the pod of the agent only.
    ///
    /// # Errors
    /// All errors of the file and the flags together.
    pub(crate) fn load_to_ask(&self) -> anyhow::Result<Loaded> {
        let mut options = self.clone();
        let kubeconfig = options.given.take_text("kubeconfig");
        let mut loaded = options.load()?;
        if let Some(kubeconfig) = kubeconfig {
            loaded.configuration.client_connection.kubeconfig = kubeconfig;
        }
        Ok(loaded)
    }

    /// Reads the flags over the configuration that an agent reports. A file that a flag names replaces that configuration.
    ///
    /// # Errors
    /// All errors of the flags together, or those of the configuration.
    pub(crate) fn load_over(&self, reported: &serde_json::Value) -> anyhow::Result<Loaded> {
        if self.given.is_given("config") {
            return self.load();
        }
        let configuration = over::over(&self.given, reported)?;
        Ok(Loaded { flags: self.given.texts(), notes: self.notes(None), ..Loaded::reported(configuration) })
    }

    /// Does the same as [`ProxyOptions::load`] for a file with this content.
    ///
    /// # Errors
    /// All errors of the file and the flags together.
    pub(crate) fn load_content(&self, content: &[u8]) -> anyhow::Result<Loaded> {
        self.load_with(|path| config::parse_content(path, content.to_vec()))
    }

    fn load_with(&self, read: impl FnOnce(&Path) -> ReadOutcome) -> anyhow::Result<Loaded> {
        let given = &self.given;
        let file = given.non_empty("config").map(PathBuf::from);
        let mut notes = self.notes(file.as_deref());
        let (mut configuration, mut errors) = match &file {
            Some(path) => {
                let (configuration, found) = read(path)?;
                notes.extend(found.iter().map(|note| format!("{}: {note}", path.display())));
                (configuration, Vec::new())
            }
            None => apply::configuration(given),
        };
        apply::logging(given, &mut configuration.logging, &mut errors);
        apply::portolan(given, &mut configuration.portolan);
        if let Some(name) = given.non_empty("hostname-override")
            && let Err(error) = configuration.set_hostname_override(&name)
        {
            errors.push(error);
        }
        if let Err(found) = configuration.validate() {
            errors.extend(found.iter().cloned());
        }
        let errors = errors.into_iter().map(|error| apply::name_flag(given, error));
        FieldErrors::from_list(errors.collect())?;
        let gates = configuration.gates();
        notes.extend(gates.needless().map(needless));
        notes.extend(gates.retired().map(|gate| {
            let (name, value, since) = (gate.name, gate.value, gate.since);
            format!("feature gate {name} is always {value} since Kubernetes {since}: leave it out")
        }));
        let version = match given.version("version") {
            VersionFlag::Report(version) => version,
            _ => own_version(),
        };
        let (master, flags) = (given.non_empty("master"), given.texts());
        let local = self.local.clone();
        Ok(Loaded { configuration, master, local, file, flags, gates, version, notes })
    }

    fn notes(&self, file: Option<&Path>) -> Vec<String> {
        let mut notes = Vec::new();
        let ignored = self.given.flags().filter(|flag| !flag.with_config);
        let ignored: Vec<String> = ignored.map(|flag| format!("--{}", flag.name)).collect();
        if file.is_some() && !ignored.is_empty() {
            notes.push(format!(
                "the configuration file replaces these flags, which are ignored: {}",
                ignored.join(", ")
            ));
        }
        for flag in self.given.flags() {
            if let Some(instead) = flag.deprecated {
                notes.push(format!("--{} is deprecated: {instead}", flag.name));
            }
        }
        notes
    }
}

fn needless((gate, stage): (&str, Stage)) -> String {
    match stage {
        Stage::Deprecated => format!("feature gate {gate} is deprecated and will go: leave it out"),
        _ => format!("feature gate {gate} is here to stay and will go as a gate: leave it out"),
    }
}

/// Returns the kube-proxy version that this program follows, and its own.
fn own_version() -> String {
    format!("v{KUBERNETES}+portolan-{}", env!("CARGO_PKG_VERSION"))
}

fn raw_version() -> String {
    let mut numbers = KUBERNETES.split('.');
    let mut next = || numbers.next().unwrap_or_default();
    let (major, minor, version) = (next(), next(), own_version());
    let platform = match std::env::consts::ARCH {
        "x86_64" => "linux/amd64".to_owned(),
        "aarch64" => "linux/arm64".to_owned(),
        other => format!("linux/{other}"),
    };
    format!("version.Info{{Major:{major:?}, Minor:{minor:?}, GitVersion:{version:?}, Platform:{platform:?}}}")
}

impl Args for ProxyOptions {
    fn augment_args(command: Command) -> Command {
        command
            .args(flags::FLAGS.iter().map(given::argument))
            .args_override_self(true)
            .disable_version_flag(true)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ProxyOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = Given(matches.clone());
        let [cleanup, only_ours, init_only, config_reload, ipvs_fallback] =
            ["cleanup", "only-ours", "init-only", "config-reload", "ipvs-fallback"]
                .map(|name| given.boolean(name));
        let capture = given.text("userspace-capture");
        let named = |way: &Capture| way.name() == capture;
        let capture = match Capture::ALL.into_iter().find(named) {
            None if capture != "auto" => {
                let error = format!(
                    "--userspace-capture: `{capture}` is not supported; write one of: auto, tproxy, redirect\n"
                );
                return Err(clap::Error::raw(clap::error::ErrorKind::InvalidValue, error));
            }
            found => found,
        };
        let default_mode = given.text("default-mode");
        let default_mode = match default_mode.as_str() {
            "iptables" => DefaultMode::Iptables,
            "nftables" => DefaultMode::Nftables,
            _ => {
                let error = format!(
                    "--default-mode: `{default_mode}` is not supported; write one of: iptables, nftables\n"
                );
                return Err(clap::Error::raw(clap::error::ErrorKind::InvalidValue, error));
            }
        };
        let empty_list_hold = given.duration("empty-list-hold");
        Ok(Self {
            given,
            cleanup,
            only_ours,
            init_only,
            config_reload,
            preferences: Preferences { ipvs_fallback, default_mode, capture },
            empty_list_hold,
            local: None,
            forwards: Vec::new(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
