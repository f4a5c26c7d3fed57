//! What the agent knows, for the documents of the control socket.

use super::Agent;
use crate::control::{Facts, REFUSED_MAX, RefusedPorts};
use portolan_model::Catalog;
use portolan_model::catalog::PerFamily;
use portolan_status::Objects;

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
}
