//! What the history says of objects, changes and commits. Names, numbers and addresses go in; no other text of an object
//! does, since it could be a secret.
//!
//! An entry of an object names what the Catalog keeps of it. So it has neither labels nor annotations.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use portolan_engine::Report;
use portolan_model::catalog::{Applied, Catalog, KeptEndpoint, KeptService, KeptSlice};
use portolan_model::object::{Kind, ObjectKey, Service};
use portolan_model::{Backend, Change, Event, ExternalPolicy, Forwarding, InternalPolicy};
use portolan_node::config::Configuration;
use portolan_recorder::{Change as Recorded, Commit, Entry, Note, ObjectEvent, Size, Verb};

/// How many Service ports of a commit are named.
const NAMES: usize = 4;
/// Bytes after which a text names no more endpoints. A record has room for one more.
const TEXT: usize = 900;

/// Returns the bytes that the history may take.
pub(super) fn limit(configuration: &Configuration) -> usize {
    usize::try_from(configuration.portolan.recorder_bytes).unwrap_or_default()
}

/// Returns the time for a record.
pub(super) fn moment(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

pub(super) fn note(about: &str, text: impl Into<String>) -> Entry {
    Entry::Note(Note { about: about.to_owned(), text: text.into() })
}

/// Which object an event is about. Read before the Catalog takes the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    kind: Kind,
    key: ObjectKey,
    resource_version: Box<str>,
    verb: Verb,
}

impl Seen {
    /// `None` for an event that is not about one object.
    pub(super) fn of(event: &Event) -> Option<Self> {
        let (kind, key, version) = match event {
            Event::Service(object) => (Kind::Service, &object.key, Some(&object.resource_version)),
            Event::EndpointSlice(object) => {
                (Kind::EndpointSlice, &object.key, Some(&object.resource_version))
            }
            Event::Node(object) => (Kind::Node, &object.key, Some(&object.resource_version)),
            Event::ServiceCidr(object) => (Kind::ServiceCidr, &object.key, Some(&object.resource_version)),
            Event::ServiceDeleted(key) => (Kind::Service, key, None),
            Event::EndpointSliceDeleted(key) => (Kind::EndpointSlice, key, None),
            Event::NodeDeleted(key) => (Kind::Node, key, None),
            Event::ServiceCidrDeleted(key) => (Kind::ServiceCidr, key, None),
            Event::ListStart(_) | Event::ListEnd(_) | Event::ServiceCidrsUnavailable => return None,
        };
        let verb = if version.is_some() { Verb::Applied } else { Verb::Deleted };
        Some(Self { kind, key: key.clone(), resource_version: version.cloned().unwrap_or_default(), verb })
    }

    /// Returns the kind of the object.
    pub(super) const fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the entry, after the Catalog has applied the event.
    pub(super) fn entry(self, applied: &Applied, catalog: &Catalog) -> Entry {
        let Self { kind, key, resource_version, verb } = self;
        let of_it = applied.faults.iter().filter(|fault| fault.kind == kind && fault.key == key);
        let is_kept = applied.changed && verb == Verb::Applied;
        Entry::Object(ObjectEvent {
            verb,
            kind: kind.name().to_owned(),
            faults: of_it.map(|fault| fault.fault.field.to_string()).take(NAMES).collect(),
            kept: if is_kept { kept(kind, &key, catalog) } else { String::new() },
            namespace: key.namespace.into(),
            name: key.name.into(),
            resource_version: resource_version.into(),
            changed: applied.changed,
        })
    }
}

/// The lists that are under way: an object of a list that is as before is not recorded by itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Lists(BTreeMap<Kind, Listed>);

#[derive(Debug, Clone, Copy, Default)]
struct Listed {
    objects: u64,
    changed: u64,
}

impl Lists {
    /// Notes the start or end of a list. Returns what is to be recorded at its end.
    pub(super) fn follow(&mut self, event: &Event) -> Option<Entry> {
        match event {
            Event::ListStart(kind) => {
                self.0.insert(*kind, Listed::default());
                None
            }
            Event::ListEnd(kind) => {
                let Listed { objects, changed } = self.0.remove(kind)?;
                Some(note(
                    "list",
                    format!("{} objects, {objects} listed, {changed} of them changed", kind.name()),
                ))
            }
            _ => None,
        }
    }

    /// Counts an object. Returns true if it is to be recorded.
    pub(super) fn records(&mut self, kind: Kind, changed: bool) -> bool {
        let Some(listed) = self.0.get_mut(&kind) else { return true };
        listed.objects = listed.objects.saturating_add(1);
        listed.changed = listed.changed.saturating_add(changed.into());
        changed
    }
}

/// Returns what the Catalog keeps of an object, in brief.
fn kept(kind: Kind, key: &ObjectKey, catalog: &Catalog) -> String {
    let text = match kind {
        Kind::Service => catalog.kept_service(key).map(|kept| service(&kept)),
        Kind::EndpointSlice => catalog.kept_slice(key).map(|kept| slice(&kept)),
        Kind::Node => catalog.node().map(|node| {
            let addresses = node.internal_addresses.iter().chain(&node.external_addresses);
            format!("addresses {}; pod CIDRs {}", list(addresses), list(&node.pod_cidrs))
        }),
        Kind::ServiceCidr => {
            let cidrs = catalog.kept_service_cidrs().find(|(known, _)| *known == key);
            cidrs.map(|(_, cidrs)| format!("CIDRs {}", list(cidrs)))
        }
    };
    text.unwrap_or_default()
}

fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(" ")
}

fn service(kept: &KeptService<'_>) -> String {
    let Service { ports, affinity, internal_policy, external_policy, .. } = kept.service;
    let ips = kept.service.cluster_ipv4.map(|ip| ip.to_string()).into_iter();
    let ips: Vec<String> = ips.chain(kept.service.cluster_ipv6.map(|ip| ip.to_string())).collect();
    let mut text = format!("cluster IPs {}; ports", list(ips));
    for port in ports.iter() {
        let _ = write!(text, " {}={}/{}", port.name, port.port, port.protocol.name());
        if let Some(node_port) = port.node_port {
            let _ = write!(text, "@{node_port}");
        }
    }
    for (what, addresses) in [
        ("external IPs", kept.service.external_ips()),
        ("load-balancer IPs", kept.service.load_balancer_ips()),
    ] {
        if !addresses.is_empty() {
            let _ = write!(text, "; {what} {}", list(addresses));
        }
    }
    if !kept.service.source_ranges().is_empty() {
        let _ = write!(text, "; source ranges {}", list(kept.service.source_ranges()));
    }
    if let Some(seconds) = affinity {
        let _ = write!(text, "; session affinity {seconds} s");
    }
    if *internal_policy == InternalPolicy::Local {
        text.push_str("; internal traffic policy Local");
    }
    if *external_policy == ExternalPolicy::Local {
        text.push_str("; external traffic policy Local");
    }
    text
}

fn slice(kept: &KeptSlice<'_>) -> String {
    let mut text = format!("of {}; {}; ports", kept.service, kept.family);
    for port in kept.ports {
        let _ = write!(text, " {}={}/{}", port.name, port.port, port.protocol.name());
    }
    let _ = write!(text, "; {} endpoints", kept.endpoints.len());
    push_some(&mut text, kept.endpoints.iter().map(Described));
    text
}

/// An endpoint and its conditions.
struct Described<'k>(&'k KeptEndpoint);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KeptEndpoint { endpoint, .. } = self.0;
        let flags = [
            (" not-ready", !endpoint.ready),
            (" not-serving", !endpoint.ready && !endpoint.serving),
            (" terminating", endpoint.terminating),
            (" local", endpoint.local),
        ];
        write!(f, "{}", endpoint.backend.address)?;
        flags.iter().filter(|(_, is_set)| *is_set).try_for_each(|(flag, _)| f.write_str(flag))
    }
}

/// Appends items while there is room, and the number of the others.
fn push_some<T: fmt::Display>(text: &mut String, items: impl Iterator<Item = T>) {
    let mut others = 0_usize;
    let mut separator = ": ";
    for item in items {
        let before = text.len();
        let _ = write!(text, "{separator}{item}");
        if text.len().saturating_sub(separator.len()) > TEXT {
            text.truncate(before);
            others = others.saturating_add(1);
            continue;
        }
        separator = ", ";
    }
    if others > 0 {
        let _ = write!(text, " and {others} more");
    }
}

/// Returns the entry of a changed Service port.
pub(super) fn of_change(change: &Change) -> Entry {
    let Change { name, family, old, new } = change;
    let size = |forwarding: &Forwarding| Size {
        frontends: forwarding.frontends.len() as u64,
        cluster: forwarding.cluster.len() as u64,
        local: forwarding.local.len() as u64,
    };
    Entry::Change(Recorded {
        family: family.name().to_owned(),
        service_port: name.to_string(),
        protocol: name.protocol.name().to_owned(),
        before: old.as_deref().map(size),
        after: new.as_deref().map(size),
        difference: difference(old.as_deref(), new.as_deref()),
    })
}

fn difference(old: Option<&Forwarding>, new: Option<&Forwarding>) -> String {
    let mut text = String::new();
    let (before, after) =
        (old.map_or(&[][..], |old| &*old.frontends), new.map_or(&[][..], |new| &*new.frontends));
    let gained = after.iter().filter(|frontend| !before.contains(frontend));
    let lost = before.iter().filter(|frontend| !after.contains(frontend));
    let signed =
        gained.map(|frontend| format!("+{frontend}")).chain(lost.map(|frontend| format!("-{frontend}")));
    let mut parts: Vec<String> = signed.collect();
    if let (Some(old), Some(new)) = (old, new) {
        parts.extend(fields(old, new));
    }
    for (what, of) in [("", endpoints as fn(&Forwarding) -> &[Backend]), ("local ", local)] {
        let (before, after) = (old.map_or(&[][..], of), new.map_or(&[][..], of));
        parts.extend(missing(after, before).map(|backend| format!("+{what}{}", backend.socket())));
        parts.extend(missing(before, after).map(|backend| format!("-{what}{}", backend.socket())));
    }
    push_some(&mut text, parts.into_iter());
    text.strip_prefix(": ").map(str::to_owned).unwrap_or(text)
}

const fn endpoints(forwarding: &Forwarding) -> &[Backend] {
    &forwarding.cluster
}

const fn local(forwarding: &Forwarding) -> &[Backend] {
    &forwarding.local
}

/// Returns the backends of a sorted list that another sorted list lacks.
fn missing<'a>(list: &'a [Backend], other: &'a [Backend]) -> impl Iterator<Item = &'a Backend> {
    list.iter().filter(|backend| other.binary_search(backend).is_err())
}

/// Returns the names of the other fields that differ.
fn fields(old: &Forwarding, new: &Forwarding) -> impl Iterator<Item = String> {
    [
        ("internal traffic policy", old.internal_policy != new.internal_policy),
        ("external traffic policy", old.external_policy != new.external_policy),
        ("session affinity", old.affinity != new.affinity),
        ("source ranges", old.source_ranges != new.source_ranges),
        ("IPVS scheduler", old.ipvs_scheduler != new.ipvs_scheduler),
        ("client address", old.keep_client_address != new.keep_client_address),
        ("endpoints on any node", old.has_endpoints != new.has_endpoints),
    ]
    .into_iter()
    .filter(|(_, differs)| *differs)
    .map(|(field, _)| format!("another {field}"))
}

/// Returns the entry of a commit.
pub(super) fn of_report(report: &Report) -> Entry {
    let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    let mut commit = Commit {
        family: report.family.name().to_owned(),
        mode: report.mode.to_owned(),
        step: report.step.name().to_owned(),
        reason: report.cause.reason.map(|reason| reason.name().to_owned()),
        full: report.full,
        repaired: report.repaired,
        verified: report.verified,
        changed: report.cause.changed as u64,
        service_ports: report.cause.first.iter().take(NAMES).map(ToString::to_string).collect(),
        duration_us: micros(report.duration),
        ..Commit::default()
    };
    match &report.outcome {
        Ok(written) => {
            commit.refused = written.refused.len() as u64;
            commit.elements = written.elements as u64;
            commit.objects = written.objects as u64;
            commit.bytes = written.bytes as u64;
            commit.messages = written.messages.lines().to_vec();
            commit.messages.extend(written.messages.has_more().then(|| "...".to_owned()));
            commit.kernel_us = micros(written.kernel);
        }
        Err(error) => commit.error = Some(error.to_string()),
    }
    Entry::Commit(commit)
}

#[cfg(test)]
mod tests;
