//! What the Catalog keeps of the objects, for reports: enough to build an equal Catalog from it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::record::{ServiceRecord, SliceRecord};
use super::{ApiServer, Catalog};
use crate::Family;
use crate::object::{ObjectKey, Service, SlicePort};
use crate::selection::Endpoint;

/// A Service that is proxied.
#[derive(Debug, Clone, Copy)]
pub struct KeptService<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its content.
    pub service: &'a Service,
}

/// An EndpointSlice.
#[derive(Debug, Clone)]
pub struct KeptSlice<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// The name of its Service.
    pub service: &'a str,
    /// The family of its addresses.
    pub family: Family,
    /// Its ports.
    pub ports: &'a [SlicePort],
    /// Its endpoints, in the given order.
    pub endpoints: Vec<KeptEndpoint>,
}

/// An endpoint of an EndpointSlice. Its node is kept only as far as [`Endpoint`] shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptEndpoint {
    /// The address, with port 0, the conditions and the hints as seen from this node.
    pub endpoint: Endpoint,
    /// The zones of `hints.forZones`, sorted. `None` if there are no such hints.
    pub zone_hints: Option<Arc<[Box<str>]>>,
}

impl KeptEndpoint {
    /// Returns true if the endpoint names no node.
    pub const fn lacks_node(&self) -> bool {
        // The Catalog lets both kinds return to their own source.
        self.endpoint.backend.may_hairpin && !self.endpoint.local
    }
}

impl Catalog {
    /// Iterates over the Services that are proxied, in no particular order.
    pub fn kept_services(&self) -> impl Iterator<Item = KeptService<'_>> {
        self.services.iter().filter_map(|(_, record)| kept_service(record))
    }

    /// Returns a Service, if it is proxied.
    pub fn kept_service(&self, key: &ObjectKey) -> Option<KeptService<'_>> {
        let id = self.services.find(&key.namespace, &key.name)?;
        kept_service(self.services.get(id)?)
    }

    /// Iterates over the EndpointSlices. Those of a Service are in the order in which they were added, which decides what is
    /// listed first of equal endpoints.
    pub fn kept_slices(&self) -> impl Iterator<Item = KeptSlice<'_>> {
        let ids = self.services.iter().flat_map(|(_, record)| record.slices.as_slice());
        ids.filter_map(|id| self.kept(self.slices.get(*id)?))
    }

    /// Returns an EndpointSlice.
    pub fn kept_slice(&self, key: &ObjectKey) -> Option<KeptSlice<'_>> {
        let id = self.slices.find(&key.namespace, &key.name)?;
        self.kept(self.slices.get(id)?)
    }

    /// Iterates over the ServiceCIDRs, in no particular order.
    pub fn kept_service_cidrs(&self) -> impl Iterator<Item = (&ObjectKey, &[IpNet])> {
        self.cidrs.iter().map(|(key, record)| (key, record.cidrs.as_slice()))
    }

    /// Returns where this node reaches the API server, as set by [`Catalog::set_api_server`].
    pub const fn api_server(&self) -> &ApiServer {
        &self.api_server
    }

    /// Returns the addresses and TCP ports of the endpoints that are set aside, as set by [`Catalog::set_aside`].
    pub const fn aside(&self) -> &BTreeSet<SocketAddr> {
        &self.aside.sockets
    }

    fn kept<'a>(&'a self, record: &'a SliceRecord) -> Option<KeptSlice<'a>> {
        let SliceRecord { namespace, name, owner, content, .. } = record;
        let zone = self.node.as_ref().and_then(|node| node.zone.as_deref());
        let explained = content.explained(0, zone).into_iter();
        Some(KeptSlice {
            namespace,
            name,
            service: &self.services.get(*owner)?.name,
            family: content.family(),
            ports: &content.ports,
            endpoints: explained
                .map(|(endpoint, zone_hints)| KeptEndpoint { endpoint, zone_hints })
                .collect(),
        })
    }
}

fn kept_service(record: &ServiceRecord) -> Option<KeptService<'_>> {
    let service = record.service.as_ref()?;
    Some(KeptService { namespace: &record.namespace, name: &record.name, service })
}
