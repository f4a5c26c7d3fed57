//! The state document, from what the agent and the engine know.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::{Request, StatusCode};
use portolan_engine::{
    Attempt, Counts, Extent, FamilySnapshot, Happening, HistoryEvent, State as SyncState, Step, Table,
};
use portolan_node::config::{Configuration, Mode};
use portolan_node::conntrack::Fill;
use portolan_node::health::Now;
use portolan_node::metrics::Resource;
use portolan_node::time::rfc3339;
use portolan_status::{self as status, AgentState, Family, Moment, Sync, What, problems};
use portolan_web::Answer;

use super::{Control, RequestPermit, SHORT_ENGINE_WAIT, routes};
use crate::agent::Agent;
use crate::agent::facts::{Facts, RefusedPorts};

/// Answers with the state document.
pub(super) async fn answer(control: Arc<Control>, request: Request<Bytes>, place: RequestPermit) -> Answer {
    let Some(facts) = control.ask(Agent::facts).await else {
        return routes::plain(StatusCode::SERVICE_UNAVAILABLE, "the agent is ending");
    };
    let lanes = match &facts.engine {
        Some(engine) => Control::ask_engine(engine, SHORT_ENGINE_WAIT, Lane::all).await,
        None => Some(Vec::new()),
    };
    routes::document(&request, place, move || document(&control, &facts, lanes)).await
}

/// Makes the document. `lanes` are `None` if the engine has not answered.
pub(super) fn document(control: &Control, facts: &Facts, lanes: Option<Vec<Lane>>) -> AgentState {
    let engine_answered = lanes.is_some();
    let lanes = match lanes {
        Some(lanes) => {
            control.remember(&lanes);
            lanes
        }
        None => control.last(),
    };
    state(control, facts, &lanes, engine_answered)
}

/// A snapshot of a family without its table, and the numbers of what is in the table. A kept table would be copied as
/// a whole by the engine's next change.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    snapshot: FamilySnapshot,
    counts: Counts,
}

impl Lane {
    fn of(mut snapshot: FamilySnapshot) -> Self {
        let counts = snapshot.table.counts();
        snapshot.table = Table::new(snapshot.table.settings().clone());
        Self { snapshot, counts }
    }

    pub(super) fn all(snapshots: Vec<FamilySnapshot>) -> Vec<Self> {
        snapshots.into_iter().map(Self::of).collect()
    }
}

fn state(control: &Control, facts: &Facts, lanes: &[Lane], engine_answered: bool) -> AgentState {
    let now = Now::read();
    let configuration = facts.configuration.effective();
    let awaited = control.health.awaited();
    let mut state = AgentState {
        version: status::VERSION,
        time: rfc3339(now.wall),
        agent: status::Agent {
            version: control.version.clone(),
            node: facts.node.clone(),
            pid: std::process::id(),
            started: start(control.started, now),
        },
        in_sync: false,
        problems: Vec::new(),
        mode: configuration.mode_or_default().name().to_owned(),
        capture: capture(&configuration),
        health: status::Health {
            healthy: control.health.is_healthy(now),
            ready: awaited.is_none(),
            node_eligible: control.health.node_is_eligible(),
            waiting_for: awaited.unwrap_or_default(),
        },
        objects: facts.objects.clone(),
        engine_answered,
        families: lanes.iter().map(|lane| family(lane, facts, now)).collect(),
        watches: Resource::ALL.into_iter().map(|resource| watch(control, resource, now)).collect(),
        conntrack: Fill::read().map(|Fill { entries, max }| status::Conntrack { entries, max }),
        relay: control.relays.read().map(|measures| status::Relay {
            connections: measures.open,
            flows: measures.flows_open,
            failing_endpoints: measures.failing,
            draining: facts.draining,
        }),
        configuration: configuration.to_v1alpha1(),
    };
    problems::judge(&mut state);
    state
}

fn capture(configuration: &Configuration) -> Option<String> {
    let is_relayed = configuration.mode_or_default() == Mode::Userspace;
    is_relayed.then(|| configuration.capture.name().to_owned())
}

fn watch(control: &Control, resource: Resource, now: Now) -> status::Watch {
    let age = control.health.watch_age(resource, now.monotonic);
    let failure = control.health.watch_failure(resource).map(|failure| status::WatchFailure {
        since: moment(failure.since.monotonic, now),
        last: moment(failure.last.monotonic, now),
        times: failure.times,
        reason: failure.reason,
    });
    status::Watch { resource: resource.name().to_owned(), age_seconds: age.map(seconds), failure }
}

fn family(lane: &Lane, facts: &Facts, now: Now) -> Family {
    let Lane { snapshot, counts } = lane;
    let (sync, since) = match snapshot.state {
        SyncState::Waiting => ("waiting", None),
        SyncState::InSync { since } => ("inSync", Some(since)),
        SyncState::Unknown { since, .. } => ("comparing", Some(since)),
    };
    let newest_first =
        |attempts: &[Attempt]| attempts.iter().rev().map(|attempt| attempted(attempt, now)).collect();
    let RefusedPorts { count, some } = facts.refused.get(snapshot.family);
    Family {
        family: snapshot.family.name().to_owned(),
        mode: snapshot.mode.to_owned(),
        place: snapshot.place.to_owned(),
        sync: sync.to_owned(),
        since: since.map(|since| moment(since, now)),
        reason: snapshot.state.reason().map(|reason| reason.name().to_owned()),
        services: counts.services,
        service_ports: counts.service_ports,
        frontends: counts.frontends,
        endpoints: counts.endpoints,
        cluster_endpoints: counts.cluster_endpoints,
        local_endpoints: counts.local_endpoints,
        ports_without_endpoints: counts.without_endpoints,
        pending: snapshot.pending,
        refused: some.iter().take(Family::MAX_REFUSED).map(refused).collect(),
        refused_count: *count,
        syncs: newest_first(&snapshot.commits),
        failures: newest_first(&snapshot.failures),
        events: snapshot.events.iter().rev().map(|event| happened(event, now)).collect(),
        totals: status::Totals {
            syncs: snapshot.totals.commits,
            failures: snapshot.totals.failures,
            changed: snapshot.totals.changed,
        },
        drift: status::Drift {
            noticed: snapshot.drift.noticed,
            repaired: snapshot.drift.repaired,
            last: snapshot.drift.last.map(|last| moment(last, now)),
            last_repaired: snapshot.drift.last_repaired.map(|last| moment(last, now)),
        },
        successor: snapshot.successor.map(str::to_owned),
        retiring: snapshot.retired.iter().map(ToString::to_string).collect(),
    }
}

fn refused(refusal: &portolan_engine::Refusal) -> status::RefusedPort {
    status::RefusedPort {
        service_port: refusal.name.to_string(),
        protocol: refusal.name.protocol.name().to_owned(),
        in_part: refusal.extent == Extent::Endpoints,
        reason: refusal.reason.to_owned(),
    }
}

fn attempted(attempt: &Attempt, now: Now) -> Sync {
    let (written, error) = match &attempt.outcome {
        Ok(written) => (*written, None),
        Err(error) => (portolan_engine::Written::default(), Some(error.clone())),
    };
    Sync {
        ended: moment(attempt.at, now),
        mode: attempt.mode.to_owned(),
        step: attempt.step.name().to_owned(),
        full: attempt.full,
        reason: attempt.cause.reason.map(|reason| reason.name().to_owned()),
        repaired: attempt.repaired,
        changed: attempt.cause.changed,
        examples: attempt.cause.first.iter().map(ToString::to_string).collect(),
        services: attempt.objects.services,
        endpoint_slices: attempt.objects.endpoint_slices,
        elements: written.elements,
        objects: written.objects,
        bytes: written.bytes,
        duration_seconds: attempt.duration.as_secs_f64(),
        kernel_seconds: written.kernel.as_secs_f64(),
        error,
    }
}

fn happened(event: &HistoryEvent, now: Now) -> status::RecordedEvent {
    let what = match &event.what {
        Happening::Compared(why) => What::Compared(why.name()),
        Happening::Repaired => What::Repaired,
        Happening::Replaced => What::Replaced(event.mode),
        Happening::Failed(Step::Collection, error) => What::CollectionFailed(error),
        Happening::Failed(_, error) => What::Failed(error),
    };
    status::RecordedEvent::new(what, moment(event.at, now), event.times)
}

/// Returns the moment of the start, with the time that the wall clock had then. Readers recognise the process by it, so it stays
/// the same when the clock is adjusted.
fn start(at: Now, now: Now) -> Moment {
    Moment { at: rfc3339(at.wall), ..moment(at.monotonic, now) }
}

fn moment(at: Instant, now: Now) -> Moment {
    let age = now.monotonic.saturating_duration_since(at);
    let at = now.wall.checked_sub(age).unwrap_or(now.wall);
    Moment { at: rfc3339(at), age_seconds: seconds(age) }
}

/// Returns a duration in seconds, with milliseconds.
fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_engine::{COMMITS_KEPT, EVENTS_KEPT, FAILURES_KEPT};
    use portolan_model::{Backend, Change, Forwarding, Protocol, ServicePortName, Settings};

    use super::super::testing::waiting;
    use super::*;
    use crate::agent::facts::REFUSED_MAX;

    fn backend(last: u8) -> Backend {
        Backend { address: [10, 0, 0, last].into(), port: 80, may_hairpin: last == 1 }
    }

    fn forwarding(cluster: &[u8], local: &[u8]) -> Forwarding {
        let list = |numbers: &[u8]| numbers.iter().map(|&number| backend(number)).collect();
        let plain = Forwarding::plain(([10, 96, 0, 1], 80).into(), Protocol::Tcp, list(cluster));
        Forwarding { local: list(local), ..plain }
    }

    /// Returns a snapshot with these Service ports: namespaces, Services and ports.
    fn snapshot(names: impl IntoIterator<Item = (String, String, String)>) -> FamilySnapshot {
        let family = portolan_model::Family::Ipv4;
        let mut table = Table::new(Settings::plain(family));
        let change = |(namespace, service, port): (String, String, String)| {
            let (namespace, service, port) = (namespace.into(), service.into(), port.into());
            let name = Arc::new(ServicePortName { namespace, service, port, protocol: Protocol::Tcp });
            Change { name, family, old: None, new: Some(Arc::new(forwarding(&[1, 2], &[2, 3]))) }
        };
        table.take(names.into_iter().map(change), []);
        waiting(table)
    }

    #[test]
    fn the_size_of_the_document_does_not_depend_on_the_number_of_services() {
        let health = Arc::new(portolan_node::health::Health::new(Duration::MAX));
        let relays = crate::modes::RelayCounters::default();
        let (control, _questions) = Control::new("v1".into(), health, relays);
        let names = (0..10_000).map(|number| ("default".into(), format!("service-{number}"), "http".into()));
        let mut snapshot = snapshot(names);
        let refused: Vec<portolan_engine::Refusal> = snapshot
            .table
            .iter()
            .map(|(name, _)| {
                portolan_engine::Refusal::whole(name.clone(), "there are too many Service ports")
            })
            .collect();
        let attempt = Attempt {
            mode: "nftables",
            step: portolan_engine::Step::Commit,
            at: Instant::now(),
            duration: Duration::from_millis(1),
            full: false,
            repaired: false,
            cause: portolan_engine::Cause {
                reason: None,
                changed: 10_000,
                first: refused.iter().take(3).map(|refusal| refusal.name.clone()).collect(),
            },
            objects: portolan_engine::ObjectChanges::default(),
            outcome: Ok(portolan_engine::Written::default()),
        };
        snapshot.commits = vec![attempt.clone(); COMMITS_KEPT];
        snapshot.failures = vec![attempt; FAILURES_KEPT];
        let event =
            HistoryEvent { what: Happening::Repaired, mode: "nftables", at: Instant::now(), times: 1 };
        snapshot.events = vec![event; EVENTS_KEPT];
        let mut facts = Facts {
            engine: None,
            configuration: Configuration::default(),
            node: "node1".into(),
            objects: status::Objects::default(),
            refused: portolan_model::catalog::PerFamily::default(),
            draining: 0,
        };
        let some = refused.iter().take(REFUSED_MAX).cloned().collect();
        facts.refused.ipv4 = RefusedPorts { count: refused.len(), some };
        let state = state(&control, &facts, &[Lane::of(snapshot)], true);
        assert_eq!((state.families[0].services, state.families[0].refused_count), (10_000, 10_000));
        assert_eq!(state.families[0].refused.len(), Family::MAX_REFUSED);
        let bytes = serde_json::to_vec(&state).expect("JSON").len();
        assert!(bytes < 96 * 1024, "{bytes} bytes");
    }

    #[test]
    fn a_service_counts_once_and_its_ports_each() {
        let names = [("a", "x", "p"), ("a", "x", "q"), ("b", "x", "p")];
        let lane = Lane::of(snapshot(names.map(|(of, name, port)| (of.into(), name.into(), port.into()))));
        let Counts { services, service_ports, endpoints, .. } = lane.counts;
        assert_eq!((services, service_ports, endpoints), (2, 3, 9));
        assert!(lane.snapshot.table.is_empty(), "the table is not kept");
    }

    #[test]
    fn the_start_stays_when_the_clock_is_adjusted() {
        let at = Now::read();
        let later = |adjusted: Duration| Now {
            monotonic: at.monotonic + Duration::from_secs(60),
            wall: at.wall + Duration::from_secs(60) + adjusted,
        };
        let moments = [Duration::ZERO, Duration::from_millis(7)].map(|adjusted| start(at, later(adjusted)));
        let wanted = Moment { at: rfc3339(at.wall), age_seconds: 60.0 };
        assert_eq!(moments, [wanted.clone(), wanted]);
    }

    #[test]
    fn a_moment_has_its_time_and_its_age() {
        let now = Now::read();
        let age = Duration::from_millis(90_250);
        let Some(at) = now.monotonic.checked_sub(age) else { return };
        let moment = moment(at, now);
        assert_eq!(moment, Moment { at: rfc3339(now.wall - age), age_seconds: 90.25 });
    }
}
