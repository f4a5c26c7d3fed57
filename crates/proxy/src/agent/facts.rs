//! What the agent knows, for the answers of the control socket.

use std::net::SocketAddr;

use portolan_engine::Refusal;
use portolan_model::catalog::{ExplainedPort, LeftOut, ObjectFault, PerFamily};
use portolan_model::{Catalog, Family, Protocol, ServicePortName};
use portolan_status::Objects;

use super::Agent;
use crate::control::{Facts, OfPackets, REFUSED_MAX, RefusedPorts};

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
