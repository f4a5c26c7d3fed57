//! `portolan explain`: reads the question, the objects and the configuration, and prints the answer of crate `explain`.

mod kernel;

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use portolan_explain::{
    Facts, Flow, Note, Outcome, Question, Report, Sender, Style, Target, answer, printable,
};
use portolan_model::catalog::PerFamily;
use portolan_proxy::packets::{self, Configured};

use self::kernel::Kernel;
use crate::objects::{Objects, node_name};

/// Exit codes besides 0, reachable. An error has 1.
pub(crate) const REFUSED: u8 = 2;
pub(crate) const DROPPED: u8 = 3;
pub(crate) const NOT_A_SERVICE: u8 = 4;
pub(crate) const NOT_AS_WANTED: u8 = 5;

/// Explains what happens to a packet: which Service port it meets, which endpoints may get it, and why.
///
/// Takes the flags of the proxy, too, so that the settings are those of an agent with these flags.
///
/// Exit codes: 0 reachable; 1 the question cannot be answered; 2 refused; 3 dropped; 4 not a Service's; 5 the kernel has
/// something else than what is wanted.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Who sends the packet: an IP address, `node`, `outside` or `pod/NAME[.NAMESPACE]`.
    from: Sender,
    /// Where it is sent to: `ADDRESS:PORT[/PROTOCOL]`, or `svc/NAME[.NAMESPACE][:PORT][/PROTOCOL]`.
    to: Target,
    /// File or folder of Services, EndpointSlices, Nodes, ServiceCIDRs and Pods in YAML or JSON; `-` is the standard input.
    /// May be repeated.
    #[arg(long, value_name = "PATH", required = true, action = clap::ArgAction::Append)]
    manifests: Vec<PathBuf>,
    /// Also read from the kernel of this node: its addresses, what is programmed for Services in any mode, by Portolan or
    /// kube-proxy's iptables and IPVS modes, firewall rules, and connections. Needs root.
    #[arg(long)]
    kernel: bool,
    /// The flow is known to conntrack; with the endpoint to which it goes, if the kernel is not read.
    #[arg(long, value_name = "ENDPOINT", num_args = 0..=1, require_equals = true)]
    #[expect(clippy::option_option, reason = "the flag, and its value")]
    established: Option<Option<SocketAddr>>,
    /// Name of the interface at which the packet arrives on this node, for detectLocalMode by interface and for firewall rules.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Form of the report.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(flatten)]
    proxy: Box<portolan_proxy::Options>,
}

/// Form of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Lines for people, in colour on a terminal without `NO_COLOR`.
    Text,
    /// One JSON object.
    Json,
    /// One YAML document.
    Yaml,
}

impl Options {
    /// Returns true if the kernel is read, which needs privileges.
    pub(crate) const fn reads_kernel(&self) -> bool {
        self.kernel
    }

    fn question(&self) -> Question {
        let flow = self.established.map_or(Flow::New, |endpoint| Flow::Established { endpoint });
        Question { from: self.from.clone(), to: self.to.clone(), flow, interface: self.interface.clone() }
    }
}

/// Answers the question and prints the report. Warnings go to the standard error, and into the notes of a report for
/// programs.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut warnings = Warnings::default();
    let mut configured = Configured::load(&options.proxy)?;
    warnings.all("configuration", configured.notes());
    let objects = Objects::read("--manifests", &options.manifests)?;
    warnings.all("object-not-usable", &objects.faults);
    let node_name = node_name(&configured, &objects)?;
    let (catalog, faults) = objects.catalog(&node_name, &configured);
    warnings.all("object-not-usable", &faults);
    if catalog.node().is_none() {
        let text = format!(
            "there is no Node `{node_name}` in the manifests, so its addresses, pod CIDRs and zone are not known; name the \
             node with --hostname-override"
        );
        warnings.add("node-not-known", &text);
    }
    let addresses = options.kernel.then(packets::interface_addresses).transpose();
    let addresses = addresses.context("--kernel: the addresses of this node cannot be listed")?;
    let (programmed, faults) =
        if options.kernel { configured.programmed() } else { (PerFamily::default(), Vec::new()) };
    warnings.all("kernel-not-read", &faults);
    if options.kernel && faults.is_empty() && programmed.ipv4.is_none() && programmed.ipv6.is_none() {
        warnings.add("nothing-programmed", "the kernel of this node has no rules for Services");
    }
    let node = configured.node_view(&catalog, addresses);
    let observed = PerFamily { ipv4: programmed.ipv4.as_ref(), ipv6: programmed.ipv6.as_ref() };
    let facts = Facts { observed, ..Facts::new(&node, &catalog) };
    let mut report = answer_from(options, &objects, facts, &mut warnings)?;
    if options.output != Output::Text {
        report.notes.extend(warnings.0);
    }
    let mut out = std::io::stdout().lock();
    out.write_all(rendered(&report, options.output)?.as_bytes()).context("cannot write the report")?;
    Ok(status(report.outcome))
}

fn answer_from(
    options: &Options,
    objects: &Objects,
    facts: Facts<'_>,
    warnings: &mut Warnings,
) -> anyhow::Result<Report> {
    let question = options.question();
    let pods = objects.pods();
    let facts =
        Facts { pods: &pods, slices: &objects.slices, node_addresses: &objects.node_addresses, ..facts };
    if !options.kernel {
        return Ok(answer(&question, &facts)?);
    }
    let kernel = Kernel::read(&question, &facts)?;
    warnings.all("kernel-not-read", &kernel.faults);
    let facts = Facts { connections: kernel.known(), rules: kernel.rules.as_ref(), ..facts };
    Ok(answer(&question, &facts)?)
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

fn rendered(report: &Report, output: Output) -> anyhow::Result<String> {
    Ok(match output {
        Output::Text => report.text(style()),
        Output::Json => serde_json::to_string_pretty(report).context("cannot write JSON")? + "\n",
        Output::Yaml => serde_saphyr::to_string(report).context("cannot write YAML")?,
    })
}

/// Returns whether to use colours: on a terminal that has them, unless `NO_COLOR` is set (<https://no-color.org>).
fn style() -> Style {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb {
        Style::Colour
    } else {
        Style::Plain
    }
}

fn status(outcome: Outcome) -> ExitCode {
    match outcome {
        Outcome::Reachable => ExitCode::SUCCESS,
        Outcome::Refused => ExitCode::from(REFUSED),
        Outcome::Dropped => ExitCode::from(DROPPED),
        Outcome::NotAService => ExitCode::from(NOT_A_SERVICE),
        Outcome::NotAsWanted => ExitCode::from(NOT_AS_WANTED),
    }
}
