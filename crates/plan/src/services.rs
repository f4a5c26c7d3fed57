//! Compares Service ports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::observed::{
    Deviation, Difference, Fact, NodePortReach, Observed, ObservedEndpoints, ObservedPort,
};
use portolan_model::table::Entry;
use portolan_model::{Backend, ExternalPolicy, Forwarding, InternalPolicy, ServicePortName};

use crate::node_ports::resolved;
use crate::report::{Action, Change, ServiceChange};

/// Returns an addition of each Service port.
pub(crate) fn against_nothing(wanted: &[Entry]) -> Vec<ServiceChange> {
    wanted.iter().filter(|(_, forwarding)| !forwarding.frontends.is_empty()).map(addition).collect()
}

/// Compares with what was read from the kernel. `node_ports` are the addresses that are to accept node ports.
pub(crate) fn against_kernel(
    observed: &Observed,
    wanted: &[Entry],
    node_ports: &NodePortReach,
    of_node: &BTreeSet<IpAddr>,
) -> Vec<ServiceChange> {
    // Without a single node port, a mode that programs them by address does not hold at which ones.
    let has_no_address = observed.node_port_addresses.as_ref().is_some_and(Vec::is_empty);
    let completed = has_no_address.then(|| Observed {
        node_port_addresses: Some(resolved(&node_ports.addresses, of_node).into_iter().collect()),
        ..observed.clone()
    });
    let observed = completed.as_ref().unwrap_or(observed);
    let differences = observed.difference(wanted);
    let is_same = |one: &Difference, other: &Difference| {
        one.name.is_some() && (&one.name, one.protocol) == (&other.name, other.protocol)
    };
    let tables = Tables {
        wanted: wanted.iter().map(|(name, forwarding)| (&**name, &**forwarding)).collect(),
        observed,
    };
    differences.chunk_by(is_same).filter_map(|differences| tables.change(differences)).collect()
}

/// Compares two forwarding tables.
pub(crate) fn between(before: &[Entry], after: &[Entry]) -> Vec<ServiceChange> {
    let sorted = |table: &[Entry]| -> BTreeMap<Arc<ServicePortName>, Arc<Forwarding>> {
        let programmed = table.iter().filter(|(_, forwarding)| !forwarding.frontends.is_empty());
        programmed.map(|(name, forwarding)| (Arc::clone(name), Arc::clone(forwarding))).collect()
    };
    let (before, after) = (sorted(before), sorted(after));
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let change = |name: &Arc<ServicePortName>| match (before.get(name), after.get(name)) {
        (Some(old), Some(new)) => changed(name, old, new),
        (None, Some(new)) => Some(addition(&(Arc::clone(name), Arc::clone(new)))),
        (Some(old), None) => Some(removal(&(Arc::clone(name), Arc::clone(old)))),
        (None, None) => None,
    };
    names.into_iter().filter_map(change).collect()
}

/// What differences refer to.
struct Tables<'a> {
    wanted: BTreeMap<&'a ServicePortName, &'a Forwarding>,
    observed: &'a Observed,
}

impl Tables<'_> {
    /// Describes the differences of one Service port.
    fn change(&self, differences: &[Difference]) -> Option<ServiceChange> {
        let first = differences.first()?;
        let name = first.name.as_deref();
        let base = ServiceChange {
            service: name.map(ToString::to_string),
            protocol: first.protocol.to_string(),
            action: Action::Change,
            frontends: Vec::new(),
            endpoints_added: 0,
            endpoints_removed: 0,
            changes: Vec::new(),
        };
        match (&first.deviation, name) {
            (Deviation::ServicePortMissing, Some(name)) => {
                let forwarding = self.wanted.get(name)?;
                Some(ServiceChange {
                    action: Action::Add,
                    frontends: listed(&forwarding.frontends),
                    endpoints_added: endpoints(forwarding).len(),
                    ..base
                })
            }
            (Deviation::ServicePortExtra, _) => {
                let is_it = |port: &&ObservedPort| port.name == first.name && port.protocol == first.protocol;
                let ports: Vec<&ObservedPort> = self.observed.ports.iter().filter(is_it).collect();
                let frontends = ports.iter().flat_map(|port| &port.frontends);
                Some(ServiceChange {
                    action: Action::Remove,
                    frontends: frontends.map(|frontend| frontend.place.to_string()).collect(),
                    endpoints_removed: observed_endpoints(&ports).len(),
                    ..base
                })
            }
            (Deviation::FrontendExtra(place), None) => {
                let has_it =
                    |port: &&ObservedPort| port.frontends.iter().any(|frontend| frontend.place == *place);
                let ports: Vec<&ObservedPort> = self.observed.ports.iter().filter(has_it).collect();
                Some(ServiceChange {
                    action: Action::Remove,
                    frontends: vec![place.to_string()],
                    endpoints_removed: observed_endpoints(&ports).len(),
                    ..base
                })
            }
            _ => {
                let found = |which: fn(&Deviation) -> Option<SocketAddr>| {
                    let all = differences.iter().filter_map(|difference| which(&difference.deviation));
                    all.collect::<BTreeSet<_>>().len()
                };
                let forwarding = name.and_then(|name| self.wanted.get(name)).copied();
                Some(ServiceChange {
                    endpoints_added: found(added_endpoint),
                    endpoints_removed: found(removed_endpoint),
                    changes: differences
                        .iter()
                        .map(|found| described(&found.deviation, forwarding))
                        .collect(),
                    ..base
                })
            }
        }
    }
}

const fn added_endpoint(deviation: &Deviation) -> Option<SocketAddr> {
    match deviation {
        Deviation::EndpointMissing { endpoint, .. } => Some(*endpoint),
        _ => None,
    }
}

const fn removed_endpoint(deviation: &Deviation) -> Option<SocketAddr> {
    match deviation {
        Deviation::EndpointExtra { endpoint, .. } => Some(*endpoint),
        _ => None,
    }
}

/// Describes what the kernel lacks as something to add, and what it has too much as something to remove.
fn described(deviation: &Deviation, forwarding: Option<&Forwarding>) -> Change {
    let (code, text) = match deviation {
        Deviation::ServicePortMissing => ("service-port-added", "add all frontends".to_owned()),
        Deviation::ServicePortExtra => ("service-port-removed", "remove all frontends".to_owned()),
        Deviation::FrontendMissing(place) => ("frontend-added", format!("add {place}")),
        Deviation::FrontendExtra(place) => ("frontend-removed", format!("remove {place}")),
        Deviation::EndpointMissing { endpoint, behind } => {
            ("endpoint-added", format!("add endpoint {endpoint} {behind}"))
        }
        Deviation::EndpointExtra { endpoint, behind } => {
            ("endpoint-removed", format!("remove endpoint {endpoint} {behind}"))
        }
        Deviation::Affinity { wanted, found } => ("affinity", affinity(*found, *wanted)),
        Deviation::SourceRangeMissing(range) => ("source-range-added", format!("allow source range {range}")),
        Deviation::SourceRangeExtra(range) => {
            ("source-range-removed", format!("do not allow source range {range}"))
        }
        Deviation::SourcesUnrestricted => {
            let ranges = forwarding.map(|forwarding| listed(&forwarding.source_ranges)).unwrap_or_default();
            ("source-ranges-restricted", format!("allow only the source ranges {}", ranges.join(", ")))
        }
    };
    Change::new(code, text)
}

fn affinity(before: Option<u32>, after: Option<u32>) -> String {
    let words =
        |timeout: Option<u32>| timeout.map_or_else(|| "none".to_owned(), |seconds| format!("{seconds} s"));
    format!("session affinity {} instead of {}", words(after), words(before))
}

fn addition((name, forwarding): &Entry) -> ServiceChange {
    ServiceChange {
        service: Some(name.to_string()),
        protocol: forwarding.protocol.to_string(),
        action: Action::Add,
        frontends: listed(&forwarding.frontends),
        endpoints_added: endpoints(forwarding).len(),
        endpoints_removed: 0,
        changes: Vec::new(),
    }
}

fn removal(entry: &Entry) -> ServiceChange {
    let added = addition(entry);
    ServiceChange {
        action: Action::Remove,
        endpoints_added: 0,
        endpoints_removed: added.endpoints_added,
        ..added
    }
}

/// Returns what differs between two states of a Service port; `None` if packets are handled in the same way.
fn changed(name: &ServicePortName, old: &Forwarding, new: &Forwarding) -> Option<ServiceChange> {
    let mut changes = Vec::new();
    let words = |removed: &'static str, added: &'static str| (removed, added);
    sets(
        &mut changes,
        &old.frontends,
        &new.frontends,
        words("frontend-removed", "frontend-added"),
        |frontend| (format!("remove {frontend}"), format!("add {frontend}")),
    );
    for (list, old, new) in [("cluster", &old.cluster, &new.cluster), ("local", &old.local, &new.local)] {
        let codes = words("endpoint-removed", "endpoint-added");
        sets(&mut changes, &sockets(old), &sockets(new), codes, |endpoint| {
            (
                format!("remove endpoint {endpoint} in the {list} list"),
                format!("add endpoint {endpoint} in the {list} list"),
            )
        });
    }
    policies(&mut changes, old, new);
    let codes = words("source-range-removed", "source-range-added");
    match (old.source_ranges.is_empty(), new.source_ranges.is_empty()) {
        (true, false) => {
            let ranges = listed(&new.source_ranges).join(", ");
            changes.push(Change::new(
                "source-ranges-restricted",
                format!("allow only the source ranges {ranges}"),
            ));
        }
        (false, true) => {
            changes.push(Change::new("sources-unrestricted", "allow all sources".to_owned()));
        }
        _ => sets(&mut changes, &old.source_ranges, &new.source_ranges, codes, |range| {
            (format!("do not allow source range {range}"), format!("allow source range {range}"))
        }),
    }
    if changes.is_empty() {
        return None;
    }
    let (before, after) = (endpoints(old), endpoints(new));
    Some(ServiceChange {
        service: Some(name.to_string()),
        protocol: new.protocol.to_string(),
        action: Action::Change,
        frontends: Vec::new(),
        endpoints_added: after.difference(&before).count(),
        endpoints_removed: before.difference(&after).count(),
        changes,
    })
}

/// Adds the changes of traffic policies, session affinity, and what single modes use.
fn policies(changes: &mut Vec<Change>, old: &Forwarding, new: &Forwarding) {
    let mut note = |code: &str, field: &str, before: String, after: String| {
        if before != after {
            changes.push(Change::new(code, format!("{field} {after} instead of {before}")));
        }
    };
    let internal = |forwarding: &Forwarding| match forwarding.internal_policy {
        InternalPolicy::Cluster => "Cluster".to_owned(),
        InternalPolicy::Local => "Local".to_owned(),
    };
    let external = |forwarding: &Forwarding| match forwarding.external_policy {
        ExternalPolicy::Cluster => "Cluster".to_owned(),
        ExternalPolicy::Local => "Local".to_owned(),
    };
    let scheduler = |forwarding: &Forwarding| {
        forwarding.ipvs_scheduler.map_or_else(|| "the node's".to_owned(), |scheduler| scheduler.to_string())
    };
    note("internal-policy", "internalTrafficPolicy", internal(old), internal(new));
    note("external-policy", "externalTrafficPolicy", external(old), external(new));
    note("ipvs-scheduler", "IPVS scheduler", scheduler(old), scheduler(new));
    let keeps = |forwarding: &Forwarding| forwarding.keep_client_address.to_string();
    note("client-address", "userspace mode: endpoints see the client's address:", keeps(old), keeps(new));
    if old.affinity != new.affinity {
        changes.push(Change::new("affinity", affinity(old.affinity, new.affinity)));
    }
}

/// Adds the elements that are in one of two lists. `texts` returns what to say of a removed and of an added one.
fn sets<T: Ord>(
    changes: &mut Vec<Change>,
    old: &[T],
    new: &[T],
    (removed, added): (&str, &str),
    texts: impl Fn(&T) -> (String, String),
) {
    let (old, new): (BTreeSet<&T>, BTreeSet<&T>) = (old.iter().collect(), new.iter().collect());
    changes.extend(new.difference(&old).map(|element| Change::new(added, texts(element).1)));
    changes.extend(old.difference(&new).map(|element| Change::new(removed, texts(element).0)));
}

fn sockets(backends: &[Backend]) -> Vec<SocketAddr> {
    backends.iter().map(Backend::socket).collect()
}

/// Returns the endpoints of both lists.
fn endpoints(forwarding: &Forwarding) -> BTreeSet<SocketAddr> {
    forwarding.cluster.iter().chain(&forwarding.local).map(Backend::socket).collect()
}

fn observed_endpoints(ports: &[&ObservedPort]) -> BTreeSet<SocketAddr> {
    let mut found = BTreeSet::new();
    for port in ports {
        let lists = match &port.endpoints {
            ObservedEndpoints::Unknown => [None, None],
            ObservedEndpoints::Lists { cluster, local } => [cluster, local].map(|list| match list {
                Fact::Known(list) => Some(list),
                Fact::Unknown => None,
            }),
            ObservedEndpoints::Shared(list) => [Some(list), None],
        };
        found.extend(lists.into_iter().flatten().flatten().map(|endpoint| endpoint.at));
    }
    found
}

fn listed(items: &[impl Display]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}
