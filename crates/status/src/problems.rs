//! What is wrong, derived from the other parts of a state document.

use crate::format::{age, one_line, percent};
use crate::{AgentState, Family, Problem};

/// The first complete state is not known, or not programmed.
pub const NOT_READY: &str = "notReady";
/// The rules of a family have to be compared with the kernel.
pub const NOT_IN_SYNC: &str = "notInSync";
/// A commit takes so long that the engine does not answer.
pub const ENGINE_BUSY: &str = "engineBusy";
/// A change waits for too long.
pub const UNHEALTHY: &str = "unhealthy";
/// The node should get no new traffic.
pub const NODE_NOT_ELIGIBLE: &str = "nodeNotEligible";
/// Service ports are not programmed, or not with all endpoints.
pub const REFUSED: &str = "servicePortsRefused";
/// Other programs change the rules.
pub const DRIFT: &str = "drift";
/// Requests to the API server fail.
pub const WATCH_FAILS: &str = "watchFails";
/// A watch has received nothing for a long time.
pub const WATCH_SILENT: &str = "watchSilent";
/// The table of tracked connections is almost full.
pub const CONNTRACK_FULL: &str = "conntrackFull";

/// All codes.
pub const ALL: [&str; 10] = [
    ENGINE_BUSY,
    NOT_READY,
    NOT_IN_SYNC,
    UNHEALTHY,
    REFUSED,
    CONNTRACK_FULL,
    WATCH_FAILS,
    WATCH_SILENT,
    DRIFT,
    NODE_NOT_ELIGIBLE,
];

/// Part of the table of tracked connections, in percent, from which on it counts as almost full.
const ALMOST_FULL: u64 = 90;
/// Seconds after which a watch counts as silent. An API server sends a bookmark about every minute.
const SILENT: f64 = 15.0 * 60.0;
/// Number of failed requests of a watch from which on it is a problem. One fails at each restart of the API server.
const FAILS: u32 = 2;
/// Seconds after the last failed request from which on a watch counts as open again. An absent server is asked more often.
const FAILURE_IS_RECENT: f64 = 60.0;
/// Seconds for which drift is a problem after it was repaired.
const DRIFT_IS_RECENT: f64 = 10.0 * 60.0;

/// Fills in `in_sync` and `problems` from the other fields.
pub fn judge(state: &mut AgentState) {
    state.in_sync = state.engine_answered
        && state.health.ready
        && !state.families.is_empty()
        && state.families.iter().all(Family::is_in_sync);
    state.problems = all(state);
}

/// Returns what is wrong, the most important first.
fn all(state: &AgentState) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut add = |code: &str, text: String| found.push(Problem { code: code.to_owned(), text });
    if !state.engine_answered {
        add(
            ENGINE_BUSY,
            "a commit is under way and takes long; the families are as they were before it".into(),
        );
    }
    if !state.health.ready {
        let awaited = state.health.waiting_for.join(", ");
        let awaited = if awaited.is_empty() { "the first commit" } else { &awaited };
        add(
            NOT_READY,
            format!("nothing has been programmed completely since the start; waiting for {awaited}"),
        );
    }
    for family in state.families.iter().filter(|family| !family.is_in_sync()) {
        add(NOT_IN_SYNC, not_in_sync(family));
    }
    if !state.health.healthy {
        add(UNHEALTHY, "a change has waited for longer than twice the sync period".into());
    }
    for family in state.families.iter().filter(|family| family.refused_count > 0) {
        add(REFUSED, refused(family));
    }
    if let Some(conntrack) = &state.conntrack
        && percent(conntrack.entries, conntrack.max) >= ALMOST_FULL
    {
        let (entries, max) = (conntrack.entries, conntrack.max);
        add(
            CONNTRACK_FULL,
            format!(
                "{entries} of {max} connections are tracked; new ones are dropped at the limit: raise conntrack.min or \
             conntrack.maxPerCore"
            ),
        );
    }
    if let Some(text) = watches_fail(state) {
        add(WATCH_FAILS, text);
    }
    for watch in &state.watches {
        if let Some(silence) = watch.age_seconds.filter(|silence| *silence > SILENT) {
            let text = format!("the watch of {} has received nothing for {}", watch.resource, age(silence));
            add(WATCH_SILENT, text);
        }
    }
    for family in &state.families {
        // Other programs may write to watched chains all the time without a difference to the rules.
        let last = family.drift.last_repaired.as_ref();
        if let Some(last) = last.filter(|last| last.age_seconds < DRIFT_IS_RECENT) {
            let (name, times) = (&family.family, family.drift.repaired);
            add(
                DRIFT,
                format!(
                    "{name}: another program changes the rules; repaired {times} times, last {} ago",
                    age(last.age_seconds)
                ),
            );
        }
    }
    if state.health.ready && !state.health.node_eligible {
        let text = "load balancers send no new traffic: the Node object is missing, tainted or being deleted";
        add(NODE_NOT_ELIGIBLE, text.into());
    }
    found
}

fn not_in_sync(family: &Family) -> String {
    let name = &family.family;
    let since =
        family.since.as_ref().map(|since| format!(" for {}", age(since.age_seconds))).unwrap_or_default();
    let reason = match family.reason.as_deref() {
        Some("failure") => "a commit failed",
        Some("drift") => "another program changed the rules",
        Some("settings") => "there are new settings",
        Some("node") => "the node has changed, such as its addresses",
        Some("periodic") => "it is time for the periodic comparison",
        Some("verification") => "everything is verified for the Node's readiness",
        _ => "the first commit is due",
    };
    let error = family.failures.first().filter(|_| family.reason.as_deref() == Some("failure"));
    let error = error.and_then(|failure| failure.error.as_deref());
    let error = error.map(|error| format!(": {}", one_line(error))).unwrap_or_default();
    format!("{name}: not in sync with the kernel{since}: {reason}{error}")
}

/// Returns true if the API server may have changes that this agent does not know.
pub(crate) fn is_cut_off(state: &AgentState) -> bool {
    state.problems.iter().any(|problem| [WATCH_FAILS, WATCH_SILENT].contains(&problem.code.as_str()))
}

fn watches_fail(state: &AgentState) -> Option<String> {
    let failures = || {
        let watches = state.watches.iter();
        let failing = watches.filter_map(|watch| Some((watch, watch.failure.as_ref()?)));
        failing.filter(|(_, failure)| failure.times >= FAILS && failure.last.age_seconds < FAILURE_IS_RECENT)
    };
    let (_, longest) =
        failures().max_by(|(_, a), (_, b)| a.since.age_seconds.total_cmp(&b.since.age_seconds))?;
    let resources: Vec<&str> = failures().map(|(watch, _)| watch.resource.as_str()).collect();
    Some(format!(
        "requests to the API server for {} have failed for {} ({} times): {}; changes since then are not known",
        resources.join(", "),
        age(longest.since.age_seconds),
        longest.times,
        one_line(&longest.reason)
    ))
}

fn refused(family: &Family) -> String {
    let (name, count) = (&family.family, family.refused_count);
    let first = family.refused.first();
    let first = first.map(|first| format!(", such as {}: {}", first.service_port, first.reason));
    let ports = if count == 1 { "Service port is" } else { "Service ports are" };
    format!("{name}: {count} {ports} not programmed, or not with all endpoints{}", first.unwrap_or_default())
}
