//! What of the engine's tables is on a page. It runs on the engine's thread, in bounded time.

use std::iter::Peekable;
use std::sync::Arc;

use portolan_engine::Table;
use portolan_model::ServicePortName;
use portolan_model::table::Entry;

use super::Key;
use super::query::Query;

/// A page ends with the Service that reaches this number of endpoints.
pub(super) const ENDPOINTS_MAX: usize = 10_000;
/// A page ends with the Service that reaches this number of Service ports, whether the search finds them or not. The
/// engine is busy for some milliseconds then.
pub(super) const LOOKED_AT_MAX: usize = 20_000;

/// Services of the tables, with the forwardings that they share with them.
#[derive(Debug, Default)]
pub(super) struct Selected {
    pub(super) services: Vec<Picked>,
    /// The last Service that was looked at, if there are others after it.
    pub(super) next: Option<Key>,
}

/// A Service with its ports, IPv4 before IPv6.
#[derive(Debug)]
pub(super) struct Picked {
    pub(super) key: Key,
    pub(super) health_check_port: Option<u16>,
    pub(super) ports: Vec<Entry>,
}

/// Selects the Services of a query. `tables` are those of the families, IPv4 first.
pub(super) fn select(tables: &[Table], query: &Query) -> Selected {
    let mut selected = Selected::default();
    if let Some(key) = &query.service {
        let ports = tables.iter().flat_map(|table| table.of_service(&key.0, &key.1));
        let ports: Vec<Entry> = ports.map(|(name, forwarding)| (name.clone(), forwarding)).collect();
        selected.services.extend((!ports.is_empty()).then(|| picked(key.clone(), ports, tables)));
        return selected;
    }
    let start = query.start();
    let mut lists: Vec<Peekable<_>> = tables
        .iter()
        .map(|table| {
            let after = table.iter_after(start.as_ref()).skip_while(|(name, _)| query.is_after(name));
            after.take_while(|(name, _)| query.has(name)).peekable()
        })
        .collect();
    let (mut endpoints, mut looked_at, mut last) = (0_usize, 0_usize, None);
    loop {
        let next = lists.iter_mut().filter_map(|list| list.peek().map(|(name, _)| key_of(name))).min();
        let Some(key) = next else { return selected };
        if selected.services.len() >= query.limit || endpoints >= ENDPOINTS_MAX || looked_at >= LOOKED_AT_MAX
        {
            selected.next = last;
            return selected;
        }
        let (mut ports, mut is_found) = (Vec::new(), false);
        for list in &mut lists {
            while let Some((name, forwarding)) = list.next_if(|(name, _)| is_of(name, &key)) {
                is_found |= query.finds(name, &forwarding);
                ports.push((name.clone(), forwarding));
            }
        }
        looked_at = looked_at.saturating_add(ports.len());
        last = Some(key.clone());
        if is_found {
            let count =
                |(_, forwarding): &Entry| forwarding.cluster.len().saturating_add(forwarding.local.len());
            endpoints = ports.iter().map(count).fold(endpoints, usize::saturating_add);
            selected.services.push(picked(key, ports, tables));
        }
    }
}

fn picked(key: Key, ports: Vec<Entry>, tables: &[Table]) -> Picked {
    let health_check_port = tables.iter().find_map(|table| table.health_check_port(&key.0, &key.1));
    Picked { key, health_check_port, ports }
}

fn key_of(name: &ServicePortName) -> Key {
    (name.namespace.clone(), name.service.clone())
}

fn is_of(name: &ServicePortName, (namespace, service): &Key) -> bool {
    let same = |one: &Arc<str>, other: &Arc<str>| Arc::ptr_eq(one, other) || one == other;
    same(&name.service, service) && same(&name.namespace, namespace)
}
