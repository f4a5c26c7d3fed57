//! Decides which UDP flows are stale: a pure function of the flow.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use portolan_model::catalog::UdpService;
use portolan_model::{Family, Frontend, Protocol};
use portolan_wire::conntrack::{Filter, Flow};
use portolan_wire::nfnetlink;

/// Up to this number of ports, the kernel is asked for the flows to each port; above it, once for all UDP flows. With
/// 200,000 flows one request took 34 ms of processor time, in which the kernel walks its table, and 220 ms if all
/// flows were UDP and were listed. So requests by port pay as soon as a third of the table is UDP, and cost little
/// otherwise.
const PORTS_ASKED_FOR: usize = 3;

/// The result of a [`Check`] for a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The flow goes to none of the check's frontends, or is not UDP.
    Foreign,
    /// The flow goes to a serving endpoint, or its Service port has none, or it is captured.
    Valid,
    /// The flow goes to a frontend, but not to a serving endpoint of its Service port.
    Stale,
}

/// The UDP Service ports of one family whose flows are to be checked.
///
/// The original destination of a flow decides its Service port. A cluster, external or load-balancer IP and port
/// comes first. If there is none, and the destination is an address of this node that accepts node ports, the node
/// port follows. Loopback addresses accept them in the iptables mode only. If two Service ports have the same frontend, the later one is used. A node port must be checked
/// together with any Service port that has the same port number on an external IP equal to a node address: checked
/// alone, it would claim that one's flows.
#[derive(Debug, Clone)]
pub struct Check {
    family: Family,
    /// Where flows of each Service port may go. Cluster IPs and the other frontends may have different ones.
    targets: Vec<Targets>,
    /// Index into `targets`, by address and port.
    exact: HashMap<SocketAddr, usize>,
    /// Index into `targets`, by node port.
    node_ports: HashMap<u16, usize>,
    /// This node's addresses that accept node ports, sorted.
    node_addresses: Vec<IpAddr>,
    /// Loopback networks that accept node ports.
    loopback: Vec<IpNet>,
    /// See [`Self::including_replies`].
    answers: bool,
}

/// Where flows to frontends of a Service port may go.
#[derive(Debug, Clone)]
struct Targets {
    /// The serving endpoints, sorted.
    serving: Vec<SocketAddr>,
    /// Whether a flow without a translation is valid.
    is_captured: bool,
}

impl Targets {
    /// Returns true if a flow to this destination, with replies from this source, is valid.
    fn have(&self, destination: SocketAddr, source: SocketAddr) -> bool {
        self.serving.is_empty()
            || (self.is_captured && source == destination)
            || self.serving.binary_search(&source).is_ok()
    }
}

impl Check {
    /// Returns a check of Service ports of one family. `node_addresses` are this node's addresses that accept node
    /// ports.
    pub fn new<'a>(
        family: Family,
        services: impl IntoIterator<Item = &'a UdpService>,
        mut node_addresses: Vec<IpAddr>,
    ) -> Self {
        node_addresses.sort_unstable();
        let (targets, exact, node_ports) = Default::default();
        let loopback = Vec::new();
        let mut check = Self { family, targets, exact, node_ports, node_addresses, loopback, answers: false };
        services.into_iter().for_each(|service| check.add(service));
        check
    }

    /// Adds loopback networks that accept node ports.
    #[must_use]
    pub fn with_loopback(self, loopback: Vec<IpNet>) -> Self {
        Self { loopback, ..self }
    }

    /// Makes flows from a frontend stale, too. If the kernel has forgotten a flow, it takes a reply that a program on
    /// this node sends from a Service's address for the start of a new flow.
    #[must_use]
    pub fn including_replies(self) -> Self {
        Self { answers: true, ..self }
    }

    /// Returns the family of the flows.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Returns true if the flow should be deleted.
    pub fn is_stale(&self, flow: &Flow) -> bool {
        self.judge(flow) == Verdict::Stale
    }

    /// Returns whether the flow belongs to a checked Service port, and whether it is stale.
    pub fn judge(&self, flow: &Flow) -> Verdict {
        let (original, reply) = (&flow.original, &flow.reply);
        let (Some(port), Some(source)) = (original.destination_port(), reply.source_port()) else {
            return Verdict::Foreign;
        };
        if original.protocol != Protocol::Udp.number() {
            return Verdict::Foreign;
        }
        if self.answers
            && let Some(port) = original.source_port()
            && self.targets_behind(SocketAddr::new(original.source, port)).is_some()
        {
            return Verdict::Stale;
        }
        let destination = SocketAddr::new(original.destination, port);
        match self.targets_behind(destination) {
            None => Verdict::Foreign,
            Some(targets) if targets.have(destination, SocketAddr::new(reply.source, source)) => {
                Verdict::Valid
            }
            Some(_) => Verdict::Stale,
        }
    }

    /// Returns filters with which the kernel lists every stale flow. Empty if no flow can be stale.
    pub(super) fn filters(&self) -> Vec<Filter> {
        let family = kernel_family(self.family);
        let ports = self.ports();
        if ports.len() > PORTS_ASKED_FOR || self.answers {
            return vec![Filter::protocol(family, Protocol::Udp.number())];
        }
        let filter = |(port, destination)| Filter {
            destination,
            destination_port: Some(port),
            ..Filter::protocol(family, Protocol::Udp.number())
        };
        ports.into_iter().map(filter).collect()
    }

    /// Returns the ports that stale flows may go to. Each has its address, if there is only one for the port.
    fn ports(&self) -> BTreeMap<u16, Option<IpAddr>> {
        let can_be_stale =
            |index: &usize| self.targets.get(*index).is_some_and(|targets| !targets.serving.is_empty());
        let mut ports: BTreeMap<u16, Option<IpAddr>> = BTreeMap::new();
        for (frontend, _) in self.exact.iter().filter(|(_, index)| can_be_stale(index)) {
            let one = ports.entry(frontend.port()).or_insert(Some(frontend.ip()));
            *one = one.filter(|address| *address == frontend.ip());
        }
        let node_ports = self.node_ports.iter().filter(|(_, index)| can_be_stale(index));
        let accepts = !self.node_addresses.is_empty() || !self.loopback.is_empty();
        ports.extend(node_ports.filter(|_| accepts).map(|(&port, _)| (port, None)));
        ports
    }

    fn add(&mut self, service: &UdpService) {
        let internal = self.add_targets(&service.serving, service);
        let external =
            service.external.as_ref().map_or(internal, |serving| self.add_targets(serving, service));
        for &frontend in &service.frontends {
            match frontend {
                Frontend::ClusterIp(address, port) => {
                    self.exact.insert(SocketAddr::new(address, port), internal);
                }
                Frontend::ExternalIp(address, port) | Frontend::LoadBalancerIp(address, port) => {
                    self.exact.insert(SocketAddr::new(address, port), external);
                }
                Frontend::NodePort(port) => {
                    self.node_ports.insert(port, external);
                }
            }
        }
    }

    /// Returns the index of these targets.
    fn add_targets(&mut self, serving: &[SocketAddr], service: &UdpService) -> usize {
        let mut serving = serving.to_vec();
        serving.sort_unstable();
        self.targets.push(Targets { serving, is_captured: service.is_captured });
        self.targets.len().saturating_sub(1)
    }

    fn accepts_node_ports(&self, address: &IpAddr) -> bool {
        self.node_addresses.binary_search(address).is_ok()
            || self.loopback.iter().any(|network| network.contains(address))
    }

    fn targets_behind(&self, destination: SocketAddr) -> Option<&Targets> {
        let node_port = || {
            let index = self.node_ports.get(&destination.port())?;
            self.accepts_node_ports(&destination.ip()).then_some(index)
        };
        let index = self.exact.get(&destination).or_else(node_port)?;
        self.targets.get(*index)
    }
}

/// Returns the family in netfilter's representation.
pub(super) fn kernel_family(family: Family) -> nfnetlink::Family {
    match family {
        Family::Ipv4 => nfnetlink::Family::IPV4,
        Family::Ipv6 => nfnetlink::Family::IPV6,
    }
}

#[cfg(test)]
mod tests;
