//! What a start of the agent would find out about its configuration and this node, without a start: for `portolan check`.
//!
//! The checks are those of a start. Only the trial of the mode differs: it runs in a network namespace of its own, which
//! ends with it. So nothing changes in the namespace of the node, whatever programs Services there. `files` looks at the files
//! that a start makes.

mod files;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use portolan_iptables::Programs;
use portolan_model::{Catalog, Family};
use portolan_node::config::{ConfigError, Configuration, FieldErrors};
use portolan_node::sysctl::Host;
use portolan_sock::namespace::in_new_network_namespace;
use serde::Serialize;

use super::checks;
use super::finding::Finding;
use super::modes::{self, Choice};
use super::node_settings;
use super::options::{Loaded, ProxyOptions};
use super::packets::Configured;
use super::settings;

/// How a check ended, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckResult {
    /// Nothing is wrong.
    Ok,
    /// The agent starts, but something will not work as one may expect.
    Warning,
    /// The agent does not start, or Services do not work.
    Failure,
}

/// What a check is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The configuration.
    Configuration,
    /// The mode, as tried on this kernel.
    Mode,
    /// The kernel, the process and the addresses of this node.
    Node,
    /// The ports of the servers, and the control socket.
    Ports,
    /// The API server and the permissions there.
    Api,
    /// What else on this node affects Services.
    Surroundings,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Item {
    /// What the check is about.
    pub part: Part,
    /// How it ended.
    pub outcome: CheckResult,
    /// What was found, in one sentence. It has the mend, unless that is apart.
    pub text: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

impl Item {
    /// Creates a result whose text has the mend.
    pub fn new(part: Part, outcome: CheckResult, text: impl Into<String>) -> Self {
        Self { part, outcome, text: text.into(), mend: None }
    }

    /// Adds what to do.
    #[must_use]
    pub fn with_mend(self, mend: impl Into<String>) -> Self {
        Self { mend: Some(mend.into()), ..self }
    }
}

/// The checks that have been made, and what later ones need.
#[derive(Debug)]
pub struct Preflight {
    /// The results in the order of a report.
    pub items: Vec<Item>,
    /// The configuration with the mode that a start would choose; `None` if it cannot be used.
    pub configured: Option<Configured>,
    families: Vec<Family>,
}

/// Checks the configuration and this node, in the network namespace of this thread. Needs root for the trial of the mode.
/// Runs programs.
pub fn examine(options: &ProxyOptions) -> Preflight {
    let mut items = Vec::new();
    let loaded = match Configured::load(options) {
        Ok(configured) => configured,
        Err(error) => {
            items.extend(wrong(&error));
            return Preflight { items, configured: None, families: Vec::new() };
        }
    };
    let notes = loaded.notes().iter();
    items.extend(notes.map(|note| Item::new(Part::Configuration, CheckResult::Warning, note.clone())));
    items.push(Item::new(Part::Configuration, CheckResult::Ok, described(loaded.loaded())));
    let mut families = settings::supported_families();
    let mut configuration = loaded.configuration().clone();
    let trial = Trial { options, families: families.clone() };
    let tried = match trial.run(&mut configuration) {
        Ok(Tried { choice, findings }) => {
            items.push(chosen(&choice));
            findings
        }
        Err(item) => {
            items.push(item);
            Vec::new()
        }
    };
    let is_clean = tried.is_empty();
    let findings = checks::before_the_start(&configuration, &mut families, |_, _| tried);
    if is_clean && items.iter().all(|item| item.part != Part::Mode || item.outcome == CheckResult::Ok) {
        let of = families.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        items.push(Item::new(
            Part::Mode,
            CheckResult::Ok,
            format!("the trial succeeded: {of} can be programmed"),
        ));
    }
    items.extend(findings.iter().map(of_finding));
    items.extend(settings_of_mode(&configuration));
    items.extend(ports(&configuration));
    items.extend(files::control_socket(&configuration.portolan));
    if !items.iter().any(|item| item.part == Part::Node) {
        items.push(Item::new(
            Part::Node,
            CheckResult::Ok,
            "capabilities, forwarding and kernel settings are right",
        ));
    }
    let former = node_settings::former();
    items.extend(files::former_values(former.folders().iter().map(PathBuf::as_path)));
    Preflight { items, configured: Some(loaded.with(configuration)), families }
}

impl Preflight {
    /// Adds the checks that need the Node object.
    pub fn with_node(&mut self, catalog: &Catalog) {
        let Some(configured) = &self.configured else { return };
        let Some(node) = catalog.node() else { return };
        let configuration = configured.configuration();
        let own: Vec<_> = node.internal_addresses.iter().chain(&node.external_addresses).copied().collect();
        let ips = settings::node_addresses(&own, configuration.bind_address);
        let port_cidrs = settings::expanded_node_ports(configuration, &ips);
        let node =
            checks::Node { primary: ips.primary, pod_cidrs: &node.pod_cidrs, port_cidrs: Some(&port_cidrs) };
        for finding in checks::of_families(configuration, &self.families, &node) {
            let item = of_finding(&finding);
            if !self.items.contains(&item) {
                self.items.push(item);
            }
        }
    }
}

/// Returns each error of a configuration.
fn wrong(error: &anyhow::Error) -> Vec<Item> {
    let failure = |text: String| Item::new(Part::Configuration, CheckResult::Failure, text);
    let fields = error.downcast_ref::<FieldErrors>().or(match error.downcast_ref::<ConfigError>() {
        Some(ConfigError::Invalid(fields)) => Some(fields),
        _ => None,
    });
    match fields {
        Some(fields) => fields.iter().map(|field| failure(field.to_string())).collect(),
        None => vec![failure(format!("{error:#}"))],
    }
}

/// Says which configuration was read, with the feature gates that are not as usual.
fn described(loaded: &Loaded) -> String {
    let from = match &loaded.file {
        Some(file) => format!("{} can be used", file.display()),
        None => "the flags can be used".to_owned(),
    };
    let gates: Vec<String> =
        loaded.configuration.feature_gates.iter().map(|(name, on)| format!("{name}={on}")).collect();
    if gates.is_empty() { from } else { format!("{from}; feature gates: {}", gates.join(", ")) }
}

fn chosen(choice: &Choice) -> Item {
    let text = format!("mode {}: {}", choice.mode.name(), choice.reason);
    match choice.fallback() {
        Some(text) => Item::new(Part::Mode, CheckResult::Warning, text),
        None => Item::new(Part::Mode, CheckResult::Ok, text),
    }
}

/// The trial of the mode in a network namespace of its own.
struct Trial<'a> {
    options: &'a ProxyOptions,
    families: Vec<Family>,
}

/// What a trial found.
struct Tried {
    choice: Choice,
    findings: Vec<Finding>,
}

impl Trial<'_> {
    /// Chooses the mode as a start does, writes it into the configuration, and tries it.
    fn run(&self, configuration: &mut Configuration) -> Result<Tried, Item> {
        // Which iptables the node uses shows in the node's own namespace only.
        let programs: Vec<Programs> =
            self.families.iter().filter_map(|&family| Programs::find(family).ok()).collect();
        // Those of the node, not of the new namespace.
        let obstacles = modes::obstacles(&self.families);
        let tried = in_new_network_namespace(|| {
            // If this fails, so does the trial, and it returns the reason.
            let _ = programs.iter().try_for_each(Programs::leave_hint);
            let choice =
                modes::settle(configuration, &self.families, self.options.preferences, None, || obstacles)?;
            Ok(Tried { choice, findings: checks::mode(configuration, &self.families) })
        });
        match tried {
            Ok(tried) => tried.map_err(|error: FieldErrors| {
                Item::new(Part::Configuration, CheckResult::Failure, error.to_string())
            }),
            Err(error) => {
                let text = format!(
                    "the mode was not tried, because a network namespace for the trial cannot be made ({error})"
                );
                Err(Item::new(Part::Mode, CheckResult::Warning, text)
                    .with_mend("run this as root on the node"))
            }
        }
    }
}

fn of_finding(finding: &Finding) -> Item {
    let part = if finding.is_of_mode() { Part::Mode } else { Part::Node };
    let outcome = if finding.is_fatal() { CheckResult::Failure } else { CheckResult::Warning };
    Item::new(part, outcome, finding.to_string())
}

/// Returns a warning for each kernel setting of the mode that cannot be written.
fn settings_of_mode(configuration: &Configuration) -> Vec<Item> {
    let ips = settings::node_addresses(&[], configuration.bind_address);
    let node = settings::Node { ips: &ips, pod_cidrs: &[], addresses: &[] };
    let wanted = modes::configured(configuration).kernel_settings(configuration, &node);
    let refused = Host::default().refusals(&wanted);
    refused.iter().map(|refused| Item::new(Part::Node, CheckResult::Warning, refused.to_string())).collect()
}

/// Checks that the addresses of the servers can be bound. A port in use is a warning: a start goes on without the server and
/// tries again.
fn ports(configuration: &Configuration) -> Vec<Item> {
    let servers = [
        ("healthzBindAddress", configuration.healthz_bind_address),
        ("metricsBindAddress", configuration.metrics_bind_address),
    ];
    let check = |(field, address): (&str, Option<SocketAddr>)| {
        let address = address?;
        Some(match TcpListener::bind(address) {
            Ok(_) => Item::new(Part::Ports, CheckResult::Ok, format!("{field} {address} is free")),
            Err(error) => {
                let text = format!("{field} {address} cannot be used: {error}");
                let mend = format!(
                    "stop the program that listens there (`ss -ltnp sport = :{}`), or set another {field}",
                    address.port()
                );
                Item::new(Part::Ports, CheckResult::Warning, text).with_mend(mend)
            }
        })
    };
    servers.into_iter().filter_map(check).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: ProxyOptions,
    }

    fn examined(flags: &[&str]) -> Preflight {
        examine(&Line::try_parse_from([&["portolan"], flags].concat()).expect("flags").options)
    }

    fn texts(preflight: &Preflight, outcome: CheckResult) -> Vec<&str> {
        let items = preflight.items.iter().filter(|item| item.outcome == outcome);
        items.map(|item| item.text.as_str()).collect()
    }

    #[test]
    fn every_wrong_field_is_a_failure_of_its_own() {
        let preflight = examined(&["--proxy-mode=fast", "--oom-score-adj=2000"]);
        let failures = texts(&preflight, CheckResult::Failure);
        assert_eq!(failures.len(), 2, "{failures:?}");
        assert!(failures[0].starts_with("--proxy-mode") || failures[1].starts_with("--proxy-mode"));
        assert!(preflight.configured.is_none());
        let failures = examined(&["--config=/nonexistent"]);
        assert!(texts(&failures, CheckResult::Failure)[0].contains("/nonexistent"));
    }

    #[test]
    fn a_port_in_use_is_a_warning() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = taken.local_addr().expect("an address");
        let configuration = Configuration {
            healthz_bind_address: Some(address),
            metrics_bind_address: None,
            ..Configuration::default()
        };
        let items = ports(&configuration);
        assert_eq!(items.len(), 1);
        assert_eq!(items[0].outcome, CheckResult::Warning, "{items:?}");
        portolan_testkit::close(&taken).expect("the end of the listener");
        assert_eq!(ports(&configuration)[0].outcome, CheckResult::Ok);
    }
}
