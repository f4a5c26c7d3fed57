//! The endpoints that are set aside: TCP connections from this node to them failed, so they get no new ones for a while.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::Catalog;
use super::store::Id;
use crate::Protocol;
use crate::object::ObjectKey;
use crate::selection::Endpoint;

/// Addresses and TCP ports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Aside(BTreeSet<SocketAddr>);

impl Aside {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the endpoint is set aside as one of a Service port of this protocol.
    pub(super) fn has(&self, protocol: Protocol, endpoint: &Endpoint) -> bool {
        protocol == Protocol::Tcp && self.0.contains(&endpoint.backend.socket())
    }
}

impl Catalog {
    /// Returns the number of endpoints that are set aside.
    pub fn aside_count(&self) -> usize {
        self.aside.0.len()
    }

    /// Sets these endpoints aside, and no others, as far as EndpointSlices have them. An endpoint goes on getting
    /// connections of a Service if all endpoints that the Service could use are set aside. Returns the endpoints that were
    /// added or removed, with each Service that has them.
    ///
    /// The cost is that of reading all EndpointSlices, if anything changes.
    pub fn set_aside(&mut self, endpoints: BTreeSet<SocketAddr>) -> Vec<(SocketAddr, ObjectKey)> {
        let different: BTreeSet<SocketAddr> =
            self.aside.0.symmetric_difference(&endpoints).copied().collect();
        if different.is_empty() {
            return Vec::new();
        }
        let mut found: BTreeSet<(SocketAddr, Id)> = BTreeSet::new();
        for (_, slice) in self.slices.iter() {
            let sockets = slice.content.tcp_sockets().filter(|socket| different.contains(socket));
            found.extend(sockets.map(|socket| (socket, slice.owner)));
        }
        for (_, owner) in &found {
            self.touch(*owner);
        }
        let is_found =
            |socket: &SocketAddr| found.range((*socket, Id::MIN)..=(*socket, Id::MAX)).next().is_some();
        let is_known = |socket: &SocketAddr| self.aside.0.contains(socket) || is_found(socket);
        self.aside = Aside(endpoints.into_iter().filter(is_known).collect());
        let with_service = |(socket, owner)| {
            let record = self.services.get(owner).filter(|record| record.service.is_some())?;
            Some((socket, record.key()))
        };
        found.into_iter().filter_map(with_service).collect()
    }
}
