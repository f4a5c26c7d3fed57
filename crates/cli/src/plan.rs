//! `portolan plan`: reads the objects, the configuration and the kernel, and prints the report of crate `plan`.
//!
//! - `replay`: the objects of a snapshot, compared with what was programmed on its node

mod replay;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use portolan_explain::NodeView;
use portolan_model::catalog::ApiServer;
use portolan_model::observed::{Observed, ObservedEndpoints, ObservedPort};
use portolan_model::table::Entry;
use portolan_model::{Catalog, Family, Protocol};
use portolan_plan::{
    Against, Comparison, FamilyPlan, Note, Present, Report, RulesPlan, SettingChange, VERSION, family,
};
use portolan_proxy::packets::{self, Configured};
use portolan_proxy::planned::{Programmed, ThisNode};
use portolan_watch::Peers;

use crate::cluster::{ALL_KINDS, Cluster, Extent};
use crate::objects::{Objects, host_name, node_name};
use crate::output::{self, Output};

/// Exit code if something would change. An error has 1.
pub(crate) const CHANGES: u8 = 2;

/// Shows what a start of the proxy would change on this node. Changes nothing.
///
/// Takes the flags of the proxy, too: the report is that of an agent with these flags. Reads the objects of the API server,
/// or of manifests. Compares with the rules that the kernel has, whether Portolan or kube-proxy wrote them, or with other
/// manifests. With a snapshot, compares with what was programmed on its node.
///
/// Exit codes: 0 nothing would change; 1 the plan cannot be made; 2 something would change.
#[derive(Debug, Args)]
pub(crate) struct PlanOptions {
    /// File or folder of Services, EndpointSlices, Nodes and ServiceCIDRs in YAML or JSON; `-` is the standard input. May be
    /// repeated. Without it, the API server is asked.
    #[arg(long, value_name = "PATH", action = clap::ArgAction::Append)]
    manifests: Vec<PathBuf>,
    /// Compare with what these objects need, in place of the kernel. May be repeated.
    #[arg(long, value_name = "PATH", action = clap::ArgAction::Append, conflicts_with_all = ["against", "rules"])]
    from: Vec<PathBuf>,
    /// Snapshot of an agent (`portolan snapshot`) in place of objects and the kernel. A flag of the proxy that is not given has
    /// the value of that agent.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["manifests", "from", "against", "rules"])]
    snapshot: Option<PathBuf>,
    /// What to compare with.
    #[arg(long, value_enum, default_value_t = With::Kernel)]
    against: With,
    /// Also show what would be written in the terms of the kernel.
    #[arg(long)]
    rules: bool,
    /// Form of the report.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(flatten)]
    proxy: Box<portolan_proxy::ProxyOptions>,
}

/// What to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum With {
    /// The kernel of this node. Needs root.
    Kernel,
    /// A kernel without rules for Services.
    Nothing,
}

impl PlanOptions {
    const fn against(&self) -> Against {
        match self.against {
            _ if self.snapshot.is_some() => Against::Snapshot,
            _ if !self.from.is_empty() => Against::Manifests,
            With::Kernel => Against::Kernel,
            With::Nothing => Against::Nothing,
        }
    }

    /// Returns true if the kernel is read, which needs privileges.
    pub(crate) fn reads_kernel(&self) -> bool {
        self.against() == Against::Kernel
    }
}

/// Prints the report.
pub(crate) fn run(options: &PlanOptions) -> anyhow::Result<ExitCode> {
    let report = report(options)?;
    output::print(&report, options.output, || report.text())?;
    Ok(if report.changes { ExitCode::from(CHANGES) } else { ExitCode::SUCCESS })
}

fn report(options: &PlanOptions) -> anyhow::Result<Report> {
    let mut notes = Notes::default();
    if let Some(file) = &options.snapshot {
        return replay::report(options, file, notes);
    }
    let configured = Configured::load(&options.proxy)?;
    notes.all("configuration", configured.notes());
    let wanted = Wanted::read(options, &configured, &mut notes)?;
    let plan = Plan { options, configured: &configured, wanted: &wanted };
    let (mut families, mut settings, mut removed) = (Vec::new(), Vec::new(), Vec::new());
    match options.against() {
        // A snapshot is replayed elsewhere.
        Against::Snapshot => {}
        Against::Manifests => families = plan.between_manifests(&mut notes)?,
        Against::Nothing => {
            for family in plan.families() {
                families.push(plan.family(family, Present::Nothing, &mut notes));
            }
        }
        Against::Kernel => {
            families = plan.with_kernel(&mut notes)?;
            settings = plan.settings(&mut notes);
            removed = plan.removed(&mut notes);
        }
    }
    let changes =
        !settings.is_empty() || !removed.is_empty() || families.iter().any(|family| !family.is_empty());
    Ok(Report {
        version: VERSION,
        node: wanted.view.name.clone(),
        mode: wanted.view.mode.clone(),
        against: options.against(),
        changes,
        families,
        settings,
        removed,
        notes: notes.0,
    })
}

/// What an agent would program.
struct Wanted {
    catalog: Catalog,
    view: NodeView,
    node: ThisNode,
}

impl Wanted {
    fn read(options: &PlanOptions, configured: &Configured, notes: &mut Notes) -> anyhow::Result<Self> {
        let (objects, sockets) = if options.manifests.is_empty() {
            of_api(configured)?
        } else {
            (Objects::read("--manifests", &options.manifests)?, BTreeSet::new())
        };
        notes.all("object-not-usable", &objects.faults);
        let name = node_name(configured, &objects)?;
        let (mut catalog, faults) = objects.catalog(&name, configured, ApiServer::default());
        notes.all("object-not-usable", &faults);
        notes.mode(configured);
        if catalog.node().is_none() {
            notes.no_node(&name);
        }
        let addresses = options.reads_kernel().then(packets::interface_addresses).transpose();
        let addresses: Option<Vec<IpAddr>> =
            addresses.context("the addresses of this node cannot be listed")?;
        if !sockets.is_empty() {
            configured.protect(&mut catalog, &sockets, addresses.as_deref().unwrap_or_default());
        }
        notes.conflicts(&catalog);
        let view = configured.node_view(&catalog, addresses);
        let node = configured.this_node(&catalog, view.addresses.clone());
        Ok(Self { catalog, view, node })
    }
}

/// Lists the objects that a node needs. Also returns the addresses of the API server.
fn of_api(configured: &Configured) -> anyhow::Result<(Objects, BTreeSet<SocketAddr>)> {
    let name = configured.node_name().map_or_else(host_name, |name| Ok(name.to_owned()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let read = runtime.block_on(async {
        let cluster = Cluster::connect(&configured.client_settings(&Peers::default())).await?;
        let objects = cluster.objects(&ALL_KINDS, Extent::Node(&name)).await?;
        Ok::<_, anyhow::Error>((objects, cluster.sockets()))
    });
    read.context("API server")
}

struct Plan<'a> {
    options: &'a PlanOptions,
    configured: &'a Configured,
    wanted: &'a Wanted,
}

impl Plan<'_> {
    fn families(&self) -> impl Iterator<Item = Family> {
        Family::BOTH.into_iter().filter(|family| self.wanted.view.families.get(*family).is_some())
    }

    /// Compares with what the kernel has of the mode, or else of the first other mode or of kube-proxy.
    fn with_kernel(&self, notes: &mut Notes) -> anyhow::Result<Vec<FamilyPlan>> {
        let (programmed, faults) = self.configured.all_programmed();
        if !faults.is_empty() {
            bail!("{}; run this as root on the node", faults.join("; "));
        }
        let mut plans = Vec::new();
        for family in self.families() {
            let found = programmed.get(family).as_slice();
            for Programmed { owner, .. } in found.iter().skip(1) {
                notes.add("other-rules", format!("the kernel also has {family} rules of {owner}"));
            }
            let Some(Programmed { owner, observed }) = found.first() else {
                plans.push(self.family(family, Present::Nothing, notes));
                continue;
            };
            notes.endpoints(observed);
            let plan = self.family(family, Present::Kernel(observed), notes);
            plans.push(FamilyPlan { present: Some(owner.clone()), ..plan });
        }
        Ok(plans)
    }

    fn between_manifests(&self, notes: &mut Notes) -> anyhow::Result<Vec<FamilyPlan>> {
        let objects = Objects::read("--from", &self.options.from)?;
        let (before, faults) =
            objects.catalog(self.wanted.catalog.node_name(), self.configured, ApiServer::default());
        for fault in objects.faults.iter().chain(&faults) {
            notes.add("object-not-usable", format!("--from: {fault}"));
        }
        let of_family = |family| {
            let table = self.programmable(&before, family);
            self.family(family, Present::Table(&table), notes)
        };
        Ok(self.families().map(of_family).collect())
    }

    fn family(&self, of: Family, present: Present<'_>, notes: &mut Notes) -> FamilyPlan {
        let Wanted { catalog, view, node } = self.wanted;
        let wanted = self.programmable(catalog, of);
        let all = catalog.forwardings(of).count();
        if wanted.len() < all {
            let text =
                format!("{of}: the {} mode does not program {} SCTP ports", view.mode, all - wanted.len());
            notes.add("sctp-not-programmed", text);
        }
        let node_ports = self.configured.node_port_reach(view, of);
        let Some(node_ports) = node_ports else { return FamilyPlan::nothing(of) };
        let plan = family(&Comparison {
            family: of,
            present,
            wanted: &wanted,
            node_ports: &node_ports,
            node_addresses: &view.addresses,
        });
        let rules = match self.options.against() {
            Against::Manifests | Against::Snapshot => None,
            against => {
                let over_kernel = against == Against::Kernel;
                match self.configured.preview(view, node, catalog, of, over_kernel) {
                    Ok(lines) => {
                        let count = lines.len();
                        let lines = if self.options.rules { lines } else { Vec::new() };
                        Some(RulesPlan { count, lines })
                    }
                    Err(error) => {
                        notes.add("rules-not-planned", format!("{of}: {error}"));
                        None
                    }
                }
            }
        };
        FamilyPlan { rules, ..plan }
    }

    /// Returns the forwarding table without what the mode does not program.
    fn programmable(&self, catalog: &Catalog, family: Family) -> Vec<Entry> {
        let view = self.wanted.view.families.get(family).as_ref();
        let refuses_sctp = view.is_some_and(|view| view.differences.refuses_sctp);
        let is_programmed =
            |(_, forwarding): &Entry| !(refuses_sctp && forwarding.protocol == Protocol::Sctp);
        catalog.forwardings(family).filter(is_programmed).collect()
    }

    fn settings(&self, notes: &mut Notes) -> Vec<SettingChange> {
        let (pending, refused) = self.configured.pending_settings(&self.wanted.node);
        notes.all("setting-not-writable", &refused);
        let change = |pending: portolan_proxy::planned::Pending| SettingChange {
            name: pending.name,
            present: pending.present,
            wanted: pending.wanted,
        };
        pending.into_iter().map(change).collect()
    }

    fn removed(&self, notes: &mut Notes) -> Vec<String> {
        let (removed, faults) = self.configured.to_be_removed();
        notes.all("leftovers-not-read", &faults);
        removed
    }
}

/// What the reader should know.
#[derive(Debug, Default)]
struct Notes(Vec<Note>);

impl Notes {
    fn add(&mut self, code: &str, text: String) {
        let note = Note { code: code.to_owned(), text };
        if !self.0.contains(&note) {
            self.0.push(note);
        }
    }

    fn all(&mut self, code: &str, texts: &[String]) {
        for text in texts {
            self.add(code, text.clone());
        }
    }

    fn no_node(&mut self, name: &str) {
        let text = format!(
            "there is no Node `{name}`, so its addresses, pod CIDRs and zone are not known; name the node with \
             --hostname-override"
        );
        self.add("node-not-known", text);
    }

    fn endpoints(&mut self, observed: &Observed) {
        let is_unknown = |port: &ObservedPort| port.endpoints == ObservedEndpoints::Unknown;
        if !observed.ports.is_empty() && observed.ports.iter().all(is_unknown) {
            let text = "the relay has the endpoints, not the kernel: compare them with `portolan status`";
            self.add("endpoints-not-held", text.to_owned());
        }
    }

    fn conflicts(&mut self, catalog: &Catalog) {
        for conflict in catalog.conflicts() {
            self.add("conflict", format!("{} {}: {}", conflict.kind, conflict.key, conflict.fault));
        }
    }

    fn mode(&mut self, configured: &Configured) {
        if !configured.names_mode() {
            let text = "the configuration names no mode: a start takes iptables, or nftables if iptables cannot be used; \
                        `portolan check` tries it";
            self.add("mode-not-named", text.to_owned());
        }
    }
}
