//! Health-check node ports: keeps their servers in sync with the Catalog, on the addresses of node ports.

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

/// The health-check servers of one family.
pub(super) struct HealthChecks {
    family: Family,
    listen: ListenAddresses,
    servers: ServiceHealth,
    /// Whether the servers may differ from the Catalog.
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
    /// Marks the servers as stale.
    pub(super) const fn touch(&mut self) {
        self.stale = true;
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
            HealthChecks { family, listen, servers, stale: true, retry_at: None, failures: 0 }
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

    /// Brings a family's servers in sync with the Catalog, if they are stale. What fails is retried after the next
    /// commit and after a back-off.
    pub(super) fn sync_health_checks(&mut self, family: Family) {
        let Some(running) = &mut self.running else { return };
        let (mut ports, mut counts) = (BTreeMap::new(), BTreeMap::new());
        let Some(checks) = running.health_checks.iter_mut().find(|c| c.family == family && c.stale) else {
            return;
        };
        for (key, check) in self.catalog.health_checks() {
            let Some(count) = *check.local_ready.get(family) else { continue };
            let key = ServiceKey { namespace: key.namespace.into(), name: key.name.into() };
            ports.insert(key.clone(), check.port);
            counts.insert(key, count as usize);
        }
        let failures = checks.servers.sync(&ports, &counts);
        checks.tried(!failures.is_empty());
        for failure in failures {
            self.notes.no_health_check(&failure);
        }
    }
}

/// Returns the changed health-check node ports of a family, for its data plane.
pub(super) fn of_family(changes: &[HealthCheckChange], family: Family) -> Vec<HealthCheckPort> {
    let port = |check: &HealthCheck| check.local_ready.get(family).map(|_| check.port);
    let different = changes.iter().filter_map(|change| {
        let [old, new] = [&change.old, &change.new].map(|check| check.as_ref().and_then(port));
        (old != new).then(|| health_check_port(&change.key, new))
    });
    different.collect()
}

/// Returns all health-check node ports of a family, for its data plane.
pub(crate) fn all_of_family(checks: &[(ObjectKey, HealthCheck)], family: Family) -> Vec<HealthCheckPort> {
    let of_family = checks.iter().filter(|(_, check)| check.local_ready.get(family).is_some());
    of_family.map(|(key, check)| health_check_port(key, Some(check.port))).collect()
}

fn health_check_port(key: &ObjectKey, port: Option<u16>) -> HealthCheckPort {
    HealthCheckPort { namespace: (*key.namespace).into(), service: (*key.name).into(), port }
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
