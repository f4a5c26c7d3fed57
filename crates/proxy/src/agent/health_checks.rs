//! Health-check node ports: keeps their servers in sync with what is in the kernel, on the addresses of node ports.
//!
//! A port opens, and a count rises, when the commit with these endpoints is in the kernel: a load balancer must not send
//! packets earlier. A count falls at once.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use portolan_engine::HealthCheckPort;
use portolan_model::Family;
use portolan_model::catalog::{HealthCheck, HealthCheckChange};
use portolan_model::object::ObjectKey;
use portolan_node::address::NodeAddresses;
use portolan_node::config::Configuration;
use portolan_node::health::{ListenAddresses, ServiceHealth, ServiceKey};

use super::Agent;
use crate::settings;

/// The port of each Service and the number of its ready endpoints on this node.
type Committed = BTreeMap<ServiceKey, (u16, u32)>;

/// The health-check servers of one family.
pub(super) struct HealthChecks {
    family: Family,
    listen: ListenAddresses,
    servers: ServiceHealth,
    /// The ports and counts of the last commits.
    committed: Committed,
    /// Whether the servers may differ from what they should be.
    stale: bool,
    /// When the ports that could not be opened are retried. `None` if all are open.
    retry_at: Option<Instant>,
    /// Number of consecutive failed attempts.
    failures: u32,
}

/// First and longest delay before ports that could not be opened are retried. The delay doubles with each failure. A
/// new IPv6 address is tentative for a second or two (RFC 4862) and cannot be listened on.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

impl HealthChecks {
    /// Stores what a commit has brought into the kernel.
    fn note_committed(&mut self, check: &HealthCheckPort) {
        self.stale = true;
        let key = ServiceKey { namespace: (*check.namespace).into(), name: (*check.service).into() };
        match check.port {
            Some(port) => self.committed.insert(key, (port, check.local_ready)),
            None => self.committed.remove(&key),
        };
    }

    fn tried(&mut self, failed: bool) {
        self.stale = failed;
        self.failures = if failed { self.failures.saturating_add(1) } else { 0 };
        let doublings = self.failures.saturating_sub(1).min(16);
        let wait = FIRST_RETRY.saturating_mul(1 << doublings).min(LONGEST_RETRY);
        self.retry_at = failed.then(|| Instant::now() + wait);
    }
}

impl Agent {
    pub(super) fn new_health_checks(&self, addresses: &[IpAddr]) -> Vec<HealthChecks> {
        let (runtime, node_ips) = (tokio::runtime::Handle::current(), self.node_ips());
        let new = |&family: &Family| {
            let listen = listen_addresses(&self.configuration, &node_ips, family, addresses);
            let servers = ServiceHealth::new(runtime.clone(), listen.clone(), self.health());
            let committed = Committed::new();
            HealthChecks { family, listen, servers, committed, stale: false, retry_at: None, failures: 0 }
        };
        self.families.iter().map(new).collect()
    }

    /// Moves the health-check servers at once if the addresses of node ports changed. Those of the families in `stay` keep
    /// their addresses: their data planes are not of the configured mode yet.
    pub(super) fn move_health_checks(&mut self, addresses: &[IpAddr], stay: &[Family]) {
        let node_ips = self.node_ips();
        let Some(running) = &mut self.running else { return };
        let mut moved = Vec::new();
        for checks in running.health_checks.iter_mut().filter(|checks| !stay.contains(&checks.family)) {
            let listen = listen_addresses(&self.configuration, &node_ips, checks.family, addresses);
            if listen != checks.listen {
                checks.listen = listen.clone();
                checks.servers.listen_on(listen);
                checks.stale = true;
                moved.push(checks.family);
            }
        }
        for family in moved {
            self.sync_health_checks(family);
        }
    }

    /// Retries the ports that could not be opened, for families whose retry is due.
    pub(super) fn retry_health_checks(&mut self) {
        let now = Instant::now();
        let due = |checks: &&HealthChecks| checks.retry_at.is_some_and(|at| at <= now);
        let checks = self.running.iter().flat_map(|running| &running.health_checks);
        let families: Vec<Family> = checks.filter(due).map(|checks| checks.family).collect();
        for family in families {
            self.sync_health_checks(family);
        }
    }

    /// Applies the ports and counts that a commit of a family has brought into the kernel.
    pub(super) fn health_checks_committed<'a>(
        &mut self,
        family: Family,
        committed: impl IntoIterator<Item = &'a HealthCheckPort>,
    ) {
        let all = self.running.iter_mut().flat_map(|running| &mut running.health_checks);
        if let Some(checks) = all.into_iter().find(|checks| checks.family == family) {
            committed.into_iter().for_each(|check| checks.note_committed(check));
        }
        self.sync_health_checks(family);
    }

    /// Applies the counts of these changes that are lower than before. They do not wait for the commit.
    pub(super) fn lower_health_checks(&mut self, changes: &[HealthCheckChange]) {
        for family in self.families.clone() {
            if !changes.iter().any(|change| is_lower(change, family)) {
                continue;
            }
            let all = self.running.iter_mut().flat_map(|running| &mut running.health_checks);
            all.filter(|checks| checks.family == family).for_each(|checks| checks.stale = true);
            self.sync_health_checks(family);
        }
    }

    /// Brings a family's servers in sync with the last commit, if they are stale. What fails is retried after the next
    /// commit and after a back-off.
    fn sync_health_checks(&mut self, family: Family) {
        let Some(running) = &mut self.running else { return };
        let Some(checks) = running.health_checks.iter_mut().find(|c| c.family == family && c.stale) else {
            return;
        };
        let (ports, counts) = to_serve(&checks.committed, self.catalog.health_checks(), family);
        let failures = checks.servers.sync(&ports, &counts);
        checks.tried(!failures.is_empty());
        for failure in failures {
            self.notes.no_health_check(&failure);
        }
    }
}

/// Returns the port of each server and the count that it answers with: that of the last commit, or the wanted one if that
/// is lower. A Service that is about to lose its port answers with 0 until the commit.
fn to_serve(
    committed: &Committed,
    wanted: Vec<(ObjectKey, HealthCheck)>,
    family: Family,
) -> (BTreeMap<ServiceKey, u16>, BTreeMap<ServiceKey, usize>) {
    let wanted: BTreeMap<ServiceKey, u32> = wanted
        .into_iter()
        .filter_map(|(key, check)| {
            let key = ServiceKey { namespace: key.namespace.into(), name: key.name.into() };
            Some((key, (*check.local_ready.get(family))?))
        })
        .collect();
    let count = |key: &ServiceKey, count: u32| count.min(wanted.get(key).copied().unwrap_or(0)) as usize;
    let ports = committed.iter().map(|(key, (port, _))| (key.clone(), *port)).collect();
    (ports, committed.iter().map(|(key, (_, ready))| (key.clone(), count(key, *ready))).collect())
}

fn is_lower(change: &HealthCheckChange, family: Family) -> bool {
    let [old, new] =
        [&change.old, &change.new].map(|check| check.and_then(|check| *check.local_ready.get(family)));
    new < old
}

/// Returns the changed health-check node ports of a family, for its data plane.
pub(super) fn of_family(changes: &[HealthCheckChange], family: Family) -> Vec<HealthCheckPort> {
    let port = |check: &HealthCheck| check.local_ready.get(family).map(|ready| (check.port, ready));
    let different = changes.iter().filter_map(|change| {
        let [old, new] = [&change.old, &change.new].map(|check| check.as_ref().and_then(port));
        (old != new).then(|| health_check_port(&change.key, new))
    });
    different.collect()
}

/// Returns all health-check node ports of a family, for its data plane.
pub(crate) fn all_of_family(checks: &[(ObjectKey, HealthCheck)], family: Family) -> Vec<HealthCheckPort> {
    let of_family =
        checks.iter().filter_map(|(key, check)| Some((key, check.port, (*check.local_ready.get(family))?)));
    of_family.map(|(key, port, ready)| health_check_port(key, Some((port, ready)))).collect()
}

fn health_check_port(key: &ObjectKey, check: Option<(u16, u32)>) -> HealthCheckPort {
    let (port, ready) = check.unzip();
    let (namespace, service) = ((*key.namespace).into(), (*key.name).into());
    HealthCheckPort { namespace, service, port, local_ready: ready.unwrap_or(0) }
}

fn listen_addresses(
    configuration: &Configuration,
    node_ips: &NodeAddresses,
    family: Family,
    addresses: &[IpAddr],
) -> ListenAddresses {
    let node_ports = settings::node_ports(configuration, node_ips, family);
    ListenAddresses::choose(&node_ports, family, addresses)
}

#[cfg(test)]
mod tests {
    use portolan_model::catalog::PerFamily;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "demo".into(), name: name.into() }
    }

    fn check(port: u16, ready: Option<u32>) -> HealthCheck {
        HealthCheck { port, local_ready: PerFamily { ipv4: ready, ipv6: None } }
    }

    /// Returns the port and the count of the only server, if there is one.
    fn served(committed: &Committed, wanted: Option<HealthCheck>) -> Option<(u16, usize)> {
        let wanted = wanted.map(|check| (key("edge"), check)).into_iter().collect();
        let (ports, counts) = to_serve(committed, wanted, Family::Ipv4);
        ports.into_values().zip(counts.into_values()).next()
    }

    #[test]
    fn a_port_opens_and_a_count_rises_with_the_commit_but_falls_at_once() {
        let service = ServiceKey { namespace: "demo".into(), name: "edge".into() };
        let committed = |ready| Committed::from([(service.clone(), (32222, ready))]);
        assert_eq!(
            served(&Committed::new(), Some(check(32222, Some(1)))),
            None,
            "the first commit is to come"
        );
        assert_eq!(served(&committed(0), Some(check(32222, Some(1)))), Some((32222, 0)));
        assert_eq!(served(&committed(1), Some(check(32222, Some(1)))), Some((32222, 1)));
        assert_eq!(served(&committed(1), Some(check(32223, Some(2)))), Some((32222, 1)), "as committed");
        assert_eq!(served(&committed(2), Some(check(32222, Some(0)))), Some((32222, 0)));
        assert_eq!(served(&committed(2), Some(check(32222, None))), Some((32222, 0)));
        assert_eq!(served(&committed(2), None), Some((32222, 0)), "the port closes with the commit");
    }

    #[test]
    fn work_has_the_changed_ports_and_counts_of_a_family() {
        let change = |old, new| HealthCheckChange { key: key("edge"), old, new };
        let of = |change: &HealthCheckChange, family| {
            let of_family = of_family(std::slice::from_ref(change), family).into_iter();
            of_family.map(|check| (check.port, check.local_ready)).collect::<Vec<_>>()
        };
        let rises = change(Some(check(1, Some(0))), Some(check(1, Some(2))));
        assert_eq!(of(&rises, Family::Ipv4), [(Some(1), 2)]);
        assert_eq!(of(&rises, Family::Ipv6), []);
        assert!(!is_lower(&rises, Family::Ipv4));
        let ends = change(Some(check(1, Some(2))), None);
        assert_eq!(of(&ends, Family::Ipv4), [(None, 0)]);
        assert!(is_lower(&ends, Family::Ipv4) && !is_lower(&ends, Family::Ipv6));
    }
}
