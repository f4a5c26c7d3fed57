//! UDP flows of this node: which the clean-up looks for, and when all are checked.
//!
//! Flows are checked after changes of their Service port. Those of all Service ports are checked after a comparison that wrote
//! rules, after a change of the mode, and after changes of the addresses that accept node ports: flows that began before may have
//! entries without translation, which the kernel keeps as long as their clients send.

use std::net::IpAddr;

use portolan_conntrack::NodePorts;
use portolan_engine::Work;
use portolan_model::catalog::UdpService;
use portolan_model::{Family, Frontend, Settings};
use portolan_node::config::{Configuration, Mode};

use super::Agent;
use super::running::Plane;
use crate::{modes, settings};

impl Agent {
    /// Returns all UDP Service ports of a family, as the data plane that runs translates their flows.
    pub(super) fn udp_services(&self, family: Family) -> Vec<UdpService> {
        self.as_translated(family, self.catalog.udp_services(family).collect())
    }

    /// Returns these UDP Service ports of a family as the data plane that runs translates their flows.
    pub(super) fn as_translated(&self, family: Family, mut services: Vec<UdpService>) -> Vec<UdpService> {
        let running = self.running.as_ref().and_then(|running| running.mode_of(family));
        let mode = running.unwrap_or(self.configuration.mode_or_default());
        modes::leave_unused(mode, &self.catalog, family, &mut services);
        modes::serve_by_relay(mode, &self.configuration, self.node_ips().known(family), &mut services);
        services
    }

    /// Adds the Service ports that have an address of this node and the number of a node port as another frontend. Their flows
    /// would be taken for those of the node port if they were not checked with it.
    pub(super) fn with_others_at_node_ports(
        &self,
        family: Family,
        mut services: Vec<UdpService>,
    ) -> Vec<UdpService> {
        let addresses = self.running.as_ref().map(|running| running.addresses.as_slice()).unwrap_or_default();
        let of_family: Vec<IpAddr> =
            addresses.iter().copied().filter(|address| Family::of(*address) == family).collect();
        let frontends = services.iter().flat_map(|service| &service.frontends);
        let node_ports: Vec<u16> = frontends
            .filter_map(|frontend| match frontend {
                Frontend::NodePort(port) => Some(*port),
                _ => None,
            })
            .collect();
        for other in node_ports.into_iter().flat_map(|port| self.catalog.udp_services_at(&of_family, port)) {
            if services.iter().all(|service| service.name != other.name) {
                services.push(other);
            }
        }
        services
    }

    /// Checks the flows of all UDP Service ports of a family whose rules are in the kernel again.
    pub(super) fn check_flows(&self, family: Family) {
        if let Some(running) = &self.running {
            running.flows.requests().request(family, self.udp_services(family));
        }
    }

    /// Returns the addresses that accept node ports, as a data plane of a mode translates them.
    pub(super) fn flow_ports(&self, mode: Mode, settings: &Settings, addresses: &[IpAddr]) -> NodePorts {
        let node_ips = self.node_ips();
        let node = settings::Node { ips: &node_ips, pod_cidrs: self.node.pod_cidrs(), addresses };
        let configuration = Configuration { mode: Some(mode), ..self.configuration.clone() };
        let differences = modes::driver(mode).differences(&configuration, settings.family, &node);
        let addresses = settings.node_port_addresses.clone();
        NodePorts { addresses, loopback: differences.loopback_node_ports }
    }

    /// Gives the flow clean-up the addresses that accept node ports, as the data planes that run translate them. If they
    /// changed, all flows are checked after the next commit.
    pub(super) fn configure_flows(&mut self, addresses: &[IpAddr]) {
        let planes = self.running.as_ref().map(|running| running.planes.as_slice()).unwrap_or_default();
        let ports = |plane: &Plane| self.flow_ports(plane.mode, &plane.settings, addresses);
        let wanted: Vec<NodePorts> = planes.iter().map(ports).collect();
        let Some(running) = &mut self.running else { return };
        running.addresses = addresses.to_vec();
        let mut changed = Vec::new();
        for (plane, ports) in running.planes.iter_mut().zip(wanted) {
            if plane.flow_ports != ports {
                running.flows.requests().configure(plane.family, ports.clone());
                plane.flow_ports = ports;
                changed.push(plane.family);
            }
        }
        let Some(running) = &self.running else { return };
        for family in changed {
            running.engine.work(family, Work { udp: self.udp_services(family), ..Work::default() });
        }
    }
}
