//! The Events of the plan.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

use super::{ServiceEntry, group::Group, slice::SliceEntry};
use crate::annotations::{CHECK, Complaint, HealthCheck, PortChoice, Probe};
use crate::object::Key;
use crate::probe::ProbeOutcome;

/// Most bytes of a note (`pkg/apis/core/validation/events.go`, `NoteLengthLimit`).
const MOST_NOTE: usize = 1024;

/// The object of an Event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Regarding {
    /// `Service` or `EndpointSlice`.
    pub kind: &'static str,
    /// Namespace and name.
    pub key: Key,
    /// UID.
    pub uid: String,
}

impl Regarding {
    /// Returns the reference as in the field `regarding` of an `events.k8s.io/v1` Event.
    pub fn reference(&self) -> Value {
        let (namespace, name) = self.key.split_once('/').unwrap_or(("", &self.key));
        let api_version = if self.kind == "Service" { "v1" } else { "discovery.k8s.io/v1" };
        json!({"apiVersion": api_version, "kind": self.kind, "namespace": namespace, "name": name, "uid": self.uid})
    }
}

/// An Event for users.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Report {
    /// The object.
    pub regarding: Regarding,
    /// True for the type `Warning`, false for `Normal`.
    pub is_warning: bool,
    /// `reason`.
    pub reason: &'static str,
    /// `note`, at most 1,024 bytes.
    pub note: String,
}

/// Returns an Event for each complaint that is not known.
pub(super) fn complaints(key: &Key, entry: &ServiceEntry, known: &[Complaint]) -> Vec<Report> {
    let new = entry.complaints.iter().filter(|complaint| !known.contains(complaint));
    new.map(|complaint| of_service(key, entry, true, "InvalidHealthCheck", complaint.to_string())).collect()
}

/// Returns the Event of an endpoint whose health changed.
pub(super) fn endpoint(
    slice: &SliceEntry,
    address: SocketAddr,
    check: &HealthCheck,
    outcome: &ProbeOutcome,
) -> Report {
    let what = match &check.probe {
        Probe::Tcp => "tcp".to_owned(),
        Probe::Http(request) => format!("{} {}", if request.tls { "https" } else { "http" }, request.path),
    };
    let (is_warning, reason, note) = match outcome {
        ProbeOutcome::Failed(failure) => (
            true,
            "EndpointUnhealthy",
            format!("endpoint {address} fails its health check ({what}): {failure}"),
        ),
        _ => (false, "EndpointHealthy", format!("endpoint {address} passes its health check ({what})")),
    };
    of_slice(slice, is_warning, reason, note)
}

/// Returns the Event of an endpoint that this node could not probe several times in a row.
pub(super) fn not_probed(slice: &SliceEntry, address: SocketAddr, error: &str) -> Report {
    let note = format!(
        "endpoint {address} cannot be probed, and its conditions stay as they are: {error}; see the limits, the routes and the security policy of the node that probes"
    );
    of_slice(slice, true, "EndpointNotProbed", note)
}

/// Returns the Event of a slice that does not have the port of the check.
pub(super) fn lacks_port(slice: &SliceEntry, port: &PortChoice) -> Report {
    let note = match port {
        PortChoice::Name(name) => format!(
            "endpoints are not checked: the slice has no TCP port with the name {name:?}; correct portolan.dev/health-check-port of the Service"
        ),
        _ => "endpoints are not checked: the slice has no TCP port; set portolan.dev/health-check-port of the Service to a number".to_owned(),
    };
    of_slice(slice, true, "HealthCheckLacksPort", note)
}

/// Returns the Event of a slice whose conditions another client changes back.
pub(super) fn overwritten(slice: &SliceEntry, interval: Duration) -> Report {
    let manager = slice.slice.metadata.other_manager.as_ref();
    let manager = manager.map(|manager| format!(" (the field manager {manager:?} wrote them last)"));
    let note = format!(
        "another client changes the conditions of the health check back{}; while that goes on, they are written again at most every {} s; let that client leave ready and serving as they are, or remove {} from the Service",
        manager.unwrap_or_default(),
        interval.as_secs(),
        CHECK.name,
    );
    of_slice(slice, true, "HealthCheckOverwritten", note)
}

/// Returns the Event of a group in which all endpoints became ready, or only the healthy ones.
pub(super) fn fail_open(key: &Key, entry: &ServiceEntry, group: &Group, is_ipv6: bool) -> Report {
    let family = if is_ipv6 { "IPv6" } else { "IPv4" };
    let (healthy, decided) = (group.counts.healthy(), group.counts.decided());
    let (is_warning, reason, effect) = if group.is_open {
        (true, "HealthCheckFailOpen", "all of them are ready (portolan.dev/health-check-fail-open)")
    } else {
        (false, "HealthCheckFailOpenEnded", "only healthy ones are ready")
    };
    let note = format!("{healthy} of {decided} {family} endpoints are healthy: {effect}");
    of_service(key, entry, is_warning, reason, note)
}

fn of_service(
    key: &Key,
    entry: &ServiceEntry,
    is_warning: bool,
    reason: &'static str,
    note: String,
) -> Report {
    let regarding = Regarding { kind: "Service", key: key.clone(), uid: entry.uid.clone() };
    Report { regarding, is_warning, reason, note: cut(note) }
}

fn of_slice(slice: &SliceEntry, is_warning: bool, reason: &'static str, note: String) -> Report {
    let uid = slice.slice.metadata.uid.clone();
    let regarding = Regarding { kind: "EndpointSlice", key: slice.key.clone(), uid };
    Report { regarding, is_warning, reason, note: cut(note) }
}

fn cut(mut note: String) -> String {
    let end = (0..=MOST_NOTE).rev().find(|end| note.is_char_boundary(*end)).unwrap_or(0);
    note.truncate(end);
    note
}
