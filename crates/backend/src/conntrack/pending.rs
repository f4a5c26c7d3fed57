//! The pending requests of one family, coalesced by Service port.

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

    /// Adds requests. They replace older ones for the same Service ports.
    pub(super) fn add(&mut self, services: Vec<UdpService>) {
        for service in services {
            self.services.insert(Arc::clone(&service.name), (self.next, service));
            self.next = self.next.saturating_add(1);
        }
    }

    /// Adds failed requests again. Newer requests for the same Service ports stay, and come after them.
    pub(super) fn put_back(&mut self, mut services: Vec<UdpService>) {
        services.retain(|service| !self.services.contains_key(&service.name));
        let newer = self.take();
        self.add(services);
        self.add(newer);
    }

    /// Removes and returns all requests, in the order of their arrival.
    pub(super) fn take(&mut self) -> Vec<UdpService> {
        // The map's memory is freed, too: after the first load it is large.
        let mut services: Vec<_> = std::mem::take(&mut self.services).into_values().collect();
        services.sort_unstable_by_key(|(number, _)| *number);
        self.next = 0;
        services.into_iter().map(|(_, service)| service).collect()
    }

    /// Returns the requests, in the order of their arrival.
    pub(super) fn services(&self) -> impl Iterator<Item = &UdpService> {
        let mut services: Vec<_> = self.services.values().collect();
        services.sort_unstable_by_key(|(number, _)| *number);
        services.into_iter().map(|(_, service)| service)
    }
}
