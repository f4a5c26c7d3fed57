//! Set elements as values: set, key and data.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use portolan_model::{Family, Protocol};

/// The sets and maps of a table, in the order of their creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Set {
    /// Cluster IP, external IP and load-balancer IP . protocol . port : value.
    Services,
    /// Protocol . port : value.
    NodePorts,
    /// Id . index : endpoint.
    Endpoints,
    /// Class number : chain.
    Classes,
    /// Id . index : id and slot. Also without session affinity while counters are asked for.
    AffinityChoices,
    /// Id and slot : cluster endpoint.
    AffinityEndpoints,
    /// Id and slot : local endpoint.
    AffinityLocalEndpoints,
    /// Id . client : id and slot. Filled by the kernel's rules.
    Affinity,
    /// Every cluster IP.
    ClusterIps,
    /// The addresses that accept node ports. Rules do not look them up if all addresses do, or only one.
    NodePortIps,
    /// Frontends of Service ports without any endpoint.
    NoEndpointServices,
    /// Frontends of Service ports that have endpoints, but none on this node, with a `Local` traffic policy.
    NoLocalEndpointServices,
    /// Like [`Self::NoEndpointServices`], for node ports.
    NoEndpointNodePorts,
    /// Like [`Self::NoLocalEndpointServices`], for node ports.
    NoLocalEndpointNodePorts,
    /// Load-balancer IP . protocol . port with restricted source ranges.
    FirewallIps,
    /// Load-balancer IP . protocol . port . allowed source range.
    SourceRanges,
    /// Source . destination . protocol . port of an endpoint that reaches itself through a Service.
    HairpinConnections,
    /// Ids; each element counts. Only while the settings ask for counters.
    ServiceCounters,
    /// The keys of [`Self::FirewallIps`]; each element counts drops. Only while the settings ask for counters.
    SourceRangeDrops,
}

impl Set {
    pub(crate) const ALL: [Self; 19] = [
        Self::Services,
        Self::NodePorts,
        Self::Endpoints,
        Self::Classes,
        Self::AffinityChoices,
        Self::AffinityEndpoints,
        Self::AffinityLocalEndpoints,
        Self::Affinity,
        Self::ClusterIps,
        Self::NodePortIps,
        Self::NoEndpointServices,
        Self::NoLocalEndpointServices,
        Self::NoEndpointNodePorts,
        Self::NoLocalEndpointNodePorts,
        Self::FirewallIps,
        Self::SourceRanges,
        Self::HairpinConnections,
        Self::ServiceCounters,
        Self::SourceRangeDrops,
    ];

    /// Returns the set's name in the kernel.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::NodePorts => "node-ports",
            Self::Endpoints => "endpoints",
            Self::Classes => "classes",
            Self::AffinityChoices => "affinity-choices",
            Self::AffinityEndpoints => "affinity-endpoints",
            Self::AffinityLocalEndpoints => "affinity-local-endpoints",
            Self::Affinity => "affinity",
            Self::ClusterIps => "cluster-ips",
            Self::NodePortIps => "node-port-ips",
            Self::NoEndpointServices => "no-endpoint-services",
            Self::NoLocalEndpointServices => "no-local-endpoint-services",
            Self::NoEndpointNodePorts => "no-endpoint-node-ports",
            Self::NoLocalEndpointNodePorts => "no-local-endpoint-node-ports",
            Self::FirewallIps => "firewall-ips",
            Self::SourceRanges => "source-ranges",
            Self::HairpinConnections => "hairpin-connections",
            Self::ServiceCounters => "service-counters",
            Self::SourceRangeDrops => "source-range-drops",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|set| set.name() == name)
    }

    /// Returns true for a set that is there only while counters are asked for. Every element of it counts.
    pub(crate) const fn is_for_counters(self) -> bool {
        matches!(self, Self::ServiceCounters | Self::SourceRangeDrops)
    }

    /// Returns true for a set that a complete table may lack.
    pub(crate) const fn is_optional(self) -> bool {
        matches!(self, Self::Affinity) || self.is_for_counters()
    }

    /// Returns true for a set whose elements have a counter of their own while counters are asked for. An element of such a set
    /// stays the same while its Service port changes, unless what it stands for changes.
    pub(crate) const fn has_counters(self) -> bool {
        matches!(
            self,
            Self::AffinityEndpoints
                | Self::AffinityLocalEndpoints
                | Self::NoEndpointServices
                | Self::NoLocalEndpointServices
                | Self::NoEndpointNodePorts
                | Self::NoLocalEndpointNodePorts
        )
    }

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// Length in bytes of the longest key: two IPv6 addresses, protocol and port.
const KEY_CAPACITY: usize = 40;

/// Length in bytes of the longest data: an IPv6 address and a port.
const DATA_CAPACITY: usize = 20;

/// Bytes in the kernel's layout: each field is padded to 4 bytes, and ports are in network order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Bytes<const N: usize> {
    bytes: [u8; N],
    length: u8,
}

pub(crate) type Key = Bytes<KEY_CAPACITY>;
pub(crate) type Data = Bytes<DATA_CAPACITY>;

impl<const N: usize> Bytes<N> {
    pub(crate) const EMPTY: Self = Self { bytes: [0; N], length: 0 };

    /// Copies bytes from the kernel. Returns `None` if they are longer than any key of ours.
    pub(crate) fn from_kernel(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= N).then(|| Self::EMPTY.then(bytes))
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }

    pub(crate) fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => self.then(&v4.octets()),
            IpAddr::V6(v6) => self.then(&v6.octets()),
        }
    }

    pub(crate) fn protocol(self, protocol: Protocol) -> Self {
        self.then(&[protocol.number(), 0, 0, 0])
    }

    pub(crate) fn port(self, port: u16) -> Self {
        let [high, low] = port.to_be_bytes();
        self.then(&[high, low, 0, 0])
    }

    /// Appends a number in host order, as the packet priority and `numgen` have it.
    pub(crate) fn number(self, number: u32) -> Self {
        self.then(&number.to_ne_bytes())
    }

    /// Appends this many zeros.
    pub(crate) fn padded(self, length: usize) -> Self {
        self.then([0; N].get(..length).unwrap_or_default())
    }

    /// Appends a field, cut at the capacity. The keys and data of this module never exceed it.
    #[expect(clippy::cast_possible_truncation, reason = "N is below 256")]
    fn then(mut self, field: &[u8]) -> Self {
        let start = usize::from(self.length);
        if let Some(room) = self.bytes.get_mut(start..) {
            let length = field.len().min(room.len());
            room.iter_mut().zip(field).for_each(|(to, &from)| *to = from);
            self.length += length as u8;
        }
        self
    }
}

impl<const N: usize> Default for Bytes<N> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<const N: usize> std::fmt::Debug for Bytes<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Returns the key of a frontend: address, protocol and port.
pub(crate) fn service_key(address: IpAddr, protocol: Protocol, port: u16) -> Key {
    Key::EMPTY.address(address).protocol(protocol).port(port)
}

/// Returns the key of the frontend of a source range: the range's key less the source, which is an address of the same family.
pub(crate) fn frontend_of_range(range: &[u8]) -> &[u8] {
    const PROTOCOL_AND_PORT: usize = 8;
    let address = range.len().saturating_sub(PROTOCOL_AND_PORT) / 2;
    range.get(..range.len().saturating_sub(address)).unwrap_or_default()
}

/// Returns the key of a node port: protocol and port.
pub(crate) fn node_port_key(protocol: Protocol, port: u16) -> Key {
    Key::EMPTY.protocol(protocol).port(port)
}

/// Returns an endpoint as the data of a map.
pub(crate) fn endpoint_data(address: IpAddr, port: u16) -> Data {
    Data::EMPTY.address(address).port(port)
}

/// Returns the length in bytes of an address of the family.
pub(crate) const fn address_length(family: Family) -> u32 {
    match family {
        Family::Ipv4 => 4,
        Family::Ipv6 => 16,
    }
}

/// Reads an address from the start of a key or of data.
pub(crate) fn read_address(family: Family, bytes: &[u8]) -> Option<IpAddr> {
    match family {
        Family::Ipv4 => Some(IpAddr::V4(Ipv4Addr::from(*bytes.first_chunk::<4>()?))),
        Family::Ipv6 => Some(IpAddr::V6(Ipv6Addr::from(*bytes.first_chunk::<16>()?))),
    }
}

/// Reads a number in host order.
pub(crate) fn read_number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.first_chunk::<4>()?))
}

/// One element that a table should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Element {
    pub(crate) set: Set,
    pub(crate) key: Key,
    /// End of the interval. `Some` for [`Set::SourceRanges`] only.
    pub(crate) key_end: Option<Key>,
    /// Empty for a set that is not a map.
    pub(crate) data: Data,
}
