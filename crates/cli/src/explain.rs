//! `portolan explain`: reads the question, and prints the answer of the running proxy, or that of crate `explain` from objects
//! and a configuration.
//!
//! - `origin`: where what is wanted comes from
//! - `cluster`, `recorded`: the objects of an API server, and of a snapshot

mod cluster;
mod origin;
mod recorded;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use portolan_explain::{Facts, NodeView, Note, Pod, Report, Source, answer, printable};
use portolan_firewall::Ruleset;
use portolan_model::Catalog;
use portolan_model::catalog::{ApiServer, PerFamily};
use portolan_model::observed::Observed;
use portolan_proxy::packets::{self, Asked, Configured, Kernel, NoAnswer, Output, print};

use self::origin::{Origin, WAYS};
use self::recorded::Replay;
use crate::objects::{Objects, host_name};

/// The flags that matter if the running proxy answers: they say where it listens.
const FLAGS_OF_AGENT: [&str; 3] = ["config", "control-socket", "hostname-override"];

/// Explains what happens to a packet: which Service port it meets, which endpoints may get it, and why.
///
/// Asks the running proxy of this node, which also reads the kernel. With --manifests or --kubeconfig, takes objects from files
/// or from a cluster. Then the flags of the proxy count, too, so that the settings are those of an agent with these flags.
///
/// Exit codes: 0 reachable; 1 the question cannot be answered; 2 refused; 3 dropped; 4 not a Service's; 5 the kernel has
/// something else than what is wanted.
#[derive(Debug, Args)]
pub(crate) struct ExplainOptions {
    #[command(flatten)]
    asked: Asked,
    /// File or folder of Services, EndpointSlices, Nodes, ServiceCIDRs and Pods in YAML or JSON; `-` is the standard input.
    /// May be repeated.
    #[arg(long, value_name = "PATH", action = clap::ArgAction::Append)]
    manifests: Vec<PathBuf>,
    /// Snapshot of an agent (`portolan snapshot`) in place of objects, flags of the proxy and the kernel.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["manifests", "kernel", "node", "context"])]
    snapshot: Option<PathBuf>,
    /// Name of the node on which the packet is handled.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Another context of the kubeconfig than the current one, to read the objects of a cluster.
    #[arg(long, value_name = "NAME", conflicts_with = "manifests")]
    context: Option<String>,
    /// With objects, also read from the kernel of this node: its addresses, what is programmed for Services in any mode, by
    /// Portolan or kube-proxy, firewall rules, and connections. Needs root.
    #[arg(long)]
    kernel: bool,
    #[command(flatten)]
    proxy: Box<portolan_proxy::ProxyOptions>,
    /// True if kubectl called the program. The objects are those of a cluster then, unless files are named.
    #[arg(skip)]
    is_plugin: bool,
}

impl ExplainOptions {
    /// Returns true if the kernel is read, which needs privileges.
    pub(crate) const fn reads_kernel(&self) -> bool {
        self.kernel
    }

    /// Returns the options for a call by kubectl.
    pub(crate) fn of_plugin(self) -> Self {
        Self { is_plugin: true, ..self }
    }

    /// Returns the node that the command line or the configuration names.
    fn node_name<'a>(&'a self, configured: &'a Configured) -> Option<&'a str> {
        self.node.as_deref().or_else(|| configured.node_name())
    }
}

/// Answers the question and prints the report. Warnings go to the standard error, and into the notes of a report for
/// programs.
pub(crate) fn run(options: &ExplainOptions) -> anyhow::Result<ExitCode> {
    let mut warnings = Warnings::default();
    let mut report = match &options.snapshot {
        Some(file) => {
            let Replay { objects, world, notes } = recorded::replay(file, &options.proxy, &mut warnings)?;
            let mut report = world.answer(options, &objects, &mut warnings)?;
            report.notes.extend(notes);
            report
        }
        None => ask(options, &mut warnings)?,
    };
    if options.asked.output != Output::Text {
        report.notes.extend(warnings.0);
    }
    print(&report, options.asked.output)
}

/// Asks where the command line says.
fn ask(options: &ExplainOptions, warnings: &mut Warnings) -> anyhow::Result<Report> {
    let mut proxy = (*options.proxy).clone();
    let origin = Origin::of(options, &mut proxy)?;
    let configured = Configured::load(&proxy)?;
    warnings.all("configuration", configured.notes());
    match origin {
        Origin::Agent => ask_agent(options, &proxy, &configured, warnings),
        Origin::Manifests => {
            let objects = Objects::read("--manifests", &options.manifests)?;
            explain(options, configured, &objects, Source::Manifests, warnings)
        }
        Origin::ApiServer(settings) => {
            let objects = cluster::read(&settings, &options.asked.from)?;
            explain(options, configured, &objects, Source::ApiServer, warnings)
        }
    }
}

/// Asks the running proxy of this node.
fn ask_agent(
    options: &ExplainOptions,
    proxy: &portolan_proxy::ProxyOptions,
    configured: &Configured,
    warnings: &mut Warnings,
) -> anyhow::Result<Report> {
    let without_effect: Vec<String> =
        proxy.given().filter(|name| !FLAGS_OF_AGENT.contains(name)).map(|name| format!("--{name}")).collect();
    if !without_effect.is_empty() {
        let flags = without_effect.join(", ");
        let text = format!("the running proxy answers with its own configuration; without effect: {flags}");
        warnings.add("configuration", &text);
    }
    let Some(socket) = configured.control_socket() else {
        anyhow::bail!("the configuration has no control socket (portolan.controlSocket)\n{WAYS}");
    };
    let report = packets::ask(socket, &options.asked.question()).map_err(|error| match error {
        NoAnswer::NotAsked(_) => anyhow::anyhow!("{error}\n{WAYS}"),
        error => error.into(),
    })?;
    if let Some(node) = options.node_name(configured)
        && node != report.node
    {
        anyhow::bail!(
            "the running proxy is that of node {}; ask the one of node {node}, or take its objects with --manifests or \
             --kubeconfig",
            report.node
        );
    }
    Ok(report)
}

/// Explains what objects require.
fn explain(
    options: &ExplainOptions,
    mut configured: Configured,
    objects: &Objects,
    source: Source,
    warnings: &mut Warnings,
) -> anyhow::Result<Report> {
    warnings.all("object-not-usable", &objects.faults);
    let pods = objects.pods();
    let node_name = node_name(options, &configured, objects, &pods, source)?;
    let (catalog, faults) = objects.catalog(&node_name, &configured, ApiServer::default());
    warnings.all("object-not-usable", &faults);
    if catalog.node().is_none() {
        let text = format!(
            "there is no Node `{node_name}` among the objects, so its addresses, pod CIDRs and zone are not known; name the \
             node with --node"
        );
        warnings.add("node-not-known", &text);
    }
    let addresses = options.kernel.then(packets::interface_addresses).transpose();
    let addresses = addresses.context("--kernel: the addresses of this node cannot be listed")?;
    let (programmed, faults) =
        if options.kernel { configured.programmed() } else { (PerFamily::default(), Vec::new()) };
    warnings.all("kernel-not-read", &faults);
    let has_nothing = |read: &Option<Observed>| read.as_ref().is_none_or(|read| read.ports.is_empty());
    if options.kernel && faults.is_empty() && has_nothing(&programmed.ipv4) && has_nothing(&programmed.ipv6) {
        warnings.add("nothing-programmed", "the kernel of this node has no rules for Services");
    }
    let node = configured.node_view(&catalog, addresses);
    World { source, catalog, node, programmed, rules: None }.answer(options, objects, warnings)
}

/// What a question is about, besides the objects.
struct World {
    source: Source,
    catalog: Catalog,
    node: NodeView,
    programmed: PerFamily<Option<Observed>>,
    /// Firewall rules of other programs, if they are not to be read from the kernel of this node.
    rules: Option<Ruleset>,
}

impl World {
    fn answer(
        &self,
        options: &ExplainOptions,
        objects: &Objects,
        warnings: &mut Warnings,
    ) -> anyhow::Result<Report> {
        let Self { source, catalog, node, programmed, rules } = self;
        let pods = objects.pods();
        let facts = Facts {
            source: *source,
            pods: &pods,
            slices: &objects.slices,
            node_addresses: &objects.node_addresses(),
            observed: PerFamily { ipv4: programmed.ipv4.as_ref(), ipv6: programmed.ipv6.as_ref() },
            rules: rules.as_ref(),
            ..Facts::new(node, catalog)
        };
        let question = options.asked.question();
        if !options.kernel {
            return Ok(answer(&question, &facts)?);
        }
        let kernel = Kernel::read(&question, &facts)?;
        for note in kernel.notes() {
            warnings.add(&note.code, &note.text);
        }
        Ok(answer(&question, &kernel.added_to(facts))?)
    }
}

/// What the reader should know of the input, each printed once as it is found.
#[derive(Debug, Default)]
struct Warnings(Vec<Note>);

impl Warnings {
    fn add(&mut self, code: &str, text: &str) {
        eprintln!("Warning: {}", printable(text));
        self.0.push(Note { code: code.to_owned(), text: text.to_owned() });
    }

    fn all(&mut self, code: &str, texts: &[String]) {
        for text in texts {
            self.add(code, text);
        }
    }
}

/// Returns the name of the node whose packets are explained: that of the command line or the configuration, or the only
/// Node. For manifests it is else this host's, and for a cluster that of the client.
fn node_name(
    options: &ExplainOptions,
    configured: &Configured,
    objects: &Objects,
    pods: &[Pod],
    source: Source,
) -> anyhow::Result<String> {
    if let Some(name) = options.node_name(configured) {
        let is_known = objects.nodes.is_empty() || objects.nodes.iter().any(|node| node.name == name);
        anyhow::ensure!(source == Source::Manifests || is_known, "the cluster has no Node `{name}`");
        return Ok(name.to_owned());
    }
    if source == Source::ApiServer
        && let Some(name) = objects.node_of(&options.asked.from, pods)?
    {
        return Ok(name);
    }
    if let [only] = objects.nodes.as_slice() {
        return Ok(only.name.clone());
    }
    anyhow::ensure!(
        source == Source::Manifests,
        "which node handles the packet is not known: name it with --node NODE"
    );
    host_name()
}
