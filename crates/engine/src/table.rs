//! The wanted state of one family: everything that a data plane programs.
//!
//! Owns the forwarding table by Service port with its numbers, the health-check node ports and the settings. Changes go in;
//! what really changed comes out ([`Table::take`]). It must not know data planes, the kernel or time.
//!
//! Forwardings are kept as bytes, and unpacked at each access.
//!
//! A clone costs no more than the settings: clones share their content until one of them changes.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use portolan_model::table::Entry;
use portolan_model::{Change, Coalesced, Family, Forwarding, Protocol, ServicePortName, Settings};

use crate::counts::Counts;
use crate::packed::Packed;

/// The namespace and the name of a Service.
type ServiceKey = (Arc<str>, Arc<str>);

/// Maps a forwarding to what a data plane is to program in its place.
type View = Arc<dyn Fn(&Forwarding) -> Forwarding + Send + Sync>;

/// Service ports in the order of their names.
type Forwardings = BTreeMap<Arc<ServicePortName>, Packed>;

/// The wanted state of one family.
#[derive(Clone)]
pub struct Table {
    settings: Settings,
    forwardings: Arc<Forwardings>,
    /// The numbers of `forwardings`.
    counts: Counts,
    health_check_ports: Arc<BTreeMap<ServiceKey, u16>>,
    view: Option<View>,
}

/// A Service's `healthCheckNodePort`, on which its health check server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheckPort {
    /// Namespace of the Service.
    pub namespace: Arc<str>,
    /// Name of the Service.
    pub service: Arc<str>,
    /// The port, or `None` if the Service has none.
    pub port: Option<u16>,
    /// Number of ready endpoints on this node. The table does not have it; it comes back with the report of the commit.
    pub local_ready: u32,
}

/// A change of a Service's `healthCheckNodePort`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheckChange {
    /// Namespace of the Service.
    pub namespace: Arc<str>,
    /// Name of the Service.
    pub service: Arc<str>,
    /// The port before, or `None` if there was none.
    pub old: Option<u16>,
    /// The port after, or `None` if there is none.
    pub new: Option<u16>,
}

/// The difference between two states of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Changed Service ports, each once.
    pub forwardings: Vec<Change>,
    /// Changed health-check node ports, each Service once.
    pub health_checks: Vec<HealthCheckChange>,
}

impl Changes {
    /// Returns true if nothing differs.
    pub fn is_empty(&self) -> bool {
        self.forwardings.is_empty() && self.health_checks.is_empty()
    }
}

impl Table {
    /// Creates a table without Services. The family is that of the settings.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            forwardings: Arc::default(),
            counts: Counts::default(),
            health_check_ports: Arc::default(),
            view: None,
        }
    }

    /// Creates a table with these Service ports, each named once.
    pub fn with(settings: Settings, entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut counts = Counts::default();
        let pack = |(name, forwarding): Entry| {
            counts.add(&forwarding);
            (name, Packed::of(&forwarding))
        };
        // Made of a list, the map has no room that is not used.
        let forwardings: Forwardings = entries.into_iter().map(pack).collect();
        let mut last: Option<&ServicePortName> = None;
        for name in forwardings.keys() {
            counts.services += usize::from(last.is_none_or(|last| !are_siblings(last, name)));
            last = Some(name);
        }
        Self { counts, forwardings: Arc::new(forwardings), ..Self::new(settings) }
    }

    /// Takes over the Service ports of another table, without a copy. Returns the other one if there are some already.
    pub(crate) fn begin_with(&mut self, other: Self) -> Option<Self> {
        if !self.is_empty() {
            return Some(other);
        }
        self.forwardings = other.forwardings;
        self.counts = other.counts;
        None
    }

    /// Returns the settings.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the family.
    pub const fn family(&self) -> Family {
        self.settings.family
    }

    /// Returns the number of Service ports.
    pub fn len(&self) -> usize {
        self.forwardings.len()
    }

    /// Returns true if there is no Service port.
    pub fn is_empty(&self) -> bool {
        self.forwardings.is_empty()
    }

    /// Returns how much the table holds. A view ([`Table::seen_by`]) does not change these numbers.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the Service ports in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<ServicePortName>, Arc<Forwarding>)> {
        self.forwardings.iter().map(|(name, forwarding)| (name, self.seen(forwarding)))
    }

    /// Returns the Service ports after `name` in the order of their names; all if it is `None`.
    pub fn iter_after(
        &self,
        name: Option<&Arc<ServicePortName>>,
    ) -> impl Iterator<Item = (&Arc<ServicePortName>, Arc<Forwarding>)> {
        let start = name.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.forwardings.range::<Arc<ServicePortName>, _>((start, Bound::Unbounded));
        rest.map(|(name, forwarding)| (name, self.seen(forwarding)))
    }

    /// Returns the Service ports of one Service.
    pub fn of_service<'a>(
        &'a self,
        namespace: &'a Arc<str>,
        service: &'a Arc<str>,
    ) -> impl Iterator<Item = (&'a Arc<ServicePortName>, Arc<Forwarding>)> {
        // The first name that a port of the Service may have.
        let first = ServicePortName {
            namespace: namespace.clone(),
            service: service.clone(),
            port: "".into(),
            protocol: Protocol::Tcp,
        };
        self.forwardings
            .range(Arc::new(first)..)
            .take_while(move |(name, _)| name.namespace == *namespace && name.service == *service)
            .map(|(name, forwarding)| (name, self.seen(forwarding)))
    }

    /// Returns the forwarding of a Service port.
    pub fn get(&self, name: &ServicePortName) -> Option<Arc<Forwarding>> {
        self.forwardings.get(name).map(|forwarding| self.seen(forwarding))
    }

    /// Returns true if the Service port exists.
    pub fn has(&self, name: &ServicePortName) -> bool {
        self.forwardings.contains_key(name)
    }

    /// Returns the health-check node port of a Service.
    pub fn health_check_port(&self, namespace: &Arc<str>, service: &Arc<str>) -> Option<u16> {
        // Most clusters have none, and the lookup needs a key of its own.
        if self.health_check_ports.is_empty() {
            return None;
        }
        self.health_check_ports.get(&(namespace.clone(), service.clone())).copied()
    }

    /// Returns all health-check node ports.
    pub fn health_check_ports(&self) -> impl Iterator<Item = u16> {
        self.health_check_ports.values().copied()
    }

    /// Returns the table in which `view` has been applied to each forwarding, at each access. It shares the content
    /// of this table, so it takes no memory for Service ports.
    #[must_use]
    pub fn seen_by(&self, view: impl Fn(&Forwarding) -> Forwarding + Send + Sync + 'static) -> Self {
        Self { view: Some(Arc::new(view)), ..self.clone() }
    }

    /// Returns the difference between an empty table and this one.
    pub fn all(&self) -> Changes {
        let family = self.family();
        let forwardings =
            self.iter().map(|(name, new)| Change { name: name.clone(), family, old: None, new: Some(new) });
        let health_checks = self.health_check_ports.iter().map(|((namespace, service), port)| {
            let (namespace, service) = (namespace.clone(), service.clone());
            HealthCheckChange { namespace, service, old: None, new: Some(*port) }
        });
        Changes { forwardings: forwardings.collect(), health_checks: health_checks.collect() }
    }

    /// Sets the settings. Returns true if they differ from the former ones.
    pub fn configure(&mut self, settings: Settings) -> bool {
        let differs = self.settings != settings;
        self.settings = settings;
        differs
    }

    /// Applies changes. Returns what they changed: `old` is what the table had, whatever the given changes say. Changes
    /// of other families are left out.
    pub fn take(
        &mut self,
        forwardings: impl IntoIterator<Item = Change>,
        health_checks: impl IntoIterator<Item = HealthCheckPort>,
    ) -> Changes {
        let family = self.family();
        let mut changes = Changes::default();
        for change in forwardings {
            if change.family != family {
                continue;
            }
            let table = Arc::make_mut(&mut self.forwardings);
            let old = match &change.new {
                Some(new) => table.insert(change.name.clone(), Packed::of(new)),
                None => table.remove(&change.name),
            };
            let old = old.map(|old| Arc::new(old.forwarding()));
            self.count(&change.name, old.as_deref(), change.new.as_deref());
            if old.is_some() || change.new.is_some() {
                changes.forwardings.push(Change { old, ..change });
            }
        }
        for HealthCheckPort { namespace, service, port: new, .. } in health_checks {
            let (ports, key) =
                (Arc::make_mut(&mut self.health_check_ports), (namespace.clone(), service.clone()));
            let old = match new {
                Some(port) => ports.insert(key, port),
                None => ports.remove(&key),
            };
            if old != new {
                changes.health_checks.push(HealthCheckChange { namespace, service, old, new });
            }
        }
        changes
    }

    /// Updates the numbers after a change of a Service port.
    fn count(&mut self, name: &Arc<ServicePortName>, old: Option<&Forwarding>, new: Option<&Forwarding>) {
        if let Some(old) = old {
            self.counts.subtract(old);
        }
        if let Some(new) = new {
            self.counts.add(new);
        }
        if old.is_some() != new.is_some() && !has_sibling(&self.forwardings, name) {
            let services = &mut self.counts.services;
            *services = if new.is_some() { services.saturating_add(1) } else { services.saturating_sub(1) };
        }
    }

    fn seen(&self, packed: &Packed) -> Arc<Forwarding> {
        let forwarding = packed.forwarding();
        Arc::new(match &self.view {
            Some(view) => view(&forwarding),
            None => forwarding,
        })
    }
}

/// Returns true if both are ports of one Service.
fn are_siblings(one: &ServicePortName, other: &ServicePortName) -> bool {
    one.namespace == other.namespace && one.service == other.service
}

/// Returns true if the Service of a Service port has another one. The ports of a Service are next to each other.
fn has_sibling(forwardings: &Forwardings, name: &Arc<ServicePortName>) -> bool {
    let before = forwardings.range::<Arc<ServicePortName>, _>(..name).next_back();
    let after = (Bound::Excluded(name), Bound::Unbounded);
    let after = forwardings.range::<Arc<ServicePortName>, _>(after).next();
    before.into_iter().chain(after).any(|(other, _)| are_siblings(other, name))
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("family", &self.family()).field("len", &self.len()).finish()
    }
}

/// Changes that wait, merged: each Service port and each health-check node port once, from the oldest state to the
/// newest.
#[derive(Debug, Default)]
pub struct Merged {
    forwardings: Coalesced,
    health_checks: BTreeMap<ServiceKey, (Option<u16>, Option<u16>)>,
}

impl Merged {
    /// Returns true if nothing waits.
    pub fn is_empty(&self) -> bool {
        self.forwardings.is_empty() && self.health_checks.is_empty()
    }

    /// Returns the number of Service ports that wait.
    pub fn len(&self) -> usize {
        self.forwardings.iter().count()
    }

    /// Adds changes of the state that the last ones led to.
    pub fn add(&mut self, changes: Changes) {
        self.forwardings.extend(changes.forwardings);
        for HealthCheckChange { namespace, service, old, new } in changes.health_checks {
            self.health_checks.entry((namespace, service)).or_insert((old, new)).1 = new;
        }
    }

    /// Removes and returns all changes.
    pub fn take(&mut self) -> Changes {
        let health_checks = std::mem::take(&mut self.health_checks).into_iter();
        let health_checks = health_checks.map(|((namespace, service), (old, new))| HealthCheckChange {
            namespace,
            service,
            old,
            new,
        });
        Changes { forwardings: self.forwardings.take(), health_checks: health_checks.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(service: &str, port: &str) -> Arc<ServicePortName> {
        let (namespace, service, port) = ("demo".into(), service.into(), port.into());
        Arc::new(ServicePortName { namespace, service, port, protocol: Protocol::Tcp })
    }

    /// A change whose `old` is wrong.
    fn change(name: &Arc<ServicePortName>, port: Option<u16>) -> Change {
        let new = port.map(|port| {
            Arc::new(Forwarding::plain(([10, 96, 0, 1], port).into(), Protocol::Tcp, Box::default()))
        });
        Change { name: name.clone(), family: Family::Ipv4, old: None, new }
    }

    fn check(service: &str, port: Option<u16>) -> HealthCheckPort {
        HealthCheckPort { namespace: "demo".into(), service: service.into(), port, local_ready: 0 }
    }

    fn table() -> Table {
        Table::new(Settings::plain(Family::Ipv4))
    }

    #[test]
    fn the_old_state_is_what_the_table_had() {
        let (mut table, web) = (table(), name("web", ""));
        let first = table.take([change(&web, Some(80))], [check("web", Some(30_000))]);
        let second = table.take([change(&web, Some(81))], [check("web", Some(30_000))]);
        assert_eq!(second.forwardings[0].old, first.forwardings[0].new);
        assert_eq!(second.health_checks, [], "nothing changed");
        let last = table.take([change(&web, None), change(&web, None)], [check("web", None)]);
        assert_eq!((last.forwardings.len(), &last.forwardings[0].old), (1, &second.forwardings[0].new));
        assert_eq!((last.health_checks[0].old, last.health_checks[0].new), (Some(30_000), None));
        assert!(table.is_empty() && table.all().is_empty());
        let other = Change { family: Family::Ipv6, ..change(&web, Some(80)) };
        assert!(table.take([other], []).is_empty() && table.is_empty());
    }

    #[test]
    fn a_clone_keeps_its_content() {
        let mut table = table();
        table.take([change(&name("web", ""), Some(80))], []);
        let before = table.clone();
        table.take([change(&name("web", ""), None), change(&name("dns", ""), Some(53))], []);
        assert_eq!((before.len(), table.len()), (1, 1));
        assert!(before.has(&name("web", "")) && !before.has(&name("dns", "")));
    }

    #[test]
    fn the_ports_of_a_service_are_found() {
        let mut table = table();
        let names = [name("a", "x"), name("web", ""), name("web", "metrics"), name("web2", "")];
        table.take(names.iter().map(|name| change(name, Some(80))), []);
        let found: Vec<_> =
            table.of_service(&"demo".into(), &"web".into()).map(|(name, _)| name.clone()).collect();
        assert_eq!(found, names[1..3]);
        let after: Vec<_> = table.iter_after(Some(&names[1])).map(|(name, _)| name.clone()).collect();
        assert_eq!(after, names[2..]);
        assert_eq!(table.iter_after(None).count(), 4);
    }

    #[test]
    fn a_view_applies_to_every_access() {
        let (mut table, web) = (table(), name("web", ""));
        table.take([change(&web, Some(80))], []);
        let seen = table.seen_by(|forwarding| Forwarding { affinity: Some(7), ..forwarding.clone() });
        assert_eq!(table.get(&web).unwrap().affinity, None);
        let all: Vec<_> = seen.iter().chain(seen.of_service(&web.namespace, &web.service)).collect();
        assert!(all.len() == 2 && all.iter().all(|(_, forwarding)| forwarding.affinity == Some(7)));
        assert_eq!(seen.all().forwardings[0].new, seen.get(&web));
    }

    #[test]
    fn merged_changes_lead_from_the_oldest_to_the_newest_state() {
        let (mut table, mut merged, web) = (table(), Merged::default(), name("web", ""));
        table.take([change(&web, Some(80))], [check("web", Some(1))]);
        let before = table.clone();
        merged.add(table.take([change(&web, Some(81))], [check("web", Some(2))]));
        merged.add(table.take([change(&web, Some(82))], [check("web", None)]));
        assert_eq!(merged.len(), 1);
        let changes = merged.take();
        assert_eq!(
            (&changes.forwardings[0].old, &changes.forwardings[0].new),
            (&before.get(&web), &table.get(&web))
        );
        assert_eq!((changes.health_checks[0].old, changes.health_checks[0].new), (Some(1), None));
        assert!(merged.is_empty());
    }
}
