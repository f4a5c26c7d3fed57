//! Makes a report: the oracle's verdict, and what else was read.

use std::net::SocketAddr;

use portolan_model::catalog::{ExplainedPort, ObjectFault};
use portolan_model::oracle::{FlowState, Oracle, Translation};
use portolan_model::selection::Choice;
use portolan_model::table::Entry;
use portolan_model::verdict::{self, Decision, EndpointList, Reason, Verdict};
use portolan_model::{Backend, Frontend, ServicePortName};

use crate::facts::{Connection, Facts, Pod};
use crate::nearest::nearest;
use crate::obstacles::{By, Firewall, Foreign, Stop, firewall, names};
use crate::programmed::programmed;
use crate::question::{Flow, Question, Target};
use crate::report::{
    Affinity, ConnectionReport, Connections, DecidedBy, Destination, EndpointReport, Fate, Filtered,
    FrontendKind, Masquerade, MasqueradeUse, Note, Outcome, Programmed, Report, Stage, Step, VERSION, Wanted,
};
use crate::resolve::{Asked, Unanswerable, pod_at, resolve};
use crate::reverse_path::reverse_path;
use crate::routing::routing;

/// Most connections that a report lists.
const MOST_CONNECTIONS: usize = 20;

/// Answers a question.
///
/// The cost is that of compiling the whole table of a family.
///
/// # Errors
/// The question names something that is not known or ambiguous, or the state of the flow is not known.
pub fn answer(question: &Question, facts: &Facts<'_>) -> Result<Report, Unanswerable> {
    let mut asked = resolve(question, facts)?;
    let mut table = facts.services.table(asked.family);
    // Of several Service ports that resemble the destination, the same one is named each time.
    table.sort_unstable_by(|(first, _), (second, _)| first.cmp(second));
    let oracle = Oracle {
        settings: &asked.view.settings,
        local_addresses: &facts.node.addresses,
        table: &table,
        differences: &asked.view.differences,
        health_check_ports: &facts.services.health_check_ports(asked.family),
    };
    let of_new = oracle.verdict(&asked.packet(FlowState::New));
    let connections: Option<Vec<&Connection>> =
        facts.connections.map(|known| known.list.iter().filter(|one| is_of_flow(one, &asked)).collect());
    let is_partial = facts.connections.is_some_and(|known| known.partial);
    // It may be one of the connections that could not be read.
    let known = connections.as_deref().filter(|found| !(found.is_empty() && is_partial));
    let mut notes = std::mem::take(&mut asked.notes);
    let flow = flow_state(question, &asked, &of_new.fate, known, &mut notes)?;
    asked.established = flow != FlowState::New;
    let verdict = if flow == FlowState::New { of_new.clone() } else { oracle.verdict(&asked.packet(flow)) };
    let explained =
        verdict.decided_by.as_ref().and_then(|decision| facts.services.explain(&decision.name, asked.family));
    let observed = facts.observed.get(asked.family);
    let programmed =
        observed.map(|observed| programmed(&asked, facts, &table, of_new.decided_by.as_ref(), observed));
    let firewall = facts.rules.map(|rules| firewall(&asked, facts, &verdict.fate, rules, &mut notes));
    let reverse_path = reverse_path(&asked, facts, &verdict.fate, explained.as_ref());
    add_notes(question, &asked, facts, &verdict, explained.as_ref(), &mut notes);
    let fate = verdict.fate.clone();
    let routing = routing(&asked, facts, &fate);
    let has_rules = firewall.is_some();
    let Firewall { obstacles, policies } = firewall.unwrap_or_default();
    let foreign = Foreign {
        rules: &obstacles,
        policies: &policies,
        filters: &reverse_path,
        routing: &routing,
        needs_tracking: asked.view.needs_tracking(),
    };
    let outcome = outcome(&fate, programmed.as_ref(), foreign);
    let wanted = wanted(&asked, facts, &table, verdict, explained);
    Ok(Report {
        version: VERSION,
        question: question.clone(),
        node: facts.node.name.clone(),
        mode: asked.view.mode.clone(),
        source: facts.source,
        to: Destination {
            socket: asked.destination,
            protocol: asked.protocol.name().to_owned(),
            family: asked.family.name().to_owned(),
        },
        outcome,
        summary: summary(outcome, &fate, foreign),
        wanted,
        programmed,
        connections: connections.map(|found| report_connections(&found, is_partial, &of_new.fate)),
        firewall: has_rules.then_some(obstacles),
        reverse_path,
        routing,
        notes,
        from: asked.client,
    })
}

/// Returns true for connections of the client to the destination. If the question names no client, those of all clients
/// count.
fn is_of_flow(connection: &Connection, asked: &Asked<'_>) -> bool {
    connection.protocol == asked.protocol
        && connection.destination == asked.destination
        && (asked.client.example || connection.source.ip() == asked.client.address)
}

/// Returns the state of the flow for the oracle.
fn flow_state(
    question: &Question,
    asked: &Asked<'_>,
    of_new: &verdict::Fate,
    connections: Option<&[&Connection]>,
    notes: &mut Vec<Note>,
) -> Result<FlowState, Unanswerable> {
    let Flow::Established { endpoint } = question.flow else { return Ok(FlowState::New) };
    if let Some(endpoint) = endpoint {
        let masqueraded = match of_new {
            verdict::Fate::Backends { set, masqueraded, .. } => set
                .iter()
                .zip(masqueraded)
                .any(|(backend, masqueraded)| backend.socket() == endpoint && *masqueraded),
            _ => false,
        };
        return Ok(FlowState::Established(Some(Translation { endpoint, masqueraded })));
    }
    // The relay's connection is the translation, and conntrack does not have it.
    let known = connections.filter(|_| !asked.view.differences.hides_clients);
    let Some(found) = known.ok_or(Unanswerable::FlowNotKnown)?.first() else {
        let text = "conntrack has no entry of this flow, so the packet counts as the first one of a flow";
        notes.push(Note::new("no-connection", text));
        return Ok(FlowState::New);
    };
    Ok(FlowState::Established(translation(found)))
}

fn translation(connection: &Connection) -> Option<Translation> {
    let endpoint = connection.reply_source;
    (endpoint != connection.destination)
        .then_some(Translation { endpoint, masqueraded: is_masqueraded(connection) })
}

fn is_masqueraded(connection: &Connection) -> bool {
    connection.reply_destination.ip() != connection.source.ip()
}

fn report_connections(found: &[&Connection], partial: bool, of_new: &verdict::Fate) -> Connections {
    let may_get = |endpoint: SocketAddr| match of_new {
        verdict::Fate::Backends { set, .. } => set.iter().any(|backend| backend.socket() == endpoint),
        _ => false,
    };
    let report = |connection: &&Connection| {
        let endpoint = translation(connection).map(|translation| translation.endpoint);
        ConnectionReport {
            source: connection.source,
            endpoint,
            masqueraded: is_masqueraded(connection),
            stale: endpoint.is_some_and(|endpoint| !may_get(endpoint)),
            replied: connection.replied,
            timeout: connection.timeout,
        }
    };
    Connections {
        count: found.len(),
        partial,
        some: found.iter().take(MOST_CONNECTIONS).map(report).collect(),
    }
}

fn wanted(
    asked: &Asked<'_>,
    facts: &Facts<'_>,
    table: &[Entry],
    mut verdict: Verdict,
    explained: Option<ExplainedPort>,
) -> Wanted {
    let is_stray = verdict.decided_by.is_none() && !is_established(&verdict);
    let nearest = if is_stray { nearest(asked, facts, table) } else { Vec::new() };
    let (mut endpoints, mut source_ranges) = (Vec::new(), Vec::new());
    if let Some(mut explained) = explained {
        for (key, slice) in facts.slices {
            if *key.namespace == *explained.name.namespace {
                explained.name_nodes(&key.name, slice);
            }
        }
        if let Some(list) = verdict.endpoints {
            endpoints = report_endpoints(&explained, list, &verdict.fate, facts);
        }
        if let Some(Decision { frontend: Frontend::LoadBalancerIp(..), .. }) = verdict.decided_by {
            source_ranges = explained.forwarding.source_ranges.iter().map(ToString::to_string).collect();
        }
        verdict = verdict.with_endpoints(&explained.selection);
    }
    verdict = verdict.with_left_out(facts.services.left_out_at(asked.destination, asked.protocol));
    let affinity = match verdict.fate {
        verdict::Fate::Backends { affinity, .. } => affinity.map(|seconds| Affinity { seconds }),
        _ => None,
    };
    let is_step = |reason: &&Reason| !matches!(reason, Reason::Endpoint { .. });
    Wanted {
        fate: match verdict.fate {
            verdict::Fate::Backends { .. } => Fate::Delivered,
            verdict::Fate::Reject => Fate::Rejected,
            verdict::Fate::Drop => Fate::Dropped,
            verdict::Fate::NotOurs => Fate::NotAffected,
        },
        steps: verdict.reasons.iter().filter(is_step).map(step).collect(),
        masquerade: verdict.reasons.iter().filter_map(masquerade).next_back(),
        decided_by: verdict.decided_by.as_ref().map(decided_by),
        nearest,
        endpoints,
        affinity,
        source_ranges,
    }
}

fn is_established(verdict: &Verdict) -> bool {
    let is_it =
        |reason: &Reason| matches!(reason, Reason::Established { .. } | Reason::EstablishedNotTranslated);
    verdict.reasons.iter().any(is_it)
}

fn report_endpoints(
    explained: &ExplainedPort,
    list: EndpointList,
    fate: &verdict::Fate,
    facts: &Facts<'_>,
) -> Vec<EndpointReport> {
    let masqueraded = |backend: &Backend| match fate {
        verdict::Fate::Backends { set, masqueraded, .. } => {
            let mut found =
                set.iter().zip(masqueraded).filter(|(known, _)| known.socket() == backend.socket());
            found.next().map(|(_, masqueraded)| *masqueraded)
        }
        _ => None,
    };
    let report = |explained: &portolan_model::selection::Explained<portolan_model::catalog::SliceOf>| {
        let backend = &explained.endpoint.backend;
        let choice: Choice = match list {
            EndpointList::Cluster => explained.cluster,
            EndpointList::Local => explained.local,
        };
        let pod = pod_at(facts.pods, backend.address);
        EndpointReport {
            endpoint: backend.socket(),
            used: choice.is_used(),
            code: choice.code().to_owned(),
            text: choice.to_string(),
            masqueraded: masqueraded(backend).filter(|_| choice.is_used()),
            slice: explained.from.slice.to_string(),
            pod: pod.map(Pod::full_name),
            node: explained.from.node.as_deref().map(str::to_owned),
            local: explained.endpoint.local,
        }
    };
    explained.selection.endpoints.iter().map(report).collect()
}

fn decided_by(decision: &Decision) -> DecidedBy {
    let ServicePortName { namespace, service, port, .. } = &*decision.name;
    DecidedBy {
        namespace: namespace.to_string(),
        service: service.to_string(),
        port: port.to_string(),
        frontend: match decision.frontend {
            Frontend::ClusterIp(..) => FrontendKind::ClusterIp,
            Frontend::ExternalIp(..) => FrontendKind::ExternalIp,
            Frontend::LoadBalancerIp(..) => FrontendKind::LoadBalancerIp,
            Frontend::NodePort(_) => FrontendKind::NodePort,
        },
    }
}

fn step(reason: &Reason) -> Step {
    Step { stage: stage(reason), code: reason.code().to_owned(), text: reason.to_string() }
}

const fn stage(reason: &Reason) -> Stage {
    match reason {
        Reason::OtherFamily { .. }
        | Reason::Established { .. }
        | Reason::EstablishedNotTranslated
        | Reason::Matched { .. }
        | Reason::OtherPort { .. }
        | Reason::UnusedAddress { .. }
        | Reason::LeftOut(_)
        | Reason::NoFrontend { .. }
        | Reason::NodePortNotAccepted { .. }
        | Reason::NodePortStopped
        | Reason::LeftToNode { .. }
        | Reason::StraysIgnored
        | Reason::RefusedAtServiceAddress => Stage::Frontend,
        Reason::SourceInRange { .. }
        | Reason::SourceIsLoadBalancerIp { .. }
        | Reason::SourceOutsideRanges { .. }
        | Reason::SourceRangesUnreadable
        | Reason::SourceRangesNotChecked => Stage::SourceRanges,
        Reason::ClusterPolicy(_)
        | Reason::LocalPolicy(_)
        | Reason::ShortCutForPods
        | Reason::ShortCutForNode
        | Reason::LocalPolicyForAll
        | Reason::Hints { .. }
        | Reason::Endpoint { .. } => Stage::Endpoints,
        Reason::SctpNotCarried
        | Reason::NoEndpoints
        | Reason::EndpointsElsewhere(_)
        | Reason::OwnTrafficLeaves
        | Reason::Balanced { .. } => Stage::Delivery,
        Reason::SessionAffinity { .. } => Stage::Affinity,
        Reason::MasqueradeAll
        | Reason::MasqueradeFromOutside
        | Reason::MasqueradeExternal
        | Reason::MasqueradeOwnTraffic
        | Reason::MasqueradeByRelay
        | Reason::MasqueradeHairpin { .. }
        | Reason::MasqueradeHairpinElsewhere { .. }
        | Reason::SourceKeptOnNode { .. }
        | Reason::SourceKeptByRelay { .. }
        | Reason::SourceKept(_) => Stage::Masquerading,
    }
}

fn masquerade(reason: &Reason) -> Option<Masquerade> {
    let applies = match reason {
        Reason::MasqueradeHairpin { .. } | Reason::MasqueradeHairpinElsewhere { .. } => {
            MasqueradeUse::Hairpin
        }
        Reason::SourceKept(_) => MasqueradeUse::Never,
        Reason::SourceKeptOnNode { .. } | Reason::SourceKeptByRelay { .. } => return None,
        other if stage(other) == Stage::Masquerading => MasqueradeUse::Always,
        _ => return None,
    };
    Some(Masquerade { applies, code: reason.code().to_owned() })
}

fn outcome(fate: &verdict::Fate, programmed: Option<&Programmed>, foreign: Foreign<'_>) -> Outcome {
    if programmed.is_some_and(|programmed| !programmed.as_wanted) {
        return Outcome::NotAsWanted;
    }
    match fate {
        verdict::Fate::Reject => Outcome::Refused,
        verdict::Fate::Drop => Outcome::Dropped,
        verdict::Fate::NotOurs => Outcome::NotAService,
        verdict::Fate::Backends { .. } => match foreign.stops(fate) {
            None => Outcome::Reachable,
            Some(Stop::Refused(_)) => Outcome::Refused,
            Some(Stop::Dropped(_)) => Outcome::Dropped,
            Some(Stop::Taken) => Outcome::NotAService,
        },
    }
}

fn summary(outcome: Outcome, fate: &verdict::Fate, foreign: Foreign<'_>) -> String {
    let stop = if matches!(fate, verdict::Fate::Backends { .. }) { foreign.stops(fate) } else { None };
    match outcome {
        Outcome::NotAsWanted => "the kernel has something else than what is wanted".to_owned(),
        Outcome::Reachable => {
            let rest = unless(foreign);
            match fate {
                verdict::Fate::Backends { set, .. } if set.len() != 1 => {
                    format!("one of {} endpoints gets the packet{rest}", set.len())
                }
                verdict::Fate::Backends { set, .. } => {
                    let endpoint = set.first().map(Backend::socket);
                    let endpoint = endpoint.map_or_else(String::new, |endpoint| endpoint.to_string());
                    format!("{endpoint} gets the packet{rest}")
                }
                _ => String::new(),
            }
        }
        Outcome::Refused | Outcome::Dropped | Outcome::NotAService => match stop {
            Some(Stop::Taken) => "a rule of another program takes the packet before Services do".to_owned(),
            Some(Stop::Dropped(by) | Stop::Refused(by)) => match by {
                By::Rule => "a rule of another program stops the packet".to_owned(),
                By::Filter => "a reverse-path filter of this node drops the packet".to_owned(),
                By::Routing => "this node does not send the packet to its endpoint".to_owned(),
            },
            None if outcome == Outcome::Refused => "the packet is rejected with an answer".to_owned(),
            None if outcome == Outcome::Dropped => "the packet is dropped without answer".to_owned(),
            None => "Services do not affect the packet".to_owned(),
        },
    }
}

/// Returns the condition under which an endpoint gets the packet and its answer comes back.
fn unless(foreign: Foreign<'_>) -> String {
    let Foreign { rules, policies, filters, routing, .. } = foreign;
    let drops = |what| filters.iter().any(|one| one.drops == what);
    let rest = if !rules.is_empty() {
        ", unless a rule of another program stops or redirects it"
    } else if !policies.is_empty() {
        return format!(", unless a network policy of {} stops it", names(policies));
    } else if drops(Filtered::Packet) {
        ", unless a reverse-path filter of this node drops it"
    } else if !routing.is_empty() {
        ", unless it goes to one to which this node does not send it"
    } else if drops(Filtered::Answer) {
        ", and its answer comes back unless a reverse-path filter of this node drops it"
    } else {
        ""
    };
    rest.to_owned()
}

/// Adds what explains the verdict, but is no reason of it.
fn add_notes(
    question: &Question,
    asked: &Asked<'_>,
    facts: &Facts<'_>,
    verdict: &Verdict,
    explained: Option<&ExplainedPort>,
    notes: &mut Vec<Note>,
) {
    if let Some(explained) = explained {
        let ExplainedPort { name, forwarding, selection } = explained;
        if selection.endpoints.is_empty() {
            let text = format!(
                "no EndpointSlice lists an endpoint of {name}: compare the Service's selector with the labels of its pods, and \
                 the names of its ports with those of the slices"
            );
            notes.push(Note::new("no-endpoints-listed", text));
        }
        let is_guarded = !forwarding.source_ranges.is_empty()
            && matches!(verdict.decided_by, Some(Decision { frontend: Frontend::LoadBalancerIp(..), .. }));
        if is_guarded && asked.client.example {
            let text = format!(
                "the Service has loadBalancerSourceRanges, and {} is only an example: name the client's address",
                asked.client.address
            );
            notes.push(Note::new("client-is-example", text));
        }
    }
    for conflict in conflicts(question, facts, verdict.decided_by.as_ref()) {
        notes.push(Note::new("frontend-in-use", format!("Service {}: {}", conflict.key, conflict.fault)));
    }
}

/// Returns the conflicts of the Service that decides, and of those that the question names.
fn conflicts(question: &Question, facts: &Facts<'_>, decided_by: Option<&Decision>) -> Vec<ObjectFault> {
    let mut found = match &question.to {
        Target::Service { name, namespace, .. } => facts.services.conflicts_of(namespace.as_deref(), name),
        Target::Socket { .. } => Vec::new(),
    };
    if let Some(Decision { name, .. }) = decided_by {
        let of_decided = facts.services.conflicts_of(Some(&name.namespace), &name.service);
        let is_new = |conflict: &ObjectFault| !found.contains(conflict);
        let of_decided: Vec<ObjectFault> = of_decided.into_iter().filter(is_new).collect();
        found.extend(of_decided);
    }
    found
}
