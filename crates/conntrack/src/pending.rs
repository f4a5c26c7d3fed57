//! The pending requests of one family, coalesced by Service port.

use std::sync::Arc;

use portolan_model::ServicePortName;
use portolan_model::catalog::UdpService;

use portolan_mailbox::Latest;

/// At most one request for each Service port: the latest.
#[derive(Debug, Default)]
pub(super) struct Pending {
    services: Latest<Arc<ServicePortName>, UdpService>,
}

impl Pending {
    /// Returns true if no request is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// Adds requests. They replace older ones for the same Service ports.
    pub(super) fn add(&mut self, services: Vec<UdpService>) {
        for service in services {
            self.services.insert(Arc::clone(&service.name), service);
        }
    }

    /// Adds requests again that failed. Newer ones for the same Service ports stay, and stay later.
    pub(super) fn put_back(&mut self, mut services: Vec<UdpService>) {
        services.retain(|service| !self.services.contains(&service.name));
        let newer = self.take();
        self.add(services);
        self.add(newer);
    }

    /// Removes and returns all requests, in the order in which they came.
    pub(super) fn take(&mut self) -> Vec<UdpService> {
        self.services.take()
    }

    /// The requests, in the order in which they came.
    pub(super) fn services(&self) -> impl Iterator<Item = &UdpService> {
        self.services.values()
    }
}
