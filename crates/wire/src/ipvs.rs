//! IPVS: virtual servers, their real servers, and the timeouts of connections.
//!
//! Numbers and the meaning of attributes come from `linux/ip_vs.h` and `net/netfilter/ipvs/ip_vs_ctl.c`. The number
//! of the family [`FAMILY`] is requested with [`generic::family`](crate::generic::family).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::generic::{HEADER_LENGTH, Header, message, request};
use crate::netlink::{AttributeMap, Message, NLM_F_ACK, NLM_F_DUMP};
use crate::{Attribute, Batch, DecodeError, Frame, Request};

/// Name of the generic netlink family (`IPVS_GENL_NAME`).
pub const FAMILY: &str = "IPVS";
/// Clients keep their real server (`IP_VS_SVC_F_PERSISTENT`).
pub const FLAG_PERSISTENT: u32 = 0x1;
/// Set by the kernel: the virtual server is in the hash table (`IP_VS_SVC_F_HASHED`).
pub const FLAG_HASHED: u32 = 0x2;
/// `sh` and `mh` choose another real server if the chosen one accepts no new connections
/// (`IP_VS_SVC_F_SCHED_SH_FALLBACK`, `IP_VS_SVC_F_SCHED_MH_FALLBACK`).
pub const FLAG_FALLBACK: u32 = 0x8;
/// `sh` and `mh` include the source port in the hash (`IP_VS_SVC_F_SCHED_SH_PORT`, `IP_VS_SVC_F_SCHED_MH_PORT`).
pub const FLAG_PORT: u32 = 0x10;
/// Packets are rewritten, and their answers return through this machine (`IP_VS_CONN_F_MASQ`).
pub const FORWARD_MASQUERADE: u32 = 0;

const VERSION: u8 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

const IPVS_CMD_NEW_SERVICE: u8 = 1;
const IPVS_CMD_SET_SERVICE: u8 = 2;
const IPVS_CMD_DEL_SERVICE: u8 = 3;
const IPVS_CMD_GET_SERVICE: u8 = 4;
const IPVS_CMD_NEW_DEST: u8 = 5;
const IPVS_CMD_SET_DEST: u8 = 6;
const IPVS_CMD_DEL_DEST: u8 = 7;
const IPVS_CMD_GET_DEST: u8 = 8;
const IPVS_CMD_SET_CONFIG: u8 = 12;
const IPVS_CMD_GET_CONFIG: u8 = 13;
const IPVS_CMD_FLUSH: u8 = 17;

const IPVS_CMD_ATTR_SERVICE: u16 = 1;
const IPVS_CMD_ATTR_DEST: u16 = 2;
const IPVS_CMD_ATTR_TIMEOUT_TCP: u16 = 4;
const IPVS_CMD_ATTR_TIMEOUT_TCP_FIN: u16 = 5;
const IPVS_CMD_ATTR_TIMEOUT_UDP: u16 = 6;

const IPVS_SVC_ATTR_AF: u16 = 1;
const IPVS_SVC_ATTR_PROTOCOL: u16 = 2;
const IPVS_SVC_ATTR_ADDR: u16 = 3;
const IPVS_SVC_ATTR_PORT: u16 = 4;
const IPVS_SVC_ATTR_FWMARK: u16 = 5;
const IPVS_SVC_ATTR_SCHED_NAME: u16 = 6;
const IPVS_SVC_ATTR_FLAGS: u16 = 7;
const IPVS_SVC_ATTR_TIMEOUT: u16 = 8;
const IPVS_SVC_ATTR_NETMASK: u16 = 9;
const IPVS_SVC_ATTR_STATS: u16 = 10;
const IPVS_SVC_ATTR_STATS64: u16 = 12;

const IPVS_DEST_ATTR_ADDR: u16 = 1;
const IPVS_DEST_ATTR_PORT: u16 = 2;
const IPVS_DEST_ATTR_FWD_METHOD: u16 = 3;
const IPVS_DEST_ATTR_WEIGHT: u16 = 4;
const IPVS_DEST_ATTR_U_THRESH: u16 = 5;
const IPVS_DEST_ATTR_L_THRESH: u16 = 6;
const IPVS_DEST_ATTR_ACTIVE_CONNS: u16 = 7;
const IPVS_DEST_ATTR_INACT_CONNS: u16 = 8;
const IPVS_DEST_ATTR_STATS: u16 = 10;
const IPVS_DEST_ATTR_ADDR_FAMILY: u16 = 11;
const IPVS_DEST_ATTR_STATS64: u16 = 12;

const IPVS_STATS_ATTR_CONNS: u16 = 1;
const IPVS_STATS_ATTR_INPKTS: u16 = 2;
const IPVS_STATS_ATTR_INBYTES: u16 = 4;

const VIRTUAL: &str = "IPVS virtual server";
const REAL: &str = "IPVS real server";
const TIMEOUTS: &str = "IPVS timeouts";
const COUNTERS: &str = "IPVS counters";

/// The packets that a virtual server accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// Packets to an address and port.
    Address {
        /// Number of the transport protocol: 6 TCP, 17 UDP, 132 SCTP.
        protocol: u16,
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
    },
    /// Packets with a mark.
    Mark {
        /// True for IPv6, false for IPv4.
        ipv6: bool,
        /// The mark.
        mark: u32,
    },
}

/// A virtual server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualServer {
    /// The packets that the server accepts.
    pub identity: Identity,
    /// Name of the scheduler, which selects a real server for each connection.
    pub scheduler: String,
    /// `FLAG_*`.
    pub flags: u32,
    /// Duration of persistence in seconds; used with [`FLAG_PERSISTENT`].
    pub timeout: u32,
    /// The packets that came in. Read only.
    pub counters: Counters,
}

/// A real server behind a virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RealServer {
    /// Address and port.
    pub place: SocketAddr,
    /// Forwarding method, such as [`FORWARD_MASQUERADE`].
    pub forward: u32,
    /// Share of new connections (weight); 0 means that the server receives none.
    pub weight: u32,
    /// Number of connections from which on the server receives no new ones; 0 means no limit.
    pub upper_threshold: u32,
    /// Number of active connections. Read only.
    pub active: u32,
    /// Number of other connections that the kernel keeps. Read only.
    pub inactive: u32,
    /// The packets that came in. Read only.
    pub counters: Counters,
}

/// The connections and packets from clients since a server was added. Packets of the same connections to clients do not count. The
/// kernel adds up the packets of its processors every two seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of connections. Kernels before 4.1 count to 2^32 only, and begin anew then.
    pub connections: u64,
    /// Number of packets. Kernels before 4.1 count to 2^32 only, and begin anew then.
    pub packets: u64,
    /// Number of bytes in these packets.
    pub bytes: u64,
}

/// Timeouts of idle connections in seconds; 0 leaves a timeout unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Established TCP connections.
    pub tcp: u32,
    /// TCP connections that one side has closed.
    pub tcp_fin: u32,
    /// UDP flows.
    pub udp: u32,
}

/// A message of IPVS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IpvsEvent {
    /// A virtual server.
    VirtualServer(VirtualServer),
    /// A real server of the virtual server in the request.
    RealServer(RealServer),
    /// The timeouts.
    Timeouts(Timeouts),
    /// Another message.
    Other {
        /// The message type.
        kind: u16,
    },
}

/// Requests all virtual servers. `family` is the number of [`FAMILY`], here and below.
pub fn virtual_servers(family: u16) -> Request {
    request(family, NLM_F_DUMP, header(IPVS_CMD_GET_SERVICE), |_| {})
}

/// Requests all real servers of a virtual server. The list is empty if the virtual server does not exist.
pub fn real_servers(family: u16, of: &Identity) -> Request {
    request(family, NLM_F_DUMP, header(IPVS_CMD_GET_DEST), |message| of.encode(message))
}

/// Requests the timeouts.
pub fn timeouts(family: u16) -> Request {
    request(family, 0, header(IPVS_CMD_GET_CONFIG), |_| {})
}

/// Sets the timeouts that are not 0.
pub fn set_timeouts(family: u16, timeouts: Timeouts) -> Request {
    request(family, NLM_F_ACK, header(IPVS_CMD_SET_CONFIG), |message| {
        message.attr_u32_ne(IPVS_CMD_ATTR_TIMEOUT_TCP, timeouts.tcp);
        message.attr_u32_ne(IPVS_CMD_ATTR_TIMEOUT_TCP_FIN, timeouts.tcp_fin);
        message.attr_u32_ne(IPVS_CMD_ATTR_TIMEOUT_UDP, timeouts.udp);
    })
}

/// Removes all virtual servers with their real servers.
pub fn flush(family: u16) -> Request {
    request(family, NLM_F_ACK, header(IPVS_CMD_FLUSH), |_| {})
}

/// Adds a virtual server. ENOENT means that the kernel does not have the scheduler.
pub fn new_virtual_server(batch: &mut Batch, family: u16, server: &VirtualServer) {
    server.encode(&mut message(batch, family, 0, header(IPVS_CMD_NEW_SERVICE)));
}

/// Changes the scheduler, flags and timeout of a virtual server. Its connections stay.
pub fn set_virtual_server(batch: &mut Batch, family: u16, server: &VirtualServer) {
    server.encode(&mut message(batch, family, 0, header(IPVS_CMD_SET_SERVICE)));
}

/// Removes a virtual server with its real servers. ESRCH means that it does not exist.
pub fn delete_virtual_server(batch: &mut Batch, family: u16, identity: &Identity) {
    identity.encode(&mut message(batch, family, 0, header(IPVS_CMD_DEL_SERVICE)));
}

/// Adds a real server to a virtual server.
pub fn new_real_server(batch: &mut Batch, family: u16, of: &Identity, server: &RealServer) {
    server.encode(&mut message(batch, family, 0, header(IPVS_CMD_NEW_DEST)), of);
}

/// Changes the forwarding method, weight and thresholds of a real server.
pub fn set_real_server(batch: &mut Batch, family: u16, of: &Identity, server: &RealServer) {
    server.encode(&mut message(batch, family, 0, header(IPVS_CMD_SET_DEST)), of);
}

/// Removes a real server from a virtual server. ENOENT means that it does not exist.
pub fn delete_real_server(batch: &mut Batch, family: u16, of: &Identity, place: SocketAddr) {
    let mut message = message(batch, family, 0, header(IPVS_CMD_DEL_DEST));
    of.encode(&mut message);
    message.nest(IPVS_CMD_ATTR_DEST, |message| encode_place(message, place));
}

/// Returns true if a message describes a virtual server.
pub fn is_virtual_server(family: u16, frame: &Frame<'_>) -> Result<bool, DecodeError> {
    Ok(frame.header.kind == family && Header::decode(frame)?.command == IPVS_CMD_NEW_SERVICE)
}

const fn header(command: u8) -> Header {
    Header { command, version: VERSION }
}

impl IpvsEvent {
    /// Reads a message.
    pub fn decode(family: u16, frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let kind = frame.header.kind;
        if kind != family {
            return Ok(Self::Other { kind });
        }
        match Header::decode(frame)?.command {
            IPVS_CMD_NEW_SERVICE => {
                let map = frame.attributes(VIRTUAL, HEADER_LENGTH)?.by_kind::<2>()?;
                let server = map.required(IPVS_CMD_ATTR_SERVICE)?.nested(VIRTUAL).by_kind()?;
                VirtualServer::decode(&server).map(Self::VirtualServer)
            }
            IPVS_CMD_NEW_DEST => {
                let map = frame.attributes(REAL, HEADER_LENGTH)?.by_kind::<3>()?;
                let server = map.required(IPVS_CMD_ATTR_DEST)?.nested(REAL).by_kind()?;
                RealServer::decode(&server).map(Self::RealServer)
            }
            IPVS_CMD_SET_CONFIG => {
                let map = frame.attributes(TIMEOUTS, HEADER_LENGTH)?.by_kind::<7>()?;
                // A kernel without a protocol does not report its timeouts.
                let seconds = |kind| map.get(kind).map_or(Ok(0), |attribute| attribute.u32_ne());
                Ok(Self::Timeouts(Timeouts {
                    tcp: seconds(IPVS_CMD_ATTR_TIMEOUT_TCP)?,
                    tcp_fin: seconds(IPVS_CMD_ATTR_TIMEOUT_TCP_FIN)?,
                    udp: seconds(IPVS_CMD_ATTR_TIMEOUT_UDP)?,
                }))
            }
            _ => Ok(Self::Other { kind }),
        }
    }
}

impl Identity {
    fn family(&self) -> u16 {
        match self {
            Self::Address { address: IpAddr::V4(_), .. } | Self::Mark { ipv6: false, .. } => AF_INET,
            Self::Address { .. } | Self::Mark { .. } => AF_INET6,
        }
    }

    fn encode(&self, message: &mut Message<'_>) {
        message.nest(IPVS_CMD_ATTR_SERVICE, |message| self.encode_attributes(message));
    }

    fn encode_attributes(&self, message: &mut Message<'_>) {
        message.attr_bytes(IPVS_SVC_ATTR_AF, &self.family().to_ne_bytes());
        match *self {
            Self::Address { protocol, address, port } => {
                message.attr_bytes(IPVS_SVC_ATTR_PROTOCOL, &protocol.to_ne_bytes());
                encode_address(message, IPVS_SVC_ATTR_ADDR, address);
                message.attr_u16_be(IPVS_SVC_ATTR_PORT, port);
            }
            Self::Mark { mark, .. } => message.attr_u32_ne(IPVS_SVC_ATTR_FWMARK, mark),
        }
    }

    fn decode(map: &AttributeMap<'_, 13>) -> Result<Self, DecodeError> {
        let family = map.required(IPVS_SVC_ATTR_AF)?.u16_ne()?;
        if let Some(mark) = map.get(IPVS_SVC_ATTR_FWMARK) {
            return Ok(Self::Mark { ipv6: family == AF_INET6, mark: mark.u32_ne()? });
        }
        Ok(Self::Address {
            protocol: map.required(IPVS_SVC_ATTR_PROTOCOL)?.u16_ne()?,
            address: decode_address(&map.required(IPVS_SVC_ATTR_ADDR)?, family)?,
            port: map.required(IPVS_SVC_ATTR_PORT)?.u16_be()?,
        })
    }
}

impl VirtualServer {
    fn encode(&self, message: &mut Message<'_>) {
        // The netmask of a single address: a mask for IPv4, a prefix length for IPv6.
        let netmask = if self.identity.family() == AF_INET { u32::MAX } else { 128 };
        message.nest(IPVS_CMD_ATTR_SERVICE, |message| {
            self.identity.encode_attributes(message);
            message.attr_str(IPVS_SVC_ATTR_SCHED_NAME, &self.scheduler);
            let (flags, mask) = (self.flags.to_ne_bytes(), u32::MAX.to_ne_bytes());
            message.attr_bytes(IPVS_SVC_ATTR_FLAGS, &[flags, mask].concat());
            message.attr_u32_ne(IPVS_SVC_ATTR_TIMEOUT, self.timeout);
            message.attr_u32_ne(IPVS_SVC_ATTR_NETMASK, netmask);
        });
    }

    fn decode(map: &AttributeMap<'_, 13>) -> Result<Self, DecodeError> {
        let flags: [u8; 8] = map.required(IPVS_SVC_ATTR_FLAGS)?.array()?;
        let [f0, f1, f2, f3, ..] = flags;
        Ok(Self {
            identity: Identity::decode(map)?,
            scheduler: map.string(IPVS_SVC_ATTR_SCHED_NAME).unwrap_or_default(),
            flags: u32::from_ne_bytes([f0, f1, f2, f3]),
            timeout: map.required(IPVS_SVC_ATTR_TIMEOUT)?.u32_ne()?,
            counters: Counters::decode(map.get(IPVS_SVC_ATTR_STATS64), map.get(IPVS_SVC_ATTR_STATS))?,
        })
    }
}

impl RealServer {
    /// Creates a real server without limits, reached by masquerading.
    pub const fn new(place: SocketAddr, weight: u32) -> Self {
        Self {
            place,
            forward: FORWARD_MASQUERADE,
            weight,
            upper_threshold: 0,
            active: 0,
            inactive: 0,
            counters: Counters { connections: 0, packets: 0, bytes: 0 },
        }
    }

    fn encode(&self, message: &mut Message<'_>, of: &Identity) {
        of.encode(message);
        message.nest(IPVS_CMD_ATTR_DEST, |message| {
            encode_place(message, self.place);
            message.attr_u32_ne(IPVS_DEST_ATTR_FWD_METHOD, self.forward);
            message.attr_u32_ne(IPVS_DEST_ATTR_WEIGHT, self.weight);
            message.attr_u32_ne(IPVS_DEST_ATTR_U_THRESH, self.upper_threshold);
            message.attr_u32_ne(IPVS_DEST_ATTR_L_THRESH, 0);
        });
    }

    fn decode(map: &AttributeMap<'_, 13>) -> Result<Self, DecodeError> {
        let number = |kind| map.required(kind)?.u32_ne();
        let family = map.required(IPVS_DEST_ATTR_ADDR_FAMILY)?.u16_ne()?;
        let address = decode_address(&map.required(IPVS_DEST_ATTR_ADDR)?, family)?;
        let port = map.required(IPVS_DEST_ATTR_PORT)?.u16_be()?;
        let count = |kind| map.get(kind).map_or(Ok(0), |attribute| attribute.u32_ne());
        Ok(Self {
            place: SocketAddr::new(address, port),
            forward: number(IPVS_DEST_ATTR_FWD_METHOD)?,
            weight: number(IPVS_DEST_ATTR_WEIGHT)?,
            upper_threshold: count(IPVS_DEST_ATTR_U_THRESH)?,
            active: count(IPVS_DEST_ATTR_ACTIVE_CONNS)?,
            inactive: count(IPVS_DEST_ATTR_INACT_CONNS)?,
            counters: Counters::decode(map.get(IPVS_DEST_ATTR_STATS64), map.get(IPVS_DEST_ATTR_STATS))?,
        })
    }
}

impl Counters {
    /// Reads the counters: `wide` if the kernel has it, else `narrow`, whose numbers of connections and packets have 32 bits. Both are
    /// missing in requests.
    fn decode(wide: Option<Attribute<'_>>, narrow: Option<Attribute<'_>>) -> Result<Self, DecodeError> {
        let is_wide = wide.is_some();
        let Some(attribute) = wide.or(narrow) else { return Ok(Self::default()) };
        let map = attribute.nested(COUNTERS).by_kind::<5>()?;
        let long = |kind| map.get(kind).map_or(Ok(0), |number| number.array().map(u64::from_ne_bytes));
        let short = |kind| map.get(kind).map_or(Ok(0), |number| number.u32_ne().map(u64::from));
        let count = |kind| if is_wide { long(kind) } else { short(kind) };
        Ok(Self {
            connections: count(IPVS_STATS_ATTR_CONNS)?,
            packets: count(IPVS_STATS_ATTR_INPKTS)?,
            bytes: long(IPVS_STATS_ATTR_INBYTES)?,
        })
    }
}

fn encode_place(message: &mut Message<'_>, place: SocketAddr) {
    let family = if place.is_ipv4() { AF_INET } else { AF_INET6 };
    encode_address(message, IPVS_DEST_ATTR_ADDR, place.ip());
    message.attr_u16_be(IPVS_DEST_ATTR_PORT, place.port());
    message.attr_bytes(IPVS_DEST_ATTR_ADDR_FAMILY, &family.to_ne_bytes());
}

fn encode_address(message: &mut Message<'_>, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => message.attr_bytes(kind, &address.octets()),
        IpAddr::V6(address) => message.attr_bytes(kind, &address.octets()),
    }
}

/// Reads an address. The kernel sends 16 bytes for both families.
fn decode_address(attribute: &Attribute<'_>, family: u16) -> Result<IpAddr, DecodeError> {
    if family == AF_INET {
        let bytes = attribute.payload.first_chunk::<4>().ok_or_else(|| attribute.impossible(family))?;
        return Ok(Ipv4Addr::from(*bytes).into());
    }
    if family == AF_INET6 {
        return Ok(Ipv6Addr::from(attribute.array::<16>()?).into());
    }
    Err(attribute.impossible(family))
}
