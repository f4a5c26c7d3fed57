//! Measures the kernel's part alone: the Catalog and the nftables data plane run in this process, in a namespace of
//! their own, with the same objects.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::ensure;
use portolan_engine::Driven;
use portolan_engine::Error;
use portolan_model::object::{Kind, decode_endpoint_slice, decode_node, decode_service};
use portolan_model::{Catalog, Change, Event, Family, LocalDetector, NodePortAddresses, Settings};
use portolan_nftables::Nftables;
use portolan_testkit::Namespace;
use serde_json::Value;

use crate::statistics::Sample;
use crate::workload::{self, NODE, Size};

/// Changes that are applied at once at the start, as in the proxy.
const CHUNK: usize = 1_024;

/// Times from the first byte sent of a transaction to the last acknowledgement read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Commits {
    /// The first load.
    pub(crate) first: Duration,
    /// One endpoint change.
    pub(crate) changes: Sample,
}

/// Commits the whole table, then `count` changes of one endpoint each, with or without counters of Services.
pub(crate) fn measure(size: Size, count: usize, counters: bool) -> anyhow::Result<Commits> {
    Namespace::new("kernel")?.run(|| {
        let mut catalog = catalog(size)?;
        let settings = Settings { counters, ..settings() };
        let mut dataplane = Driven::new(settings.clone(), Nftables::open(settings)?);
        table(&mut catalog, |changes| dataplane.apply(changes).map(drop))?;
        let first = dataplane.resync()?.kernel;
        let changes = (0..count).map(|round| change(&mut catalog, &mut dataplane, &size.change(round)));
        let changes = changes.collect::<anyhow::Result<Sample>>()?;
        dataplane.remove()?;
        Ok(Commits { first, changes })
    })?
}

/// Passes all forwardings of a Catalog to `take`.
pub(crate) fn table(
    catalog: &mut Catalog,
    mut take: impl FnMut(&[Change]) -> Result<(), Error>,
) -> Result<(), Error> {
    catalog.drain_changes(|_| {});
    let mut chunk = Vec::with_capacity(CHUNK);
    for (name, forwarding) in catalog.forwardings(Family::Ipv4) {
        chunk.push(Change { name, family: Family::Ipv4, old: None, new: Some(forwarding) });
        if chunk.len() == CHUNK {
            take(&chunk)?;
            chunk.clear();
        }
    }
    take(&chunk)
}

fn change(
    catalog: &mut Catalog,
    dataplane: &mut Driven<Nftables>,
    slice: &Value,
) -> anyhow::Result<Duration> {
    catalog.apply(endpoint_slice(slice)?);
    let changes = catalog.take_changes().changes;
    ensure!(changes.len() == 1, "one endpoint change is {} changes", changes.len());
    let commit = dataplane.apply(&changes)?;
    ensure!(commit.elements > 0 && !commit.full, "one endpoint change is no single commit: {commit:?}");
    Ok(commit.kernel)
}

/// Returns a Catalog of that size.
pub(crate) fn catalog(size: Size) -> anyhow::Result<Catalog> {
    let mut catalog = Catalog::new(NODE);
    let node = workload::node(IpAddr::V4(Ipv4Addr::new(192, 168, 100, 1)));
    catalog.apply(Event::Node(decode_node(node.to_string().as_bytes())?));
    catalog.apply(Event::ListStart(Kind::Service));
    for service in size.services() {
        catalog.apply(Event::Service(decode_service(service.to_string().as_bytes())?));
    }
    catalog.apply(Event::ListEnd(Kind::Service));
    catalog.apply(Event::ListStart(Kind::EndpointSlice));
    for slice in size.slices() {
        catalog.apply(endpoint_slice(&slice)?);
    }
    catalog.apply(Event::ListEnd(Kind::EndpointSlice));
    catalog.apply(Event::ServiceCidrsUnavailable);
    ensure!(catalog.synced(), "the objects are no complete state");
    Ok(catalog)
}

/// Decodes an EndpointSlice as the API server sends it.
pub(crate) fn endpoint_slice(slice: &Value) -> anyhow::Result<Event> {
    Ok(Event::EndpointSlice(decode_endpoint_slice(slice.to_string().as_bytes())?))
}

/// Returns the settings of the data plane.
pub(crate) fn settings() -> Settings {
    Settings {
        family: Family::Ipv4,
        local_detector: LocalDetector::Cidr(
            ipnet::Ipv4Net::new_assert(Ipv4Addr::new(10, 128, 0, 0), 9).into(),
        ),
        masquerade_all: false,
        masquerade_bit: 14,
        node_port_addresses: NodePortAddresses::MatchAll,
        node_ip: None,
        service_cidrs: vec![ipnet::Ipv4Net::new_assert(Ipv4Addr::new(10, 96, 0, 0), 12).into()],
        counters: false,
    }
}
