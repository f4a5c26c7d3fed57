//! Computes the virtual servers and the members of sets that one Service port needs.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use portolan_model::table::Disposition;
use portolan_model::{
    Backend, ExternalPolicy, Forwarding, Frontend, InternalPolicy, IpvsScheduler, NodePortAddresses,
    Protocol, Settings,
};
use portolan_wire::ipset::Member;
use portolan_wire::ipvs::{FLAG_FALLBACK, FLAG_PERSISTENT, FLAG_PORT, Identity};

use super::set::Set;

/// The identity of a virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) protocol: Protocol,
}

/// The settings of a virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) scheduler: IpvsScheduler,
    pub(super) flags: u32,
    pub(super) timeout: u32,
}

/// The endpoints of a Service port that get connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Cluster,
    Local,
}

/// A virtual server that a Service port needs.
#[derive(Debug, Clone)]
pub(super) struct Server {
    forwarding: Arc<Forwarding>,
    side: Side,
    /// True for a node port. If two virtual servers have the same key, the one of a Service's address is used.
    pub(super) is_node_port: bool,
}

/// What the needs depend on, besides the Service port.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) settings: &'a Settings,
    /// Addresses of this node in the family, sorted, without loopback addresses and those of our network device.
    pub(super) node_addresses: &'a [IpAddr],
    /// Networks in which other programs have virtual servers (`ipvs.excludeCIDRs`). Ours there are noted in a set.
    pub(super) exclude: &'a [IpNet],
    /// Virtual servers in these networks that belong to other programs. They stay.
    pub(super) foreign: &'a BTreeSet<Key>,
}

/// The virtual servers and the members of sets that a Service port needs.
#[derive(Debug, Default)]
pub(super) struct Needs {
    pub(super) servers: Vec<(Key, Server)>,
    pub(super) members: Vec<(Set, Member)>,
    /// The virtual servers that the Service port would need, and that another program has.
    pub(super) blocked: Vec<Key>,
}

impl Key {
    pub(super) const fn identity(&self) -> Identity {
        let protocol = self.protocol.number() as u16;
        Identity::Address { protocol, address: self.address, port: self.port }
    }

    /// Returns the key of a virtual server in the kernel; `None` if it cannot be one of ours.
    pub(super) fn of(identity: &Identity) -> Option<Self> {
        let Identity::Address { protocol, address, port } = *identity else { return None };
        let known = |of: &Protocol| u16::from(of.number()) == protocol;
        let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(known)?;
        Some(Self { address, port, protocol })
    }

    /// Returns the key of a member of a set of addresses with ports; `None` for other members.
    pub(super) fn of_member(member: &Member) -> Option<Self> {
        let Member::IpPort(address, protocol, port) = *member else { return None };
        Self::of(&Identity::Address { protocol: protocol.into(), address, port })
    }

    pub(super) const fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    pub(super) const fn member(&self) -> Member {
        Member::IpPort(self.address, self.protocol.number(), self.port)
    }
}

impl Server {
    pub(super) fn config(&self, default: IpvsScheduler, missing: &[IpvsScheduler]) -> Config {
        let wanted = self.forwarding.ipvs_scheduler.filter(|scheduler| !missing.contains(scheduler));
        let scheduler = wanted.unwrap_or(default);
        let of_scheduler = match scheduler {
            // Without this flag, both schedulers refuse clients whose endpoint drains: its place in their table stays.
            IpvsScheduler::Sh => FLAG_FALLBACK,
            IpvsScheduler::Mh => FLAG_FALLBACK | FLAG_PORT,
            _ => 0,
        };
        let persistent = if self.forwarding.affinity.is_some() { FLAG_PERSISTENT } else { 0 };
        Config {
            scheduler,
            flags: persistent | of_scheduler,
            timeout: self.forwarding.affinity.unwrap_or_default(),
        }
    }

    /// Returns true if both have the same forwarding and the same kind of frontend.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.forwarding == other.forwarding && self.is_node_port == other.is_node_port
    }

    /// Returns the addresses and ports of the endpoints, sorted.
    pub(super) fn places(&self) -> impl Iterator<Item = SocketAddr> {
        let backends = match self.side {
            Side::Cluster => &self.forwarding.cluster,
            Side::Local => &self.forwarding.local,
        };
        backends.iter().map(Backend::socket)
    }
}

impl Context<'_> {
    /// Returns the addresses that accept node ports.
    fn node_port_addresses(&self) -> &[IpAddr] {
        match &self.settings.node_port_addresses {
            NodePortAddresses::MatchAll => self.node_addresses,
            NodePortAddresses::Addresses(addresses) => addresses,
        }
    }

    fn excludes(&self, address: IpAddr) -> bool {
        self.exclude.iter().any(|cidr| cidr.contains(&address))
    }

    /// Returns true for an address that another interface of this node has. Loopback addresses are among them: on our device,
    /// rules would refuse all their ports that are not of Services.
    fn is_node_address(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.node_addresses.binary_search(&address).is_ok()
    }
}

/// Returns the needs of a Service port.
pub(super) fn needs(context: Context<'_>, forwarding: &Arc<Forwarding>) -> Needs {
    let mut collector = Collector { context, forwarding, needs: Needs::default() };
    for frontend in forwarding.frontends.iter().filter(|frontend| !is_unspecified_address(frontend)) {
        collector.frontend(*frontend);
    }
    let backends = forwarding.cluster.iter().chain(&forwarding.local);
    for backend in backends.filter(|backend| backend.may_hairpin) {
        let (address, port) = (backend.address, backend.port);
        let member = Member::IpPortIp(address, forwarding.protocol.number(), port, address);
        collector.needs.members.push((Set::LoopBack, member));
    }
    collector.needs
}

/// Returns true for an address of zeros, which no packet has as destination: sets refuse it, and a device accepts it
/// but does not have it.
fn is_unspecified_address(frontend: &Frontend) -> bool {
    place(frontend).is_some_and(|(address, _)| address.is_unspecified())
}

/// Returns the frontend's own address and port; `None` for a node port.
const fn place(frontend: &Frontend) -> Option<(IpAddr, u16)> {
    match *frontend {
        Frontend::ClusterIp(address, port)
        | Frontend::ExternalIp(address, port)
        | Frontend::LoadBalancerIp(address, port) => Some((address, port)),
        Frontend::NodePort(_) => None,
    }
}

struct Collector<'a> {
    context: Context<'a>,
    forwarding: &'a Arc<Forwarding>,
    needs: Needs,
}

impl Collector<'_> {
    fn frontend(&mut self, frontend: Frontend) {
        let local = self.forwarding.external_policy == ExternalPolicy::Local;
        if let Some((address, port)) = place(&frontend)
            && self.is_foreign(self.key(address, port))
        {
            return;
        }
        match frontend {
            Frontend::ClusterIp(address, port) => {
                let key = self.key(address, port);
                self.member(Set::ClusterIp, key.member());
                self.on_device(key);
                self.internal(key);
            }
            Frontend::ExternalIp(address, port) => {
                let key = self.key(address, port);
                self.member(if local { Set::ExternalIpLocal } else { Set::ExternalIp }, key.member());
                self.on_device_or_node(key);
                self.external(key, false);
            }
            Frontend::LoadBalancerIp(address, port) => {
                let key = self.key(address, port);
                self.member(Set::LoadBalancer, key.member());
                if local {
                    self.member(Set::LoadBalancerLocal, key.member());
                }
                self.source_ranges(key);
                self.on_device_or_node(key);
                self.external(key, false);
            }
            Frontend::NodePort(port) => self.node_port(port, local),
        }
    }

    fn node_port(&mut self, port: u16, local: bool) {
        let protocol = self.forwarding.protocol;
        if protocol != Protocol::Sctp {
            self.member(Set::NodePort(protocol), Member::Port(port));
            if local {
                self.member(Set::NodePortLocal(protocol), Member::Port(port));
            }
        }
        for address in self.context.node_port_addresses().to_vec() {
            let key = self.key(address, port);
            if self.is_foreign(key) {
                continue;
            }
            if protocol == Protocol::Sctp {
                self.member(Set::NodePort(protocol), key.member());
                if local {
                    self.member(Set::NodePortLocal(protocol), key.member());
                }
            }
            self.member(Set::Own, key.member());
            self.external(key, true);
        }
    }

    fn internal(&mut self, key: Key) {
        match self.forwarding.internal() {
            Disposition::Drop => self.member(Set::Drop, key.member()),
            Disposition::Reject => self.refused(key),
            Disposition::Backends(_) => {}
        }
        let side = match self.forwarding.internal_policy {
            InternalPolicy::Cluster => Side::Cluster,
            InternalPolicy::Local => Side::Local,
        };
        self.server(key, side, false);
    }

    /// Without an endpoint on this node, pods and the node itself use endpoints of other nodes. With one, they have
    /// to use it as well, because all clients share the virtual server.
    fn external(&mut self, key: Key, is_node_port: bool) {
        let side = match self.forwarding.external_policy {
            ExternalPolicy::Local if !self.forwarding.local.is_empty() => Side::Local,
            _ => Side::Cluster,
        };
        match self.forwarding.external() {
            Disposition::Drop => {
                let set = if self.forwarding.cluster.is_empty() { Set::Drop } else { Set::DropExternal };
                self.member(set, key.member());
            }
            Disposition::Reject => self.refused(key),
            Disposition::Backends(_) => {}
        }
        self.server(key, side, is_node_port);
    }

    /// Adds a frontend to the set of those to refuse: that of the rules for TCP, or that of IPVS itself.
    fn refused(&mut self, key: Key) {
        let set = if key.protocol == Protocol::Tcp { Set::Reject } else { Set::CountReject };
        self.member(set, key.member());
    }

    fn source_ranges(&mut self, key: Key) {
        let ranges = &self.forwarding.source_ranges;
        if ranges.is_empty() {
            return;
        }
        self.member(Set::LoadBalancerFirewall, key.member());
        self.member(Set::SourceRanges, key.member());
        let protocol = self.forwarding.protocol.number();
        for range in ranges {
            let network = (range.network(), range.prefix_len());
            let member = Member::IpPortNet(key.address, protocol, key.port, network.0, network.1);
            self.member(Set::LoadBalancerSourceCidr, member);
        }
        let node = self.context.settings.node_ip;
        if node.is_some_and(|node| ranges.iter().any(|range| range.contains(&node))) {
            let member = Member::IpPortIp(key.address, protocol, key.port, key.address);
            self.member(Set::LoadBalancerSourceIp, member);
        }
    }

    fn key(&self, address: IpAddr, port: u16) -> Key {
        Key { address, port, protocol: self.forwarding.protocol }
    }

    fn is_foreign(&mut self, key: Key) -> bool {
        let is_foreign = self.context.foreign.contains(&key);
        self.needs.blocked.extend(is_foreign.then_some(key));
        is_foreign
    }

    fn on_device(&mut self, key: Key) {
        self.member(Set::IpvsIps, Member::Ip(key.address));
        if self.context.excludes(key.address) {
            self.member(Set::Own, key.member());
        }
    }

    /// Puts an address on our device, unless another interface of this node has it.
    fn on_device_or_node(&mut self, key: Key) {
        if self.context.is_node_address(key.address) {
            self.member(Set::Own, key.member());
        } else {
            self.on_device(key);
        }
    }

    fn member(&mut self, set: Set, member: Member) {
        self.needs.members.push((set, member));
    }

    fn server(&mut self, key: Key, side: Side, is_node_port: bool) {
        let server = Server { forwarding: self.forwarding.clone(), side, is_node_port };
        self.needs.servers.push((key, server));
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::Family;

    use super::*;

    #[test]
    fn schedulers_that_keep_draining_endpoints_in_their_table_fall_back() {
        let plain = Forwarding::plain("172.30.20.1:80".parse().unwrap(), Protocol::Tcp, Box::default());
        let flags = |scheduler| {
            let forwarding = Arc::new(Forwarding { ipvs_scheduler: Some(scheduler), ..plain.clone() });
            let server = Server { forwarding, side: Side::Cluster, is_node_port: false };
            server.config(IpvsScheduler::default(), &[]).flags
        };
        for scheduler in IpvsScheduler::ALL {
            let expected = match scheduler {
                IpvsScheduler::Sh => FLAG_FALLBACK,
                IpvsScheduler::Mh => FLAG_FALLBACK | FLAG_PORT,
                _ => 0,
            };
            assert_eq!(flags(scheduler), expected, "{scheduler}");
        }
    }

    /// A program of this node may listen at another port of the address, such as an API server or a proxy in front of it.
    #[test]
    fn an_address_of_another_interface_is_not_put_on_the_device() {
        for (own, loopback, other) in
            [("192.0.2.1", "127.0.0.1", "198.51.100.1"), ("2001:db8::1", "::1", "2001:db8::2")]
        {
            let [own, loopback, other]: [IpAddr; 3] =
                [own, loopback, other].map(|text| text.parse().unwrap());
            let frontends = [own, loopback, other].map(|address| Frontend::ExternalIp(address, 80));
            let plain = Forwarding::plain(SocketAddr::new(other, 80), Protocol::Tcp, Box::default());
            let forwarding = Arc::new(Forwarding { frontends: Box::new(frontends), ..plain });
            let (settings, foreign) = (Settings::plain(Family::of(own)), BTreeSet::new());
            let context =
                Context { settings: &settings, node_addresses: &[own], exclude: &[], foreign: &foreign };
            let Needs { members, .. } = needs(context, &forwarding);
            let of = |wanted: Set| -> Vec<IpAddr> {
                members
                    .iter()
                    .filter(|(set, _)| *set == wanted)
                    .filter_map(|(_, member)| member.address())
                    .collect()
            };
            assert_eq!(of(Set::IpvsIps), [other]);
            assert_eq!(of(Set::Own), [own, loopback]);
        }
    }
}
