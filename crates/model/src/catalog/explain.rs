//! Explains a Service port: which endpoints serve, and why the others do not.

use std::sync::Arc;

use super::Catalog;
use crate::object::EndpointSlice;
use crate::selection::Explanation;
use crate::{Family, Forwarding, ServicePortName};

/// A Service port in one family, with the reasons of its endpoint selection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedPort {
    /// The name.
    pub name: Arc<ServicePortName>,
    /// The forwarding, as in the table.
    pub forwarding: Arc<Forwarding>,
    /// Every endpoint with the reasons why it serves or not.
    pub selection: Explanation<SliceOf>,
}

/// Where an endpoint is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceOf {
    /// The name of the EndpointSlice, in the Service's namespace.
    pub slice: Box<str>,
    /// The zones of `hints.forZones`, sorted. `None` if there are no such hints.
    pub zone_hints: Option<Arc<[Box<str>]>>,
    /// The name of the endpoint's node. `None` if it is missing or not known: the Catalog keeps only whether an
    /// endpoint is on this node, and [`ExplainedPort::name_nodes`] adds the names.
    pub node: Option<Box<str>>,
}

impl ExplainedPort {
    /// Adds the node names of the endpoints that a slice lists. `slice` is the name of the object. An address that it
    /// lists on several nodes gets no name.
    pub fn name_nodes(&mut self, slice: &str, object: &EndpointSlice) {
        for explained in
            self.selection.endpoints.iter_mut().filter(|explained| *explained.from.slice == *slice)
        {
            let address = explained.endpoint.backend.address;
            let mut nodes = object
                .endpoints
                .iter()
                .filter(|listed| listed.address == address)
                .map(|listed| object.node(listed));
            let first = nodes.next().flatten();
            explained.from.node = first.filter(|_| nodes.all(|other| other == first)).map(Into::into);
        }
    }
}

impl Catalog {
    /// Returns a Service port of a family with the reasons of its endpoint selection, or `None` if the table does not
    /// have it. Nothing is stored for this: the cost is that of compiling the Service.
    pub fn explain(&self, name: &ServicePortName, family: Family) -> Option<ExplainedPort> {
        let id = self.services.find(&name.namespace, &name.service)?;
        let compiler = self.compiler();
        let ports = compiler.named(id, family);
        let (name, forwarding) = ports.into_iter().find(|(known, _)| **known == *name)?;
        let selection = compiler.explanation(id, &name, family)?;
        Some(ExplainedPort { name, forwarding, selection })
    }
}
