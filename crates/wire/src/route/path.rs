//! Questions about the route of one packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::policy::LOCAL;
use super::{AF_INET, AF_INET6};
use crate::{DecodeError, Frame, Request};

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;

const PATH: &str = "rtnetlink path";
/// Length of `struct rtmsg`.
const HEADER: usize = 12;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_IIF: u16 = 3;
const RTA_OIF: u16 = 4;
const RTA_PREFSRC: u16 = 7;
/// Bits of an IPv4 address.
const WHOLE: u8 = 32;
/// Bits of an IPv6 address.
const WHOLE_IPV6: u8 = 128;

/// The route of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Path {
    /// Index of the interface through which the packet leaves.
    pub interface: u32,
    /// The source that the kernel chooses for a packet of this host.
    pub source: Option<Ipv4Addr>,
}

/// Asks for the route of packets of this host to a destination. The kernel refuses if there is none.
pub fn to(destination: Ipv4Addr) -> Request {
    let header = [AF_INET, WHOLE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    Request::new(RTM_GETROUTE, 0, &header, |message| message.attr_bytes(RTA_DST, &destination.octets()))
}

/// Asks for the route of a packet that arrives at the interface with this index. The kernel refuses if it would drop the
/// packet, also because of its source.
pub fn arriving(interface: u32, source: Ipv4Addr, destination: Ipv4Addr) -> Request {
    let header = [AF_INET, WHOLE, WHOLE, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    Request::new(RTM_GETROUTE, 0, &header, |message| {
        message.attr_bytes(RTA_DST, &destination.octets());
        message.attr_bytes(RTA_SRC, &source.octets());
        message.attr_u32_ne(RTA_IIF, interface);
    })
}

/// Asks for the route of packets of this host to a destination of either family, to be read by [`is_local`] and
/// [`leaves_through`]. The kernel refuses if there is none.
pub fn of(destination: IpAddr) -> Request {
    match destination {
        IpAddr::V4(destination) => to(destination),
        IpAddr::V6(destination) => to_ipv6(destination),
    }
}

/// Returns the index of the interface through which the packet of an answer leaves. `None` for another message.
pub fn leaves_through(frame: &Frame<'_>) -> Result<Option<u32>, DecodeError> {
    if frame.header.kind != RTM_NEWROUTE {
        return Ok(None);
    }
    let map = frame.attributes(PATH, HEADER)?.by_kind::<31>()?;
    Ok(Some(map.required(RTA_OIF)?.u32_ne()?))
}

/// Asks for the route of packets of this host to an IPv6 destination, to be read by [`is_local`]. The kernel refuses if
/// there is none.
pub fn to_ipv6(destination: Ipv6Addr) -> Request {
    let header = [AF_INET6, WHOLE_IPV6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    Request::new(RTM_GETROUTE, 0, &header, |message| message.attr_bytes(RTA_DST, &destination.octets()))
}

/// Returns true if an answer says that the packets are delivered to this host.
pub fn is_local(frame: &Frame<'_>) -> bool {
    frame.header.kind == RTM_NEWROUTE && frame.payload.get(7) == Some(&LOCAL)
}

impl Path {
    /// Reads an answer. Returns `None` for another message.
    pub fn decode(frame: &Frame<'_>) -> Result<Option<Self>, DecodeError> {
        if frame.header.kind != RTM_NEWROUTE {
            return Ok(None);
        }
        let map = frame.attributes(PATH, HEADER)?.by_kind::<31>()?;
        let source = map.get(RTA_PREFSRC).map(|attribute| attribute.array::<4>()).transpose()?;
        Ok(Some(Self { interface: map.required(RTA_OIF)?.u32_ne()?, source: source.map(Ipv4Addr::from) }))
    }
}
