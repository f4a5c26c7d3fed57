//! The answer about one packet.
//!
//! A question comes in the body. What is wanted is the engine's table and the choices of the agent's Catalog. What is
//! programmed is read from the kernel by the reader of the mode that runs, on a thread for blocking work. So are
//! connections of the flow and rules of other programs.
//!
//! Nothing stops while the kernel is read: what changes meanwhile can look like a difference. So a difference counts only
//! if a second look finds one, too.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use hyper::{Request, StatusCode};
use portolan_engine::{Extent, FamilySnapshot, State, Table};
use portolan_explain::{
    Ends, Facts, FamilyView, Note, Outcome, Question, Report, Services, Source, Unanswerable,
    answer as explain, ends,
};
use portolan_iptables::Variant;
use portolan_model::catalog::{ExplainedPort, LeftOut, ObjectFault, PerFamily};
use portolan_model::observed::Observed;
use portolan_model::table::Entry;
use portolan_model::{Family, Protocol, ServicePortName, Settings};
use portolan_node::config::Configuration;
use portolan_relay::Handle;
use portolan_sock::SocketError;
use portolan_web::Answer;

use super::{Control, ENGINE_WAIT, RequestPermit, routes};
use crate::agent::Agent;
use crate::agent::facts::OfPackets;
use crate::modes::{self, Known};
use crate::packets::{Kernel, ThisNode, interface_addresses, node_view, nothing};

/// How often a difference is looked at before it counts.
const LOOKS: u32 = 2;

/// Answers a question.
pub(super) async fn answer(control: Arc<Control>, request: Request<Bytes>, place: RequestPermit) -> Answer {
    let question: Question = match serde_json::from_slice(request.body()) {
        Ok(question) => question,
        Err(error) => {
            return routes::plain(StatusCode::BAD_REQUEST, &format!("the body is no question: {error}"));
        }
    };
    let Ok(turn) = Arc::clone(&control.reading).acquire_owned().await else {
        return routes::plain(StatusCode::SERVICE_UNAVAILABLE, "the agent is ending");
    };
    // The thread that reads has them: its work goes on if the client hangs up.
    let mut held = (place, turn);
    let mut look = 1;
    loop {
        let prepared = match prepare(&control).await {
            Ok(prepared) => prepared,
            Err(why) => return routes::plain(StatusCode::SERVICE_UNAVAILABLE, why),
        };
        let (control, question, headers) = (control.clone(), question.clone(), request.headers().clone());
        let is_last = look >= LOOKS;
        let looking = crate::blocking::run(move || {
            let report = prepared.report(&control, &question);
            // All rules of Services were in memory.
            portolan_sock::memory::trim();
            let counts = |report: &Report| is_last || report.outcome != Outcome::NotAsWanted;
            let answer = match report {
                Ok(report) if counts(&report) => Some(routes::json(&headers, &report)),
                Ok(_) => None,
                Err(error) => Some(error.answer()),
            };
            (answer, held)
        });
        match looking.await {
            Ok((Some(answer), _)) => return answer,
            Ok((None, returned)) => held = returned,
            Err(error) => return routes::failed(&error),
        }
        look += 1;
    }
}

/// Asks the agent and the engine, in this order: the engine then has the changes that the agent has passed on.
async fn prepare(control: &Arc<Control>) -> Result<Prepared, &'static str> {
    let facts = control.ask(Agent::of_packets).await.ok_or("the agent is ending")?;
    let facts = facts.ok_or("the Services are not known completely yet; ask again")?;
    let lanes = Control::ask_engine(&facts.engine, ENGINE_WAIT, |lanes| lanes)
        .await
        .ok_or("a commit takes long; ask again")?;
    Ok(Prepared { facts, lanes })
}

/// What the agent and the engine know at one moment.
struct Prepared {
    facts: OfPackets,
    lanes: Vec<FamilySnapshot>,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Unanswerable(#[from] Unanswerable),
    #[error("the addresses of this node cannot be listed: {0}")]
    Addresses(#[from] SocketError),
}

impl Failure {
    fn answer(&self) -> Answer {
        let status = match self {
            Self::Unanswerable(_) => StatusCode::BAD_REQUEST,
            Self::Addresses(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        routes::plain(status, &self.to_string())
    }
}

impl Prepared {
    /// Reads the kernel and makes the report. Blocks.
    fn report(self, control: &Arc<Control>, question: &Question) -> Result<Report, Failure> {
        let Self { facts: OfPackets { configuration, node, own_addresses, pod_cidrs, relay, .. }, lanes } =
            self;
        let addresses = interface_addresses()?;
        let this = ThisNode { name: node, own: own_addresses, pod_cidrs, addresses };
        let mut node = node_view(&configuration, &[], this.clone(), |_| Vec::new());
        let mut active = PerFamily::<Option<Active>>::default();
        let (mut tables, mut notes) = (PerFamily::<Vec<Entry>>::default(), PerFamily::<Vec<Note>>::default());
        let mut health_check_ports = PerFamily::<Vec<u16>>::default();
        for lane in lanes {
            *notes.get_mut(lane.family) = state_notes(&lane);
            let of_lane = Active::of(&lane, &configuration);
            *node.families.get_mut(lane.family) = of_lane.view(&lane, this.clone());
            *active.get_mut(lane.family) = Some(of_lane);
            *tables.get_mut(lane.family) = entries(&lane.table);
            *health_check_ports.get_mut(lane.family) = lane.table.health_check_ports().collect();
            // The engine's next change would copy a table that is kept.
        }
        let services = OfAgent { control: Arc::clone(control), tables, health_check_ports };
        let facts = Facts { source: Source::Agent, ..Facts::new(&node, &services) };
        let Ends { destination, .. } = ends(question, &facts)?;
        let family = Family::of(destination.ip());
        let mut notes = std::mem::take(notes.get_mut(family));
        let mut observed = PerFamily::default();
        if let (Some(active), Some(view)) = (active.get(family), node.families.get(family)) {
            match active.read(&view.settings, relay) {
                Ok(read) => *observed.get_mut(family) = Some(read.unwrap_or_else(|| nothing(family))),
                Err(error) => {
                    notes.push(unread(&format!("cannot read the {family} rules of Services: {error}")));
                }
            }
        }
        let kernel = Kernel::read(question, &facts)?;
        notes.extend_from_slice(kernel.notes());
        let observed = PerFamily { ipv4: observed.ipv4.as_ref(), ipv6: observed.ipv6.as_ref() };
        let facts = kernel.added_to(Facts { observed, ..facts });
        let mut report = explain(question, &facts)?;
        notes.extend(services.refusal_note(&report, family));
        report.notes.extend(notes);
        Ok(report)
    }
}

/// The active data plane of a family. It decides, also while another mode is to replace it. Families are replaced one by one,
/// so the other family can have another mode.
pub(super) struct Active {
    /// The configuration, with the mode of the data plane.
    configuration: Configuration,
    /// The iptables that has its rules, if it uses iptables.
    variant: Option<Variant>,
}

impl Active {
    fn of(lane: &FamilySnapshot, configuration: &Configuration) -> Self {
        Self::new(lane.mode, lane.iptables, configuration)
    }

    /// Creates it from the mode and the place of the chains of iptables that a data plane names.
    pub(super) fn new(mode: &str, iptables: Option<&str>, configuration: &Configuration) -> Self {
        let mode = modes::named(mode).map(modes::ModeDriver::mode).or(configuration.mode);
        let variant = iptables.and_then(Variant::at);
        Self { configuration: Configuration { mode, ..configuration.clone() }, variant }
    }

    /// Returns what decides about packets of the family.
    fn view(&self, lane: &FamilySnapshot, this: ThisNode) -> Option<FamilyView> {
        let mut node = node_view(&self.configuration, &[lane.family], this, |_| Vec::new());
        let view = node.families.get_mut(lane.family).take()?;
        Some(FamilyView { settings: lane.table.settings().clone(), ..view })
    }

    /// Reads what the kernel has of a family. Blocks. `None` if it has nothing of the mode.
    pub(super) fn read(
        &self,
        settings: &Settings,
        relay: Option<Handle>,
    ) -> Result<Option<Observed>, portolan_engine::Error> {
        let known = self.known(settings, relay);
        modes::configured(&self.configuration).read(settings.family, Some(&known))
    }

    /// Returns what is not counted of Services, and why. `None` if connections are counted.
    pub(super) fn not_counted(&self, settings: &Settings) -> Option<modes::NotCounted> {
        modes::configured(&self.configuration).not_counted(settings)
    }

    fn known(&self, settings: &Settings, relay: Option<Handle>) -> Known {
        Known {
            node_port_addresses: settings.node_port_addresses.clone(),
            ipvs_exclude: self.configuration.ipvs.exclude_cidrs.clone(),
            relay,
            variant: self.variant,
        }
    }
}

fn entries(table: &Table) -> Vec<Entry> {
    table.iter().map(|(name, forwarding)| (Arc::clone(name), forwarding)).collect()
}

fn note(code: &str, text: impl Into<String>) -> Note {
    Note { code: code.to_owned(), text: text.into() }
}

fn unread(text: &str) -> Note {
    note("kernel-not-read", text)
}

/// Returns why the kernel may have something else than what is wanted.
fn state_notes(lane: &FamilySnapshot) -> Vec<Note> {
    let FamilySnapshot { family, mode, state, pending, successor, .. } = lane;
    let mut notes = Vec::new();
    match state {
        State::InSync { .. } if *pending > 0 => {
            let text = format!("{pending} Service ports have changes that wait for the next commit");
            notes.push(note("changes-pending", text));
        }
        State::InSync { .. } => {}
        State::Waiting => {
            let text = format!("{family} has not been programmed yet: the first commit has not succeeded");
            notes.push(note("not-in-sync", text));
        }
        State::Unknown { .. } => {
            let text = format!("{family} is not known to be in sync: the next commit compares everything");
            notes.push(note("not-in-sync", text));
        }
    }
    if let Some(successor) = successor {
        let text = format!("the {successor} mode is to replace the {mode} mode, which this answer is about");
        notes.push(note("mode-changes", text));
    }
    notes
}

/// The Services of the running agent: the tables of the engine, and the agent's Catalog, which is asked on its own thread.
struct OfAgent {
    control: Arc<Control>,
    tables: PerFamily<Vec<Entry>>,
    health_check_ports: PerFamily<Vec<u16>>,
}

impl std::fmt::Debug for OfAgent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OfAgent")
    }
}

impl OfAgent {
    /// Returns a note if the Service port that decides could not be programmed.
    fn refusal_note(&self, report: &Report, family: Family) -> Option<Note> {
        let decided = report.wanted.decided_by.as_ref()?;
        let is_it = |name: &ServicePortName| {
            (&*name.namespace, &*name.service, &*name.port)
                == (decided.namespace.as_str(), decided.service.as_str(), decided.port.as_str())
                && name.protocol.name() == report.to.protocol
        };
        let (name, _) = self.tables.get(family).iter().find(|(name, _)| is_it(name))?;
        let asked = Arc::clone(name);
        let refusal = self.control.ask_and_wait(move |agent| agent.refusal_of(&asked, family))??;
        let text = match refusal.extent {
            Extent::Whole => format!("{name} could not be programmed: {}", refusal.reason),
            Extent::Endpoints => format!("not every endpoint of {name} is used: {}", refusal.reason),
        };
        Some(note("not-programmed", text))
    }
}

impl Services for OfAgent {
    fn table(&self, family: Family) -> Vec<Entry> {
        self.tables.get(family).clone()
    }

    fn health_check_ports(&self, family: Family) -> Vec<u16> {
        self.health_check_ports.get(family).clone()
    }

    fn explain(&self, name: &ServicePortName, family: Family) -> Option<ExplainedPort> {
        let name = name.clone();
        self.control.ask_and_wait(move |agent| agent.explain(&name, family))?
    }

    fn left_out_at(&self, destination: SocketAddr, protocol: Protocol) -> Vec<LeftOut> {
        let left_out = self.control.ask_and_wait(move |agent| agent.left_out_at(destination, protocol));
        left_out.unwrap_or_default()
    }

    fn conflicts_of(&self, namespace: Option<&str>, service: &str) -> Vec<ObjectFault> {
        let (namespace, service) = (namespace.map(str::to_owned), service.to_owned());
        let conflicts =
            self.control.ask_and_wait(move |agent| agent.conflicts_of(namespace.as_deref(), &service));
        conflicts.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use portolan_node::config::Mode;

    use super::super::testing::waiting;
    use super::*;

    #[test]
    fn each_family_has_its_own_mode_and_iptables() {
        let configuration = Configuration { mode: Some(Mode::Nftables), ..Configuration::default() };
        let active = |family, mode, place, iptables| {
            let lane =
                FamilySnapshot { mode, place, iptables, ..waiting(Table::new(Settings::plain(family))) };
            let this =
                ThisNode { name: "n1".into(), own: Vec::new(), pod_cidrs: Vec::new(), addresses: Vec::new() };
            let active = Active::of(&lane, &configuration);
            let view = active.view(&lane, this).expect("a family that is served");
            (view.mode, active.known(&view.settings, None).variant)
        };
        let legacy = Some(Variant::Legacy.place());
        let ipvs = active(Family::Ipv4, "ipvs", "ipvs", legacy);
        assert_eq!(ipvs, ("ipvs".to_owned(), Some(Variant::Legacy)));
        let nftables = active(Family::Ipv6, "nftables", "nftables", None);
        assert_eq!(nftables, ("nftables".to_owned(), None));
    }
}
