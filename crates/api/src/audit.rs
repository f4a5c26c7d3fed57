//! The audit of a cluster: compares its Services, IPAddresses, ServiceCIDRs, node ports and Nodes with each other. In:
//! objects as JSON. Out: a [`Report`] for people or programs. The audit writes nothing: the server's repair loop acts
//! on the same findings, and an audit of another cluster only reports them.

mod report;
#[cfg(test)]
mod tests;

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use portolan_ipam::{
    AddressRange, Families, Family, NodePortRange, Nodes, ServiceKey,
    families::default_on_read,
    family::parse_address,
    repair::{self, AddressObject, Audit, Observed, Parent, ServiceObject, Sightings},
};
use portolan_schema::json::{self, Object};

pub use self::report::Report;
use crate::{
    allocate::{BALANCER, FAMILY, MANAGED_BY, MANAGER, Reading, is_ours, listed},
    config::{LoadBalancerRanges, ServiceRanges},
    kinds::{node::networks, service},
    metadata::parse_time,
};

/// The objects of a cluster that concern cluster IPs and node ports, at one moment.
#[derive(Debug, Clone)]
pub struct Cluster {
    families: Option<Families>,
    port_range: NodePortRange,
    services: Vec<ServiceObject>,
    addresses: Option<Vec<AddressObject>>,
    ranges: Vec<AddressRange>,
    load_balancers: Option<LoadBalancerRanges>,
    nodes: Arc<Nodes>,
    recorded_ports: Option<Vec<u16>>,
}

impl Cluster {
    /// Creates an empty cluster. Its families are those of the ranges, unless they are set.
    pub fn new(port_range: NodePortRange) -> Self {
        Self {
            families: None,
            port_range,
            services: Vec::new(),
            addresses: None,
            ranges: Vec::new(),
            load_balancers: None,
            nodes: Arc::default(),
            recorded_ports: None,
        }
    }

    /// Sets the configured families.
    #[must_use]
    pub fn with_families(self, families: Families) -> Self {
        Self { families: Some(families), ..self }
    }

    /// Sets the ranges of load-balancer addresses. Without this call, only recorded addresses are compared with Services.
    #[must_use]
    pub fn with_load_balancers(self, ranges: LoadBalancerRanges) -> Self {
        Self { load_balancers: Some(ranges), ..self }
    }

    /// Sets the node ports that are recorded as allocated. Without this call, the ports of Services are only compared
    /// with each other.
    #[must_use]
    pub fn with_recorded_ports(self, ports: Vec<u16>) -> Self {
        Self { recorded_ports: Some(ports), ..self }
    }

    /// Sets the Nodes.
    #[must_use]
    pub fn with_nodes(self, nodes: Arc<Nodes>) -> Self {
        Self { nodes, ..self }
    }

    /// Adds a Service.
    pub fn add_service(&mut self, object: &Object) {
        let mut object = object.clone();
        service::set_defaults(&mut object);
        let metadata = json::object(&object, "metadata").cloned().unwrap_or_default();
        let text = |key| json::text(&metadata, key).unwrap_or_default();
        let spec = json::object(&object, "spec").map(|spec| Reading::of(spec).spec).unwrap_or_default();
        let key = ServiceKey::new(text("namespace"), text("name"));
        let load_balancer = if is_ours(&object) { listed(&object) } else { Vec::new() };
        self.services.push(ServiceObject { key, spec, load_balancer, created: created(&metadata) });
    }

    /// Adds an IPAddress. An object whose name is not an address is ignored. If the cluster has none at all, call
    /// [`Cluster::knows_addresses`].
    pub fn add_address(&mut self, object: &Object) {
        let metadata = json::object(object, "metadata").cloned().unwrap_or_default();
        let Some(address) = json::text(&metadata, "name").and_then(parse_address) else { return };
        let label = |key| json::object(&metadata, "labels").and_then(|labels| json::text(labels, key));
        let object = AddressObject {
            address,
            parent: parent(object),
            is_managed: label(MANAGED_BY) == Some(MANAGER),
            is_load_balancer: label(MANAGED_BY) == Some(BALANCER),
            has_family_label: label(FAMILY) == Some(Family::of(address).name()),
            created: created(&metadata),
        };
        self.addresses.get_or_insert_default().push(object);
    }

    /// States that all IPAddresses have been added, even if there are none. Without it and without any IPAddress, the
    /// addresses of Services are only compared with each other.
    pub fn knows_addresses(&mut self) {
        self.addresses.get_or_insert_default();
    }

    /// Adds the ranges of a ServiceCIDR.
    pub fn add_service_cidr(&mut self, object: &Object) {
        let texts = json::object(object, "spec").into_iter().flat_map(|spec| json::texts(spec, "cidrs"));
        for range in texts.filter_map(|text| AddressRange::new(text.parse().ok()?).ok()) {
            self.add_range(range);
        }
    }

    /// Adds a Node.
    pub fn add_node(&mut self, object: &Object) {
        let metadata = json::object(object, "metadata");
        let name = metadata.and_then(|metadata| json::text(metadata, "name")).unwrap_or_default();
        Arc::make_mut(&mut self.nodes).set(name, networks(object));
    }

    fn add_range(&mut self, range: AddressRange) {
        self.ranges.push(range);
    }

    /// Adds the ranges of `--service-cluster-ip-range`, for a cluster without ServiceCIDRs.
    pub fn add_configured(&mut self, ranges: &ServiceRanges) {
        for range in ranges.iter().filter_map(|range| AddressRange::new(range).ok()) {
            self.add_range(range);
        }
    }

    /// Audits a cluster that is seen for the first time. `notes` name what could not be examined.
    pub fn report(self, now: SystemTime, notes: Vec<String>) -> Report {
        let counts = self.counts();
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Report::new(self.audit(now, &Sightings::default()), counts, notes)
    }

    /// Returns the number of Services and of IPAddresses.
    pub fn counts(&self) -> (usize, usize) {
        (self.services.len(), self.addresses.as_ref().map_or(0, Vec::len))
    }

    /// Compares all objects. `now` is in seconds since 1970; `before` counts the sightings of leaked node
    /// ports so far.
    pub fn audit(mut self, now: u64, before: &Sightings) -> Audit {
        let families = self.families.or_else(|| families_of(&self.ranges));
        let families = families.unwrap_or(Families::single(Family::Ipv4));
        for service in &mut self.services {
            default_on_read(&mut service.spec, families.primary());
        }
        self.services.sort_by(|one, other| (one.created, &one.key).cmp(&(other.created, &other.key)));
        let recorded_ports = self
            .recorded_ports
            .unwrap_or_else(|| self.services.iter().flat_map(|service| service.spec.held_ports()).collect());
        // Without IPAddresses, nothing records load-balancer addresses.
        let load_balancers = self.load_balancers.filter(|_| self.addresses.is_some());
        let addresses = self.addresses.unwrap_or_else(|| assumed(&self.services));
        let observed = Observed {
            services: &self.services,
            addresses: &addresses,
            ranges: &self.ranges,
            load_balancers: load_balancers.as_deref(),
            nodes: &self.nodes,
            families,
            port_range: self.port_range,
            recorded_ports: &recorded_ports,
            now,
        };
        repair::audit(&observed, before)
    }
}

/// Returns the IPAddresses that are assumed for a cluster without any: each address belongs to the oldest Service
/// that lists it.
fn assumed(services: &[ServiceObject]) -> Vec<AddressObject> {
    let mut seen = std::collections::HashSet::new();
    let held = services
        .iter()
        .flat_map(|service| service.spec.addresses().into_iter().map(move |address| (address, service)));
    held.filter(|(address, _)| seen.insert(*address))
        .map(|(address, service)| AddressObject {
            address,
            parent: Parent::Service(service.key.clone()),
            is_managed: true,
            is_load_balancer: false,
            has_family_label: true,
            created: service.created,
        })
        .collect()
}

fn families_of(ranges: &[AddressRange]) -> Option<Families> {
    let primary = ranges.first()?.family();
    let is_dual = ranges.iter().any(|range| range.family() != primary);
    Some(if is_dual { Families::dual(primary) } else { Families::single(primary) })
}

fn parent(object: &Object) -> Parent {
    let empty = Object::new();
    let spec = json::object(object, "spec").unwrap_or(&empty);
    let parent = json::object(spec, "parentRef").unwrap_or(&empty);
    let text = |key| json::text(parent, key).unwrap_or_default();
    match (text("group"), text("resource")) {
        ("", "services") => Parent::Service(ServiceKey::new(text("namespace"), text("name"))),
        _ => Parent::Other,
    }
}

fn created(metadata: &Object) -> u64 {
    json::text(metadata, "creationTimestamp").and_then(parse_time).unwrap_or(0)
}
