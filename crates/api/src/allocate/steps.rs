//! Converts a plan into the steps of a transaction.

use std::net::IpAddr;

use portolan_ipam::{Claims, ServiceKey};
use portolan_schema::Resource;
use portolan_store::{Step, Store};

use super::{Ledger, records};

impl Ledger {
    /// Returns steps that require the ServiceCIDRs of new addresses to be unchanged, so that no Service gets an address
    /// from one that is being deleted meanwhile.
    pub(crate) fn require_ranges<'a>(&self, addresses: impl IntoIterator<Item = &'a IpAddr>) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        for address in addresses {
            let mut sources = self.cidrs.iter().filter(|cidr| cidr.is_ready);
            let source = sources.find(|cidr| cidr.ranges.iter().any(|range| range.accepts(*address)));
            if let Some(cidr) = source
                && !steps.iter().any(|step| step.key() == &*cidr.name)
            {
                steps.push(Step::Require {
                    resource: Resource::ServiceCidr,
                    key: cidr.name.clone(),
                    expected: Some(cidr.revision),
                });
            }
        }
        steps
    }
}

/// Returns the steps that write the objects of taken addresses and ports and remove those of released ones.
pub(crate) fn exchange(store: &dyn Store, owner: &ServiceKey, take: &Claims, release: &Claims) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for address in &take.addresses {
        let draft = records::address_draft(*address, owner);
        steps.push(Step::Put { resource: Resource::IpAddress, draft, expected: None });
    }
    for address in &take.load_balancer {
        let draft = records::load_balancer_draft(*address, owner);
        steps.push(Step::Put { resource: Resource::IpAddress, draft, expected: None });
    }
    for port in &take.ports {
        let draft = records::port_draft(*port, owner);
        steps.push(Step::Put { resource: Resource::NodePort, draft, expected: None });
    }
    let addresses = release.addresses.iter().chain(&release.load_balancer);
    let addresses = addresses.map(|address| (Resource::IpAddress, address.to_string()));
    let ports = release.ports.iter().map(|port| (Resource::NodePort, port.to_string()));
    for (resource, key) in addresses.chain(ports) {
        if let Some(object) = store.latest(resource, &key) {
            steps.push(Step::Remove { resource, key: key.into(), expected: object.revision() });
        }
    }
    steps
}

/// Returns steps for addresses and ports that are recorded for the Service but not in its spec yet, such as an
/// IPAddress that was created by hand. The existing objects must stay unchanged; missing ones are created.
pub(crate) fn hold(store: &dyn Store, owner: &ServiceKey, find: &Claims) -> Vec<Step> {
    let step = |resource, key: String, draft| match store.latest(resource, &key) {
        Some(object) => {
            Step::Require { resource, key: object.key().into(), expected: Some(object.revision()) }
        }
        None => Step::Put { resource, draft, expected: None },
    };
    let addresses = find.addresses.iter().map(|address| {
        step(Resource::IpAddress, address.to_string(), records::address_draft(*address, owner))
    });
    let ports = find
        .ports
        .iter()
        .map(|port| step(Resource::NodePort, port.to_string(), records::port_draft(*port, owner)));
    addresses.chain(ports).collect()
}
