//! The set elements of a Service port.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use portolan_model::table::Disposition;
use portolan_model::{Backend, ExternalPolicy, Forwarding, Frontend, InternalPolicy, Protocol};

use super::class::{Balance, Class};
use super::element::{Data, Element, Key, Set, endpoint_data, node_port_key, service_key};
use super::placement::{Placement, Slots};
use super::value::{LOCAL_OFFSET, Value};

/// The classes of a Service port's internal and external traffic. `None` if that traffic is not forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ClassPair {
    pub(crate) internal: Option<Class>,
    pub(crate) external: Option<Class>,
}

impl ClassPair {
    #[expect(clippy::cast_possible_truncation, reason = "a placement has at most 65,535 endpoints")]
    pub(crate) fn of(forwarding: &Forwarding, placement: &Placement) -> Self {
        let balance = |local: bool| {
            let order = if local { placement.local() } else { &placement.cluster };
            let backends = u16::try_from(order.len()).ok().filter(|&n| n > 0)?;
            Some(Balance { local, backends, affinity: forwarding.affinity })
        };
        let internal = forwarding
            .frontends
            .iter()
            .any(|frontend| matches!(frontend, Frontend::ClusterIp(..)))
            .then(|| balance(forwarding.internal_policy == InternalPolicy::Local))
            .flatten()
            .map(Class::Internal);
        let external = forwarding.externally_accessible().then(|| balance(false)).flatten().map(|cluster| {
            match forwarding.external_policy {
                ExternalPolicy::Cluster => Class::External(cluster),
                ExternalPolicy::Local => Class::ExternalLocal(cluster, placement.local().len() as u16),
            }
        });
        Self { internal, external }
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Class> {
        self.internal.into_iter().chain(self.external)
    }
}

/// The set values of the two classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Values {
    pub(crate) internal: Option<Value>,
    pub(crate) external: Option<Value>,
}

/// The parts of the settings that decide about the elements of a Service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContentOptions {
    pub(crate) node_ip: Option<IpAddr>,
    pub(crate) slots: Slots,
    /// True if elements count.
    pub(crate) counters: bool,
}

/// Returns the elements that belong to this Service port alone, sorted by set and key.
pub(crate) fn elements(
    forwarding: &Forwarding,
    placement: &Placement,
    id: u32,
    values: Values,
    options: ContentOptions,
) -> Vec<Element> {
    let mut elements = Vec::with_capacity(
        forwarding.frontends.len() * 2 + forwarding.cluster.len() + forwarding.local.len(),
    );
    for frontend in &forwarding.frontends {
        push_frontend(&mut elements, forwarding, *frontend, values);
        push_source_ranges(&mut elements, forwarding, *frontend, options);
    }
    if values != Values::default() {
        push_backends(&mut elements, forwarding, placement, id, options.slots);
        if options.counters {
            elements.push(plain(Set::ServiceCounters, Key::EMPTY.number(Value::new(id, 0).0)));
        }
    }
    elements.sort_unstable();
    elements.dedup_by(|a, b| (a.set, a.key, a.key_end) == (b.set, b.key, b.key_end));
    elements
}

/// Returns the cluster IPs of a Service port. The other ports of the Service have the same ones.
pub(crate) fn cluster_ips(forwarding: &Forwarding) -> impl Iterator<Item = IpAddr> {
    forwarding.frontends.iter().filter_map(|frontend| match frontend {
        Frontend::ClusterIp(address, _) => Some(*address),
        _ => None,
    })
}

/// Returns the endpoints that may reach themselves through this Service port. Other Service ports may have the same
/// ones.
pub(crate) fn hairpins(forwarding: &Forwarding) -> impl Iterator<Item = (Protocol, SocketAddr)> {
    let mut backends: Vec<SocketAddr> = forwarding
        .cluster
        .iter()
        .chain(&forwarding.local)
        .filter(|backend| backend.may_hairpin)
        .map(Backend::socket)
        .collect();
    backends.sort_unstable();
    backends.dedup();
    let protocol = forwarding.protocol;
    backends.into_iter().map(move |socket| (protocol, socket))
}

/// Returns the element of [`Set::HairpinConnections`] for an endpoint.
pub(crate) fn hairpin_element(protocol: Protocol, endpoint: SocketAddr) -> Element {
    let key =
        Key::EMPTY.address(endpoint.ip()).address(endpoint.ip()).protocol(protocol).port(endpoint.port());
    plain(Set::HairpinConnections, key)
}

/// Returns the element of [`Set::ClusterIps`] for an address.
pub(crate) fn cluster_ip_element(address: IpAddr) -> Element {
    plain(Set::ClusterIps, Key::EMPTY.address(address))
}

/// Returns the element of [`Set::NodePortIps`] for an address.
pub(crate) fn node_port_ip_element(address: IpAddr) -> Element {
    plain(Set::NodePortIps, Key::EMPTY.address(address))
}

fn plain(set: Set, key: Key) -> Element {
    Element { set, key, key_end: None, data: Data::EMPTY }
}

/// Returns the key of a frontend, and true if it is that of a node port.
pub(crate) fn frontend_key(frontend: Frontend, protocol: Protocol) -> (Key, bool) {
    match frontend {
        Frontend::ClusterIp(ip, port)
        | Frontend::ExternalIp(ip, port)
        | Frontend::LoadBalancerIp(ip, port) => (service_key(ip, protocol, port), false),
        Frontend::NodePort(port) => (node_port_key(protocol, port), true),
    }
}

fn push_frontend(elements: &mut Vec<Element>, forwarding: &Forwarding, frontend: Frontend, values: Values) {
    let (key, node_port) = frontend_key(frontend, forwarding.protocol);
    let internal = matches!(frontend, Frontend::ClusterIp(..));
    if let Some(value) = if internal { values.internal } else { values.external } {
        let set = if node_port { Set::NodePorts } else { Set::Services };
        elements.push(Element { set, key, key_end: None, data: Data::EMPTY.number(value.0) });
    }
    let outcome = if internal { forwarding.internal() } else { forwarding.external() };
    let refusal = match (outcome, node_port) {
        (Disposition::Backends(_), _) => None,
        (Disposition::Reject, false) => Some(Set::NoEndpointServices),
        (Disposition::Drop, false) => Some(Set::NoLocalEndpointServices),
        (Disposition::Reject, true) => Some(Set::NoEndpointNodePorts),
        (Disposition::Drop, true) => Some(Set::NoLocalEndpointNodePorts),
    };
    elements.extend(refusal.map(|set| plain(set, key)));
}

/// Returns true if the source addresses of a Service port's packets are checked.
pub(crate) fn has_source_ranges(forwarding: &Forwarding) -> bool {
    let is_checked = |frontend: &Frontend| matches!(frontend, Frontend::LoadBalancerIp(..));
    !forwarding.source_ranges.is_empty() && forwarding.frontends.iter().any(is_checked)
}

/// Adds the source ranges of a load-balancer IP. If they allow this node, the Service's load-balancer IPs are allowed
/// as sources, too: the node's packets may have such an IP as their source address.
fn push_source_ranges(
    elements: &mut Vec<Element>,
    forwarding: &Forwarding,
    frontend: Frontend,
    options: ContentOptions,
) {
    let Frontend::LoadBalancerIp(address, port) = frontend else { return };
    let ranges = &forwarding.source_ranges;
    if ranges.is_empty() {
        return;
    }
    let key = service_key(address, forwarding.protocol, port);
    elements.push(plain(Set::FirewallIps, key));
    if options.counters {
        elements.push(plain(Set::SourceRangeDrops, key));
    }
    elements.extend(ranges.iter().map(|range| source_range(key, *range)));
    if options.node_ip.is_some_and(|ip| contains(ranges, ip)) {
        let own = forwarding.frontends.iter().filter_map(|frontend| match frontend {
            Frontend::LoadBalancerIp(ip, _) if !contains(ranges, *ip) => Some(IpNet::from(*ip)),
            _ => None,
        });
        elements.extend(own.map(|range| source_range(key, range)));
    }
}

fn contains(ranges: &[IpNet], address: IpAddr) -> bool {
    ranges.iter().any(|range| range.contains(&address))
}

fn source_range(key: Key, range: IpNet) -> Element {
    Element {
        set: Set::SourceRanges,
        key: key.address(range.network()),
        key_end: Some(key.address(range.broadcast())),
        data: Data::EMPTY,
    }
}

fn push_backends(
    elements: &mut Vec<Element>,
    forwarding: &Forwarding,
    placement: &Placement,
    id: u32,
    slots: Slots,
) {
    let owner = Value::new(id, 0);
    let sets = [
        (&placement.cluster, &forwarding.cluster, 0, Set::AffinityEndpoints),
        (placement.local(), &forwarding.local, LOCAL_OFFSET, Set::AffinityLocalEndpoints),
    ];
    for (order, sorted, offset, slot_set) in sets {
        for (index, backend) in (offset..).zip(order.backends(sorted)) {
            let choice = Key::EMPTY.number(owner.0).number(index);
            let endpoint = endpoint_data(backend.address, backend.port);
            if !slots.are_for(forwarding) {
                elements.push(Element { set: Set::Endpoints, key: choice, key_end: None, data: endpoint });
            } else if let Some(slot) = placement.slot(backend.socket()) {
                let slot = Value::new(id, slot).0;
                let data = Data::EMPTY.number(slot);
                elements.push(Element { set: Set::AffinityChoices, key: choice, key_end: None, data });
                let key = Key::EMPTY.number(slot);
                elements.push(Element { set: slot_set, key, key_end: None, data: endpoint });
            }
        }
    }
}
