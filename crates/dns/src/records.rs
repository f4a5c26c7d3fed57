//! The records of one Service, computed from the Service and its EndpointSlices.
//!
//! The records have no owner names: these follow from the Service's name and the cluster domain, which only [`crate::zone`]
//! knows. All sets are sorted, so equal objects give equal records in whatever order they came.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::rr::Name;

use crate::object::{Kind, Protocol, Service, Slice};

#[cfg(test)]
mod tests;

/// Maximum bytes of an `externalName`, as of any host name.
const MAX_EXTERNAL_NAME: usize = 253;

/// An SRV record of a Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Srv {
    /// Protocol, the second label of its owner.
    pub protocol: Protocol,
    /// Name of the port, the first label of its owner.
    pub port: Arc<str>,
    /// Number of the port.
    pub number: u16,
    /// Host of a headless Service that it leads to; `None` if it leads to the Service itself.
    pub host: Option<Arc<str>>,
}

/// The records of one Service. The default has none, which means that the Service's name does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Records {
    /// Addresses of the Service's name: its cluster IPs, or its endpoints if it is headless.
    pub addresses: Box<[IpAddr]>,
    /// Name that the Service's name is an alias of.
    pub alias: Option<Box<Name>>,
    /// SRV records, by protocol and port.
    pub srv: Box<[Srv]>,
    /// Addresses of each endpoint's name, if the Service is headless.
    pub hosts: BTreeMap<Arc<str>, Box<[IpAddr]>>,
}

impl Records {
    /// Computes the records of a Service. `slices` are those of this Service; only a headless one needs them.
    pub fn of<'a>(service: &Service, slices: impl IntoIterator<Item = &'a Slice>) -> Self {
        match &service.kind {
            Kind::ClusterIps(ips) => Self::of_cluster_ips(service, ips),
            Kind::Headless => Self::of_endpoints(service, slices),
            Kind::ExternalName(name) => Self { alias: external(name).map(Box::new), ..Self::default() },
            Kind::Unallocated => Self::default(),
        }
    }

    fn of_cluster_ips(service: &Service, ips: &[IpAddr]) -> Self {
        let named = service.ports.iter().filter(|port| !port.name.is_empty());
        let srv: BTreeSet<Srv> = named
            .map(|port| Srv {
                protocol: port.protocol,
                port: Arc::clone(&port.name),
                number: port.number,
                host: None,
            })
            .collect();
        let addresses: BTreeSet<IpAddr> = ips.iter().copied().collect();
        Self { addresses: addresses.into_iter().collect(), srv: srv.into_iter().collect(), ..Self::default() }
    }

    fn of_endpoints<'a>(service: &Service, slices: impl IntoIterator<Item = &'a Slice>) -> Self {
        let mut addresses = BTreeSet::new();
        let mut srv = BTreeSet::new();
        let mut hosts = BTreeMap::<Arc<str>, BTreeSet<IpAddr>>::new();
        for slice in slices {
            let named = || slice.ports.iter().filter(|port| !port.name.is_empty());
            let published =
                slice.endpoints.iter().filter(|endpoint| endpoint.ready || service.publish_not_ready);
            for endpoint in published {
                for address in &endpoint.addresses {
                    let host = endpoint.hostname.clone().unwrap_or_else(|| dashed(*address));
                    addresses.insert(*address);
                    srv.extend(named().map(|port| Srv {
                        protocol: port.protocol,
                        port: Arc::clone(&port.name),
                        number: port.number,
                        host: Some(Arc::clone(&host)),
                    }));
                    hosts.entry(host).or_default().insert(*address);
                }
            }
        }
        let hosts = hosts.into_iter().map(|(host, addresses)| (host, addresses.into_iter().collect()));
        Self {
            addresses: addresses.into_iter().collect(),
            alias: None,
            srv: srv.into_iter().collect(),
            hosts: hosts.collect(),
        }
    }

    /// Returns true if there are no records, so that the Service's name does not exist.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.alias.is_none()
    }

    /// Returns the SRV records of a port.
    pub fn srv_of(&self, protocol: Protocol, port: &str) -> &[Srv] {
        let start = self.srv.partition_point(|srv| (srv.protocol, &*srv.port) < (protocol, port));
        let rest = self.srv.get(start..).unwrap_or_default();
        let end = rest.partition_point(|srv| (srv.protocol, &*srv.port) <= (protocol, port));
        rest.get(..end).unwrap_or_default()
    }

    /// Returns true if a port with this protocol has SRV records, so that the name `_protocol` below the Service exists.
    pub fn has_protocol(&self, protocol: Protocol) -> bool {
        self.srv.iter().any(|srv| srv.protocol == protocol)
    }

    /// Returns the addresses that have a PTR record, each with the host that it leads to, or `None` if it leads to the
    /// Service itself.
    pub fn pointers(&self) -> impl Iterator<Item = (IpAddr, Option<&Arc<str>>)> {
        let of_service =
            self.addresses.iter().filter(|_| self.hosts.is_empty()).map(|address| (*address, None));
        let of_hosts = self
            .hosts
            .iter()
            .flat_map(|(host, addresses)| addresses.iter().map(move |address| (*address, Some(host))));
        of_service.chain(of_hosts)
    }
}

/// Returns the name of an endpoint that has no `hostname`: its address with hyphens. A hyphen at the start or the end,
/// which no host name may have, gets a zero beside it.
fn dashed(address: IpAddr) -> Arc<str> {
    let mut text = address.to_string().replace(['.', ':'], "-");
    if text.starts_with('-') {
        text.insert(0, '0');
    }
    if text.ends_with('-') {
        text.push('0');
    }
    text.into()
}

/// Returns the target of an alias, or `None` if there can be none: an address is no name, and an alias of the root is
/// of no use.
fn external(name: &str) -> Option<Name> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_address = name.parse::<IpAddr>().is_ok();
    if is_address || name.is_empty() || name.len() > MAX_EXTERNAL_NAME || !name.is_ascii() {
        return None;
    }
    let labels = name.split('.').map(str::as_bytes);
    Name::from_labels(labels).ok()
}
