//! The health of this proxy, and whether its node should get traffic.
//!
//! Input: for each family, when a change was queued and when all queued changes were applied; the state of the Node
//! object; when each watch last received something (shown, but without effect on health). Output: the responses of
//! `/healthz`, `/livez` and `/readyz` ([`server`]) and of the health-check node ports ([`ServiceHealth`]). The time is
//! passed in, so that the rules are pure.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hyper::StatusCode;
use portolan_web::{self as web, Answer, Server};

pub use self::service::{ListenAddresses, ListenFailure, ServiceHealth, ServiceKey};
use crate::address::Family;
use crate::metrics::{ProxyMetrics, Resource};
use crate::time::{ZERO_TIME, rfc3339};

mod service;
#[cfg(test)]
mod tests;

/// One moment on both clocks: the monotonic one for differences, the wall clock for output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The monotonic time.
    pub monotonic: Instant,
    /// The wall-clock time.
    pub wall: SystemTime,
}

impl Now {
    /// Reads both clocks.
    pub fn read() -> Self {
        Self { monotonic: Instant::now(), wall: SystemTime::now() }
    }
}

/// The state of the Node object that affects health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// The Node has a deletion timestamp.
    pub deleting: bool,
    /// The Node has a taint with the key [`TO_BE_DELETED_TAINT`].
    pub tainted: bool,
}

/// The taint that the cluster autoscaler sets on a node that it is about to remove (KEP-3836).
pub const TO_BE_DELETED_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// The state behind all health responses. The data plane updates it, and the servers read it.
#[derive(Debug)]
pub struct Health {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    timeout: Duration,
    v4: FamilyState,
    v6: FamilyState,
    node: Option<NodeState>,
    watches: [WatchState; Resource::ALL.len()],
    /// All families have been programmed at least once.
    ready: bool,
    /// What the first complete commit waits for, as text.
    awaited: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct WatchState {
    updated: Option<Now>,
    failure: Option<WatchFailure>,
}

/// A watch whose requests to the API server have failed since it was last updated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchFailure {
    /// When the first of these requests failed.
    pub since: Now,
    /// When the last one failed.
    pub last: Now,
    /// Number of failed requests.
    pub times: u32,
    /// Why the last one failed.
    pub reason: String,
}

#[derive(Clone, Copy, Debug, Default)]
struct FamilyState {
    last_updated: Option<SystemTime>,
    oldest_pending: Option<Instant>,
    newest_pending: Option<Instant>,
}

impl Health {
    /// Creates a state without queued changes. `timeout` is how long a change may wait before the proxy counts as
    /// unhealthy: twice the sync period.
    pub fn new(timeout: Duration) -> Self {
        Self { state: Mutex::new(State { timeout, ..State::default() }) }
    }

    /// Sets the timeout, also for changes that are already waiting.
    pub fn set_timeout(&self, timeout: Duration) {
        self.lock().timeout = timeout;
    }

    /// Records that a change of this family waits to be applied.
    pub fn queued(&self, family: Family, now: Now) {
        let mut state = self.lock();
        let family = state.family(family);
        family.oldest_pending.get_or_insert(now.monotonic);
        family.newest_pending = Some(now.monotonic);
    }

    /// Records that the changes of this family that were queued before `began` are applied. Also called once when syncing
    /// starts.
    pub fn updated(&self, family: Family, began: Instant, now: Now) {
        let mut state = self.lock();
        let family = state.family(family);
        // Of the changes since then, the time of the last one is known.
        let pending = family.newest_pending.filter(|newest| *newest > began);
        *family =
            FamilyState { last_updated: Some(now.wall), oldest_pending: pending, newest_pending: pending };
    }

    /// Sets the state of this node; `None` if its Node object was never seen. For a Node object that is deleted, do not
    /// call this: the last state stays.
    pub fn node(&self, node: Option<NodeState>) {
        self.lock().node = node;
    }

    /// Records that the known objects of this resource match the API server at `now`: a complete list, an event after it,
    /// or a bookmark has arrived.
    pub fn watch_updated(&self, resource: Resource, now: Now) {
        if let Some(watch) = self.lock().watches.get_mut(resource as usize) {
            *watch = WatchState { updated: Some(now), failure: None };
        }
    }

    /// Records that a request for this resource failed and will be repeated. `times` is the number of requests in a row that
    /// failed.
    pub fn watch_failed(&self, resource: Resource, times: u32, reason: String, now: Now) {
        if let Some(watch) = self.lock().watches.get_mut(resource as usize) {
            let before = watch.failure.take().filter(|_| times > 1);
            let since = before.map_or(now, |failure| failure.since);
            watch.failure = Some(WatchFailure { since, last: now, times, reason });
        }
    }

    /// Returns the failure of the requests for this resource; `None` if it was updated since.
    pub fn watch_failure(&self, resource: Resource) -> Option<WatchFailure> {
        self.lock().watches.get(resource as usize)?.failure.clone()
    }

    /// Returns the time since the last [`Health::watch_updated`]; `None` if the first list is not complete.
    pub fn watch_age(&self, resource: Resource, now: Instant) -> Option<Duration> {
        let watch_updated = self.lock().watches.get(resource as usize)?.updated?;
        Some(now.saturating_duration_since(watch_updated.monotonic))
    }

    /// Sets what the first complete commit waits for, as text for the operator.
    pub fn awaits(&self, what: Vec<String>) {
        self.lock().awaited = what;
    }

    /// Records that every family has been programmed. This is never taken back.
    pub fn ready(&self) {
        let mut state = self.lock();
        (state.ready, state.awaited) = (true, Vec::new());
    }

    /// Returns true if no family has a change that has waited for too long, whatever the state of the node.
    pub fn is_healthy(&self, now: Now) -> bool {
        let state = self.lock();
        [state.v4, state.v6].into_iter().all(|family| family.is_healthy(state.timeout, now))
    }

    /// Returns what the first complete commit waits for. `None` once every family has been programmed.
    pub fn awaited(&self) -> Option<Vec<String>> {
        let state = self.lock();
        (!state.ready).then(|| state.awaited.clone())
    }

    /// Returns true if the node should get new traffic: its Node object was seen, is not being deleted, and has no such
    /// taint.
    pub fn node_is_eligible(&self) -> bool {
        self.lock().node.is_some_and(|node| !node.deleting && !node.tainted)
    }

    /// Returns status and JSON body of `/healthz`: 200 if the proxy is healthy and the node is eligible, else 503.
    pub fn healthz(&self, now: Now) -> (u16, String) {
        self.report(now, Some(self.node_is_eligible()))
    }

    /// Returns status and JSON body of `/livez`: 200 if the proxy is healthy, else 503.
    pub fn livez(&self, now: Now) -> (u16, String) {
        self.report(now, None)
    }

    /// Returns status and JSON body of `/readyz`: 503 with what the first complete commit waits for, and after this
    /// commit the response of [`Health::healthz`].
    pub fn readyz(&self, now: Now) -> (u16, String) {
        let Some(awaited) = self.awaited() else { return self.healthz(now) };
        let now = rfc3339(now.wall);
        let awaited = serde_json::Value::from(awaited);
        (503, format!(r#"{{"currentTime":"{now}","ready":false,"waitingFor":{awaited}}}"#))
    }

    fn report(&self, now: Now, node_eligible: Option<bool>) -> (u16, String) {
        let (timeout, families, watches) = {
            let state = self.lock();
            let watches = state.watches.each_ref().map(|watch| watch.updated);
            (state.timeout, [(Family::Ipv4, state.v4), (Family::Ipv6, state.v6)], watches)
        };
        let status = families.into_iter().filter_map(|(family, state)| {
            let healthy = state.is_healthy(timeout, now);
            state.last_updated.map(|last_updated| FamilyReport { family, last_updated, healthy })
        });
        let status: Vec<FamilyReport> = status.collect();
        let healthy = status.iter().all(|family| family.healthy);
        let good = healthy && node_eligible.unwrap_or(true);
        let newest = status.iter().map(|family| family.last_updated).max();
        let shown = if good { Some(now.wall) } else { newest };
        let mut text = body(shown, now.wall, node_eligible, healthy, &status);
        if node_eligible.is_some() {
            text.push_str(&watches_text(&watches, now));
        }
        text.push('}');
        (if good { 200 } else { 503 }, text)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FamilyState {
    fn is_healthy(self, timeout: Duration, now: Now) -> bool {
        let late = |since| now.monotonic.saturating_duration_since(since) >= timeout;
        self.last_updated.is_none() || !self.oldest_pending.is_some_and(late)
    }
}

impl State {
    fn family(&mut self, family: Family) -> &mut FamilyState {
        match family {
            Family::Ipv4 => &mut self.v4,
            Family::Ipv6 => &mut self.v6,
        }
    }
}

/// Creates the server of `/healthz`, `/livez` and `/readyz`.
pub fn server(
    address: SocketAddr,
    hard_fail: bool,
    health: Arc<Health>,
    metrics: Arc<ProxyMetrics>,
) -> Server {
    let handler =
        move |request: &hyper::Request<_>| health_answer(&health, &metrics, request.uri().path()).into();
    Server::new("health", "healthzBindAddress", address, hard_fail, Arc::new(handler))
}

fn health_answer(health: &Health, metrics: &ProxyMetrics, path: &str) -> Answer {
    match path {
        "/healthz" => {
            let (status, body) = health.healthz(Now::read());
            metrics.healthz_answered(status);
            json(status, body)
        }
        "/livez" => {
            let (status, body) = health.livez(Now::read());
            metrics.livez_answered(status);
            json(status, body)
        }
        "/readyz" => {
            let (status, body) = health.readyz(Now::read());
            json(status, body)
        }
        _ => web::not_found(),
    }
}

fn json(status: u16, body: String) -> Answer {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    web::answer(status, web::JSON, body)
}

struct FamilyReport {
    family: Family,
    last_updated: SystemTime,
    healthy: bool,
}

/// Returns the watches that have received something, with the seconds since then. kube-proxy does not have this key, so
/// it comes last.
fn watches_text(watches: &[Option<Now>], now: Now) -> String {
    let mut text = String::new();
    for (resource, watch_updated) in Resource::ALL.iter().zip(watches) {
        let Some(watch_updated) = watch_updated else { continue };
        text.push_str(if text.is_empty() { r#","watches":{"# } else { "," });
        let age = now.monotonic.saturating_duration_since(watch_updated.monotonic).as_secs();
        let (name, watch_updated) = (resource.name(), rfc3339(watch_updated.wall));
        let _ = write!(text, r#""{name}":{{"lastHeard":"{watch_updated}","ageSeconds":{age}}}"#);
    }
    if !text.is_empty() {
        text.push('}');
    }
    text
}

/// Returns compact JSON in kube-proxy's order of keys, without the closing brace. Scripts compare it as text.
fn body(
    last_updated: Option<SystemTime>,
    now: SystemTime,
    node_eligible: Option<bool>,
    healthy: bool,
    status: &[FamilyReport],
) -> String {
    let last_updated = last_updated.map_or_else(|| ZERO_TIME.to_owned(), rfc3339);
    let mut text = format!(r#"{{"lastUpdated":"{last_updated}","currentTime":"{}","#, rfc3339(now));
    if let Some(eligible) = node_eligible {
        let _ = write!(text, r#""nodeEligible":{eligible},"#);
    }
    let _ = write!(text, r#""healthy":{healthy}"#);
    for (index, FamilyReport { family, last_updated, healthy }) in status.iter().enumerate() {
        text.push_str(if index == 0 { r#","status":{"# } else { "," });
        let last_updated = rfc3339(*last_updated);
        let _ = write!(text, r#""{family}":{{"lastUpdated":"{last_updated}","healthy":{healthy}}}"#);
    }
    text.push_str(if status.is_empty() { "" } else { "}" });
    text
}
