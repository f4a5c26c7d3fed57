//! What the agent knows, for the answers of the control socket.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use portolan_engine::{Handle, Refusal};
use portolan_model::catalog::{ExplainedPort, LeftOut, ObjectFault, PerFamily};
use portolan_model::object::Node;
use portolan_model::{Catalog, Family, Protocol, ServicePortName};
use portolan_node::config::Configuration;
use portolan_recorder::History as Recording;
use portolan_status::Objects;

use super::Agent;

/// How many refused Service ports the agent passes on for each family.
pub(crate) const REFUSED_MAX: usize = 1_000;

/// What the agent knows at one moment.
pub(crate) struct Facts {
    /// The engine; `None` before the first complete state is known.
    pub(crate) engine: Option<Handle>,
    pub(crate) configuration: Configuration,
    pub(crate) node: String,
    pub(crate) objects: Objects,
    pub(crate) refused: PerFamily<RefusedPorts>,
    /// Number of relays that drain.
    pub(crate) draining: usize,
}

/// What decides about packets besides Services, at one moment.
pub(crate) struct OfPackets {
    pub(crate) engine: Handle,
    pub(crate) configuration: Configuration,
    /// The name of the Node object, its last known addresses and its pod CIDRs.
    pub(crate) node: String,
    pub(crate) own_addresses: Vec<IpAddr>,
    pub(crate) pod_cidrs: Vec<IpNet>,
    /// The relay that gets new connections.
    pub(crate) relay: Option<portolan_relay::Handle>,
}

/// Service ports of a family that are not programmed, or not with all endpoints.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusedPorts {
    pub(crate) count: usize,
    /// At most [`REFUSED_MAX`] of them.
    pub(crate) some: Vec<Refusal>,
}

/// What the agent holds.
pub(crate) struct Held {
    pub(crate) catalog: Catalog,
    /// The Node object, with the addresses and pod CIDRs that the agent uses.
    pub(crate) node: Option<Node>,
    pub(crate) families: Vec<Family>,
    pub(crate) history: Recording,
}

impl Agent {
    /// Returns the Catalog, for the reasons of the endpoint selection.
    pub(crate) const fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Returns what the agent knows. It is bounded, whatever the number of Services.
    pub(crate) fn facts(&self) -> Facts {
        let pending = self.backlog.waiting();
        let mut refused = PerFamily::<RefusedPorts>::default();
        for &family in &self.families {
            let all = self.refused.get(family).all();
            let some = all.iter().take(REFUSED_MAX).cloned().collect();
            *refused.get_mut(family) = RefusedPorts { count: all.len(), some };
        }
        Facts {
            engine: self.running.as_ref().map(|running| running.engine.clone()),
            configuration: self.configuration.clone(),
            node: self.catalog.node_name().to_owned(),
            objects: Objects {
                services: self.catalog.service_count(),
                endpoint_slices: self.catalog.slice_count(),
                pending_services: pending.services,
                pending_endpoint_slices: pending.endpoint_slices,
            },
            refused,
            draining: self.shared.relays.draining(),
        }
    }

    /// Returns what decides about packets besides Services. `None` before the first complete state is known.
    pub(crate) fn of_packets(&self) -> Option<OfPackets> {
        let engine = self.running.as_ref()?.engine.clone();
        Some(OfPackets {
            engine,
            configuration: self.configuration.clone(),
            node: self.catalog.node_name().to_owned(),
            own_addresses: self.node.addresses().to_vec(),
            pod_cidrs: self.node.pod_cidrs().to_vec(),
            relay: self.shared.relays.current().cloned(),
        })
    }

    /// Returns copies of what the agent holds.
    pub(crate) fn held(&self) -> Held {
        Held {
            catalog: self.catalog.clone(),
            node: self.catalog.node().cloned(),
            families: self.families.clone(),
            history: self.recorder.history(),
        }
    }

    /// Returns a Service port with the choice of each endpoint.
    pub(crate) fn explain(&self, name: &ServicePortName, family: Family) -> Option<ExplainedPort> {
        self.catalog.explain(name, family)
    }

    /// Returns the frontends at an address and port that Service ports claim and do not get.
    pub(crate) fn left_out_at(&self, destination: SocketAddr, protocol: Protocol) -> Vec<LeftOut> {
        self.catalog.left_out_at(destination, protocol)
    }

    /// Returns the conflicts of the Services with a name, in one namespace or in all.
    pub(crate) fn conflicts_of(&self, namespace: Option<&str>, service: &str) -> Vec<ObjectFault> {
        self.catalog.conflicts_of(namespace, service)
    }

    /// Returns why a Service port is not programmed, or not with all endpoints.
    pub(crate) fn refusal_of(&self, name: &ServicePortName, family: Family) -> Option<Refusal> {
        self.refused.get(family).all().iter().find(|refusal| *refusal.name == *name).cloned()
    }
}
