//! The endpoints that are set aside: TCP connections from this node to them failed, so they get no new ones for a while.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::Catalog;
use super::index::Index;
use super::record::{SliceContent, SliceRecord};
use super::store::{Id, Store};
use crate::Protocol;
use crate::object::ObjectKey;
use crate::selection::Endpoint;

/// The endpoints that are set aside, and the index that finds their EndpointSlices.
#[derive(Debug, Clone, Default)]
pub(super) struct Aside {
    /// Addresses and TCP ports.
    pub(super) sockets: BTreeSet<SocketAddr>,
    /// EndpointSlices with TCP ports, by the address of an endpoint. Made when connections to an endpoint fail for the first time,
    /// because it costs memory for each endpoint and passive health checks are optional.
    pub(super) slices: Option<Index>,
}

impl Aside {
    pub(super) fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    /// Returns true if the endpoint is set aside as one of a Service port of this protocol.
    pub(super) fn has(&self, protocol: Protocol, endpoint: &Endpoint) -> bool {
        protocol == Protocol::Tcp && self.sockets.contains(&endpoint.backend.socket())
    }

    /// Notes the addresses of an EndpointSlice that replaces another version of itself.
    pub(super) fn replace(&mut self, id: Id, before: Option<&SliceContent>, after: Option<&SliceContent>) {
        let Some(index) = &mut self.slices else { return };
        for address in before.into_iter().flat_map(SliceContent::tcp_addresses) {
            index.remove(&address, id);
        }
        for address in after.into_iter().flat_map(SliceContent::tcp_addresses) {
            index.insert(&address, id);
        }
    }

    /// Returns the EndpointSlices that may have this endpoint. Reads all of them the first time.
    fn slices_with(&mut self, socket: SocketAddr, slices: &Store<SliceRecord>) -> Vec<Id> {
        let index = self.slices.get_or_insert_with(|| {
            let addresses = || {
                let of = |(id, slice): (Id, &SliceRecord)| {
                    slice.content.tcp_addresses().into_iter().map(move |address| (address, id))
                };
                slices.iter().flat_map(of)
            };
            let mut index = Index::with_capacity(addresses().count());
            addresses().for_each(|(address, id)| index.insert(&address, id));
            index
        });
        index.candidates(&socket.ip()).collect()
    }
}

impl Catalog {
    /// Returns the number of endpoints that are set aside.
    pub fn aside_count(&self) -> usize {
        self.aside.sockets.len()
    }

    /// Sets these endpoints aside, and no others, as far as EndpointSlices have them. An endpoint goes on getting
    /// connections of a Service if all endpoints that the Service could use are set aside. Returns the endpoints that were
    /// added or removed, with each Service that has them.
    ///
    /// The cost is that of reading the EndpointSlices that have the added and removed endpoints. The first endpoint ever costs
    /// reading all.
    pub fn set_aside(&mut self, endpoints: BTreeSet<SocketAddr>) -> Vec<(SocketAddr, ObjectKey)> {
        let different: Vec<SocketAddr> =
            self.aside.sockets.symmetric_difference(&endpoints).copied().collect();
        let mut found: BTreeSet<(SocketAddr, Id)> = BTreeSet::new();
        for socket in different {
            for slice in self.aside.slices_with(socket, &self.slices) {
                let slice = self.slices.get(slice);
                let owner = slice.filter(|slice| slice.content.tcp_sockets().any(|known| known == socket));
                found.extend(owner.map(|slice| (socket, slice.owner)));
            }
        }
        for (_, owner) in &found {
            self.touch(*owner);
        }
        let is_found =
            |socket: &SocketAddr| found.range((*socket, Id::MIN)..=(*socket, Id::MAX)).next().is_some();
        let is_known = |socket: &SocketAddr| self.aside.sockets.contains(socket) || is_found(socket);
        self.aside.sockets = endpoints.into_iter().filter(is_known).collect();
        let with_service = |(socket, owner)| {
            let record = self.services.get(owner).filter(|record| record.service.is_some())?;
            Some((socket, record.key()))
        };
        found.into_iter().filter_map(with_service).collect()
    }
}
