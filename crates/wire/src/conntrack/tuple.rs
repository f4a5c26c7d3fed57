//! One direction of a flow.

use std::net::IpAddr;

use crate::DecodeError;
use crate::netlink::{Attribute, AttributeMap, Message};
use crate::nfnetlink::Family;

const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_PROTO_ICMP_ID: u16 = 4;
const CTA_PROTO_ICMPV6_ID: u16 = 7;
const IPPROTO_ICMPV6: u8 = 58;

/// One direction of a flow: source, destination and protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Address of the sender.
    pub source: IpAddr,
    /// Address of the receiver, of the same family.
    pub destination: IpAddr,
    /// Number of the transport protocol.
    pub protocol: u8,
    /// The fields that distinguish flows of this protocol.
    pub transport: Transport,
}

/// The fields that distinguish flows of one protocol between two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP, UDP, SCTP and other protocols with ports.
    Ports {
        /// Port of the sender.
        source: u16,
        /// Port of the receiver.
        destination: u16,
    },
    /// ICMP and `ICMPv6`.
    Icmp {
        /// Identifier of an echo.
        id: u16,
        /// Type of the ICMP message.
        kind: u8,
        /// Code of the ICMP message.
        code: u8,
    },
    /// A protocol without such fields.
    Other,
}

impl Tuple {
    /// Creates a tuple of a protocol with ports.
    pub fn with_ports(
        protocol: u8,
        source: (impl Into<IpAddr>, u16),
        destination: (impl Into<IpAddr>, u16),
    ) -> Self {
        let transport = Transport::Ports { source: source.1, destination: destination.1 };
        Self { source: source.0.into(), destination: destination.0.into(), protocol, transport }
    }

    /// Returns the family of the addresses.
    pub fn family(&self) -> Family {
        if self.destination.is_ipv4() { Family::IPV4 } else { Family::IPV6 }
    }

    /// Returns the port of the sender; `None` for protocols without ports.
    pub fn source_port(&self) -> Option<u16> {
        match self.transport {
            Transport::Ports { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Returns the port of the receiver; `None` for protocols without ports.
    pub fn destination_port(&self) -> Option<u16> {
        match self.transport {
            Transport::Ports { destination, .. } => Some(destination),
            _ => None,
        }
    }

    pub(super) fn encode(&self, message: &mut Message<'_>) {
        message.nest(CTA_TUPLE_IP, |message| {
            encode_address(message, CTA_IP_V4_SRC, CTA_IP_V6_SRC, self.source);
            encode_address(message, CTA_IP_V4_DST, CTA_IP_V6_DST, self.destination);
        });
        message.nest(CTA_TUPLE_PROTO, |message| {
            message.attr_u8(CTA_PROTO_NUM, self.protocol);
            self.transport.encode(message, self.protocol);
        });
    }

    pub(super) fn decode(attribute: &Attribute<'_>) -> Result<Self, DecodeError> {
        let map = attribute.nested("conntrack tuple").by_kind::<3>()?;
        let addresses = map.required(CTA_TUPLE_IP)?.nested("conntrack addresses").by_kind::<5>()?;
        let proto = map.required(CTA_TUPLE_PROTO)?.nested("conntrack transport").by_kind::<10>()?;
        let protocol = proto.required(CTA_PROTO_NUM)?.u8()?;
        Ok(Self {
            source: decode_address(&addresses, CTA_IP_V4_SRC, CTA_IP_V6_SRC)?,
            destination: decode_address(&addresses, CTA_IP_V4_DST, CTA_IP_V6_DST)?,
            protocol,
            transport: Transport::decode(&proto, protocol)?,
        })
    }
}

/// Writes a filter for the destination: any of address, protocol and port.
pub(super) fn encode_partial(
    message: &mut Message<'_>,
    destination: Option<IpAddr>,
    protocol: Option<u8>,
    port: Option<u16>,
) {
    if let Some(address) = destination {
        message.nest(CTA_TUPLE_IP, |message| encode_address(message, CTA_IP_V4_DST, CTA_IP_V6_DST, address));
    }
    if let Some(protocol) = protocol {
        message.nest(CTA_TUPLE_PROTO, |message| {
            message.attr_u8(CTA_PROTO_NUM, protocol);
            if let Some(port) = port {
                message.attr_u16_be(CTA_PROTO_DST_PORT, port);
            }
        });
    }
}

impl Transport {
    fn encode(self, message: &mut Message<'_>, protocol: u8) {
        match self {
            Self::Ports { source, destination } => {
                message.attr_u16_be(CTA_PROTO_SRC_PORT, source);
                message.attr_u16_be(CTA_PROTO_DST_PORT, destination);
            }
            Self::Icmp { id, kind, code } => {
                let first = icmp_id(protocol);
                message.attr_u16_be(first, id);
                message.attr_u8(first + 1, kind);
                message.attr_u8(first + 2, code);
            }
            Self::Other => {}
        }
    }

    fn decode(map: &AttributeMap<'_, 10>, protocol: u8) -> Result<Self, DecodeError> {
        if let Some(source) = map.get(CTA_PROTO_SRC_PORT) {
            let destination = map.required(CTA_PROTO_DST_PORT)?.u16_be()?;
            return Ok(Self::Ports { source: source.u16_be()?, destination });
        }
        let first = icmp_id(protocol);
        let Some(id) = map.get(first) else { return Ok(Self::Other) };
        let (kind, code) = (map.required(first + 1)?.u8()?, map.required(first + 2)?.u8()?);
        Ok(Self::Icmp { id: id.u16_be()?, kind, code })
    }
}

/// Returns the first of the three attributes of an echo: id, type, code.
fn icmp_id(protocol: u8) -> u16 {
    if protocol == IPPROTO_ICMPV6 { CTA_PROTO_ICMPV6_ID } else { CTA_PROTO_ICMP_ID }
}

fn encode_address(message: &mut Message<'_>, v4: u16, v6: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => message.attr_bytes(v4, &address.octets()),
        IpAddr::V6(address) => message.attr_bytes(v6, &address.octets()),
    }
}

fn decode_address(map: &AttributeMap<'_, 5>, v4: u16, v6: u16) -> Result<IpAddr, DecodeError> {
    match map.get(v4) {
        Some(address) => Ok(address.array::<4>()?.into()),
        None => Ok(map.required(v6)?.array::<16>()?.into()),
    }
}
