//! Health-check node ports: in step with the Catalog, on the addresses of node ports.

use std::collections::BTreeMap;
use std::net::IpAddr;

use portolan_model::Family;
use portolan_node::address::NodeAddresses;
use portolan_node::config::Configuration;
use portolan_node::health::{ListenAddresses, ServiceHealth, ServiceKey};

use super::Agent;
use crate::proxy::events::Note;
use crate::proxy::settings;

/// The servers of one family.
pub(super) struct HealthChecks {
    family: Family,
    listen: ListenAddresses,
    servers: ServiceHealth,
    /// They may not be as the Catalog says.
    stale: bool,
}

impl HealthChecks {
    /// Something changed that they depend on.
    pub(super) const fn touch(&mut self) {
        self.stale = true;
    }
}

impl Agent {
    pub(super) fn new_health_checks(&self, addresses: &[IpAddr]) -> Vec<HealthChecks> {
        let (runtime, node_ips) = (tokio::runtime::Handle::current(), self.node_ips());
        let new = |&family: &Family| {
            let listen = listen_addresses(&self.configuration, &node_ips, family, addresses);
            let servers = ServiceHealth::new(runtime.clone(), listen.clone(), self.health());
            HealthChecks { family, listen, servers, stale: true }
        };
        self.families.iter().map(new).collect()
    }

    /// Node ports may answer elsewhere now: their health checks follow at once.
    pub(super) fn move_health_checks(&mut self, addresses: &[IpAddr]) {
        let node_ips = self.node_ips();
        let Some(running) = &mut self.running else { return };
        let mut moved = Vec::new();
        for checks in &mut running.health_checks {
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

    /// Brings the servers of a family in step with the Catalog. What fails is tried again after the next commit.
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
        checks.stale = !failures.is_empty();
        for failure in failures {
            self.notes.tell(Note::no_health_check(self.catalog.node_name(), &failure));
        }
    }
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
