//! Forwardings as bytes, as a table keeps them.
//!
//! A forwarding with ten endpoints takes three allocations and 380 bytes of the heap, and a node has one for each Service port. As
//! bytes it is one allocation of a quarter of that. Each reader of the table gets it unpacked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use portolan_model::{
    Backend, ExternalPolicy, Family, Forwarding, Frontend, InternalPolicy, IpvsScheduler, Protocol,
};

/// A forwarding as bytes. Clones share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packed(Arc<[u8]>);

const IS_IPV6: u8 = 1;
const HAS_ENDPOINTS: u8 = 1 << 1;
const INTERNAL_LOCAL: u8 = 1 << 2;
const EXTERNAL_LOCAL: u8 = 1 << 3;
const HAS_AFFINITY: u8 = 1 << 4;
const KEEPS_CLIENT_ADDRESS: u8 = 1 << 5;

/// Protocols by their number, which has the lower two bits of its byte. The scheduler has the others: 0 stands for none.
const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
const PROTOCOL_BITS: u8 = 2;

/// The kind of a frontend. With [`OF_IPV6`] its address has 16 bytes.
const CLUSTER_IP: u8 = 0;
const EXTERNAL_IP: u8 = 1;
const LOAD_BALANCER_IP: u8 = 2;
const NODE_PORT: u8 = 3;

/// Flags of an endpoint, or of all in a list. Each endpoint has its flags, its port and its address, one after the other. If the
/// flags have [`ARE_ALIKE`], the flags and the port are those of all, and only addresses follow.
const OF_IPV6: u8 = 1 << 2;
const MAY_HAIRPIN: u8 = 1 << 3;
const ARE_ALIKE: u8 = 1 << 4;

impl Packed {
    /// Packs a forwarding.
    pub(crate) fn of(forwarding: &Forwarding) -> Self {
        // All fields are named here, so that a new one is not forgotten.
        let Forwarding {
            family,
            protocol,
            frontends,
            cluster,
            local,
            has_endpoints,
            internal_policy,
            external_policy,
            affinity,
            ipvs_scheduler,
            keep_client_address,
            source_ranges,
        } = forwarding;
        let flags = [
            (IS_IPV6, *family == Family::Ipv6),
            (HAS_ENDPOINTS, *has_endpoints),
            (INTERNAL_LOCAL, *internal_policy == InternalPolicy::Local),
            (EXTERNAL_LOCAL, *external_policy == ExternalPolicy::Local),
            (HAS_AFFINITY, affinity.is_some()),
            (KEEPS_CLIENT_ADDRESS, *keep_client_address),
        ];
        let mut writer = Writer::default();
        writer.byte(flags.iter().filter(|(_, is_set)| *is_set).fold(0, |all, (flag, _)| all | flag));
        let scheduler = ipvs_scheduler.map(|scheduler| place_of(&IpvsScheduler::ALL, &scheduler) + 1);
        writer.byte(place_of(&PROTOCOLS, protocol) | scheduler.unwrap_or_default() << PROTOCOL_BITS);
        writer.bytes.extend(affinity.iter().flat_map(|seconds| seconds.to_le_bytes()));
        writer.number(frontends.len());
        frontends.iter().for_each(|frontend| writer.frontend(*frontend));
        writer.backends(cluster);
        writer.backends(local);
        writer.number(source_ranges.len());
        for range in source_ranges {
            writer.byte(of_ipv6(range.addr()));
            writer.address(range.addr());
            writer.byte(range.prefix_len());
        }
        Self(writer.bytes.into())
    }

    /// Returns the forwarding.
    pub(crate) fn forwarding(&self) -> Forwarding {
        let mut reader = Reader(&self.0);
        let (flags, protocol) = (reader.byte(), reader.byte());
        let (protocol, scheduler) = (protocol & ((1 << PROTOCOL_BITS) - 1), protocol >> PROTOCOL_BITS);
        let has = |flag: u8| flags & flag != 0;
        // The fields are read in this order.
        Forwarding {
            family: if has(IS_IPV6) { Family::Ipv6 } else { Family::Ipv4 },
            protocol: PROTOCOLS.get(usize::from(protocol)).copied().unwrap_or(Protocol::Tcp),
            has_endpoints: has(HAS_ENDPOINTS),
            internal_policy: if has(INTERNAL_LOCAL) {
                InternalPolicy::Local
            } else {
                InternalPolicy::Cluster
            },
            external_policy: if has(EXTERNAL_LOCAL) {
                ExternalPolicy::Local
            } else {
                ExternalPolicy::Cluster
            },
            ipvs_scheduler: scheduler
                .checked_sub(1)
                .and_then(|place| IpvsScheduler::ALL.get(usize::from(place)).copied()),
            keep_client_address: has(KEEPS_CLIENT_ADDRESS),
            affinity: has(HAS_AFFINITY).then(|| u32::from_le_bytes(reader.array())),
            frontends: reader.list(Reader::frontend),
            cluster: reader.backends(),
            local: reader.backends(),
            source_ranges: reader.list(Reader::range),
        }
    }
}

/// Returns the place of a value in a short list.
fn place_of<T: PartialEq>(list: &[T], value: &T) -> u8 {
    let place = list.iter().position(|other| other == value).unwrap_or_default();
    u8::try_from(place).unwrap_or_default()
}

fn of_ipv6(address: IpAddr) -> u8 {
    if address.is_ipv6() { OF_IPV6 } else { 0 }
}

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    /// Writes seven bits in each byte, the lowest first. The last byte is below 128 (LEB128).
    fn number(&mut self, mut number: usize) {
        loop {
            let [low, ..] = number.to_le_bytes();
            number >>= 7;
            if number == 0 {
                return self.byte(low & 0x7f);
            }
            self.byte(low | 0x80);
        }
    }

    fn port(&mut self, port: u16) {
        self.bytes.extend(port.to_le_bytes());
    }

    fn address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.bytes.extend(address.octets()),
            IpAddr::V6(address) => self.bytes.extend(address.octets()),
        }
    }

    fn frontend(&mut self, frontend: Frontend) {
        let (kind, address, port) = match frontend {
            Frontend::ClusterIp(address, port) => (CLUSTER_IP, Some(address), port),
            Frontend::ExternalIp(address, port) => (EXTERNAL_IP, Some(address), port),
            Frontend::LoadBalancerIp(address, port) => (LOAD_BALANCER_IP, Some(address), port),
            Frontend::NodePort(port) => (NODE_PORT, None, port),
        };
        self.byte(kind | address.map(of_ipv6).unwrap_or_default());
        if let Some(address) = address {
            self.address(address);
        }
        self.port(port);
    }

    fn backends(&mut self, backends: &[Backend]) {
        self.number(backends.len());
        let Some(first) = backends.first() else { return };
        let flags =
            |backend: &Backend| of_ipv6(backend.address) | if backend.may_hairpin { MAY_HAIRPIN } else { 0 };
        let are_alike =
            backends.iter().all(|backend| backend.port == first.port && flags(backend) == flags(first));
        if are_alike {
            self.byte(flags(first) | ARE_ALIKE);
            self.port(first.port);
        }
        for backend in backends {
            if !are_alike {
                self.byte(flags(backend));
                self.port(backend.port);
            }
            self.address(backend.address);
        }
    }
}

/// Reads what a [`Writer`] has written. Bytes that are not there are 0.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((array, rest)) => {
                self.0 = rest;
                *array
            }
            None => [0; N],
        }
    }

    fn byte(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    fn number(&mut self) -> usize {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.byte();
            number |= usize::from(byte & 0x7f).checked_shl(shift).unwrap_or_default();
            if byte < 0x80 {
                return number;
            }
            shift += 7;
        }
    }

    fn port(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    fn address(&mut self, flags: u8) -> IpAddr {
        if flags & OF_IPV6 == 0 {
            Ipv4Addr::from(self.array::<4>()).into()
        } else {
            Ipv6Addr::from(self.array::<16>()).into()
        }
    }

    fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> T) -> Box<[T]> {
        let count = self.number();
        (0..count).map(|_| read(self)).collect()
    }

    fn frontend(&mut self) -> Frontend {
        let flags = self.byte();
        match flags & !OF_IPV6 {
            CLUSTER_IP => Frontend::ClusterIp(self.address(flags), self.port()),
            EXTERNAL_IP => Frontend::ExternalIp(self.address(flags), self.port()),
            LOAD_BALANCER_IP => Frontend::LoadBalancerIp(self.address(flags), self.port()),
            _ => Frontend::NodePort(self.port()),
        }
    }

    fn backends(&mut self) -> Box<[Backend]> {
        // The flags and the port of all.
        let mut of_all = None;
        self.list(|reader| {
            let (flags, port) = of_all.unwrap_or_else(|| (reader.byte(), reader.port()));
            if flags & ARE_ALIKE != 0 {
                of_all = Some((flags, port));
            }
            Backend { address: reader.address(flags), port, may_hairpin: flags & MAY_HAIRPIN != 0 }
        })
    }

    fn range(&mut self) -> IpNet {
        let flags = self.byte();
        let (address, prefix) = (self.address(flags), self.byte());
        IpNet::new(address, prefix).unwrap_or_else(|_| address.into())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use portolan_model::world::Edited;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Everything that the catalog makes of objects comes back.
        #[test]
        fn what_was_packed_comes_back(seed: u64) {
            let mut edited = Edited::new(seed, 40);
            let changes = edited.first().changes.into_iter().chain(edited.edit(20).changes);
            for forwarding in changes.filter_map(|change| change.new) {
                prop_assert_eq!(&Packed::of(&forwarding).forwarding(), &*forwarding);
            }
        }

        #[test]
        fn numbers_come_back(number: usize) {
            let mut writer = Writer::default();
            writer.number(number);
            prop_assert_eq!(Reader(&writer.bytes).number(), number);
        }
    }

    /// Fields that the catalog sets seldom, addresses of the other family, and more endpoints than fit into a byte.
    #[test]
    fn every_field_comes_back() {
        let backend = |host: u16, port: u16, may_hairpin: bool| {
            let [high, low] = host.to_be_bytes();
            Backend { address: IpAddr::from([10, 244, high, low]), port, may_hairpin }
        };
        let alike: Box<[Backend]> = (0..1_000).map(|host| backend(host, 8080, true)).collect();
        let other = Backend { address: "2001:db8::1".parse().unwrap(), ..backend(0, 53, false) };
        let mixed: Box<[Backend]> = (0..300).map(|host| backend(host, host, false)).chain([other]).collect();
        let frontend = SocketAddr::from(([10, 96, 0, 1], 80));
        for scheduler in IpvsScheduler::ALL.map(Some).into_iter().chain([None]) {
            for protocol in PROTOCOLS {
                let forwarding = Forwarding {
                    frontends: Box::new([
                        Frontend::ClusterIp(frontend.ip(), 80),
                        Frontend::ExternalIp("2001:db8::2".parse().unwrap(), 81),
                        Frontend::LoadBalancerIp(frontend.ip(), 82),
                        Frontend::NodePort(30_080),
                    ]),
                    local: mixed.clone(),
                    has_endpoints: scheduler.is_some(),
                    internal_policy: InternalPolicy::Local,
                    external_policy: ExternalPolicy::Local,
                    affinity: Some(10_800),
                    source_ranges: ["10.0.0.0/8", "2001:db8::/32"].map(|range| range.parse().unwrap()).into(),
                    ipvs_scheduler: scheduler,
                    keep_client_address: true,
                    ..Forwarding::plain(frontend, protocol, alike.clone())
                };
                assert_eq!(Packed::of(&forwarding).forwarding(), forwarding);
                let of_ipv6 = Forwarding { family: Family::Ipv6, local: Box::new([other; 3]), ..forwarding };
                assert_eq!(Packed::of(&of_ipv6).forwarding(), of_ipv6);
            }
        }
    }

    /// What a table takes for each Service port of a large cluster.
    #[test]
    fn a_service_with_ten_endpoints_takes_56_bytes() {
        let backend =
            |host: u8| Backend { address: [10, 244, 0, host].into(), port: 8080, may_hairpin: false };
        let plain =
            Forwarding::plain(([10, 96, 0, 1], 80).into(), Protocol::Tcp, (0..10).map(backend).collect());
        assert_eq!(Packed::of(&plain).0.len(), 56);
    }
}
