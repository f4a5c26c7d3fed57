//! Requests of one family that wait, coalesced by Service port.

use std::collections::HashMap;
use std::sync::Arc;

use portolan_model::ServicePortName;
use portolan_model::catalog::UdpService;

/// At most one request for each Service port: the latest.
#[derive(Debug, Default)]
pub(super) struct Pending {
    services: HashMap<Arc<ServicePortName>, (u64, UdpService)>,
    next: u64,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// Queues requests; they replace older ones for the same Service ports.
    pub(super) fn add(&mut self, services: Vec<UdpService>) {
        for service in services {
            self.services.insert(Arc::clone(&service.name), (self.next, service));
            self.next = self.next.saturating_add(1);
        }
    }

    /// Queues requests again that failed; newer ones for the same Service ports stay, and stay later.
    pub(super) fn put_back(&mut self, mut services: Vec<UdpService>) {
        services.retain(|service| !self.services.contains_key(&service.name));
        let newer = self.take();
        self.add(services);
        self.add(newer);
    }

    /// All that is queued, in the order in which it came.
    pub(super) fn take(&mut self) -> Vec<UdpService> {
        // The map goes too: after the first load it is large.
        let mut services: Vec<_> = std::mem::take(&mut self.services).into_values().collect();
        services.sort_unstable_by_key(|(number, _)| *number);
        self.next = 0;
        services.into_iter().map(|(_, service)| service).collect()
    }

    /// The requests, in the order in which they came.
    pub(super) fn services(&self) -> impl Iterator<Item = &UdpService> {
        let mut services: Vec<_> = self.services.values().collect();
        services.sort_unstable_by_key(|(number, _)| *number);
        services.into_iter().map(|(_, service)| service)
    }
}
