//! Selects the flows to list.

use std::net::IpAddr;

use super::{CTA_MARK, CTA_STATUS, CTA_TUPLE_ORIG, CTA_ZONE, tuple};
use crate::netlink::Message;
use crate::nfnetlink::Family;

const CTA_MARK_MASK: u16 = 21;
const CTA_FILTER: u16 = 25;
const CTA_STATUS_MASK: u16 = 26;
const CTA_FILTER_ORIG_FLAGS: u16 = 1;
const CTA_FILTER_REPLY_FLAGS: u16 = 2;

/// Bits that select the fields of a tuple to compare (`nf_internals.h`).
const FLAG_IP_DST: u32 = 1 << 1;
const FLAG_PROTO_NUM: u32 = 1 << 3;
const FLAG_PROTO_DST_PORT: u32 = 1 << 5;

/// The flows to list. A flow has to match all parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter {
    /// Family of the flows.
    pub family: Family,
    /// Number of the transport protocol.
    pub protocol: Option<u8>,
    /// Destination of the original direction.
    pub destination: Option<IpAddr>,
    /// Destination port of the original direction. Used only with `protocol`.
    pub destination_port: Option<u16>,
    /// Bits that have to be set in the status. Linux before 5.15 ignores them.
    pub status: u32,
    /// The mark, and the mask of the bits to compare.
    pub mark: Option<(u32, u32)>,
    /// The zone.
    pub zone: Option<u16>,
}

impl Filter {
    /// Selects all flows of a family.
    pub fn family(family: Family) -> Self {
        Self {
            family,
            protocol: None,
            destination: None,
            destination_port: None,
            status: 0,
            mark: None,
            zone: None,
        }
    }

    /// Selects all flows of a family and a transport protocol.
    pub fn protocol(family: Family, protocol: u8) -> Self {
        Self { protocol: Some(protocol), ..Self::family(family) }
    }

    pub(super) fn encode(&self, message: &mut Message<'_>) {
        self.encode_tuple(message);
        if self.status != 0 {
            message.attr_u32_be(CTA_STATUS, self.status);
            message.attr_u32_be(CTA_STATUS_MASK, self.status);
        }
        if let Some((mark, mask)) = self.mark {
            message.attr_u32_be(CTA_MARK, mark);
            message.attr_u32_be(CTA_MARK_MASK, mask);
        }
        if let Some(zone) = self.zone {
            message.attr_u16_be(CTA_ZONE, zone);
        }
    }

    fn encode_tuple(&self, message: &mut Message<'_>) {
        // For IPv6 the kernel (also 6.18) lists the flows of all other addresses instead, so this part is not sent.
        let destination = self.destination.filter(IpAddr::is_ipv4);
        let port = self.destination_port.filter(|_| self.protocol.is_some());
        let flag = |present, bit| if present { bit } else { 0 };
        let flags = flag(destination.is_some(), FLAG_IP_DST)
            | flag(self.protocol.is_some(), FLAG_PROTO_NUM)
            | flag(port.is_some(), FLAG_PROTO_DST_PORT);
        if flags == 0 {
            return;
        }
        message.nest(CTA_TUPLE_ORIG, |message| {
            tuple::encode_partial(message, destination, self.protocol, port);
        });
        // Both numbers are in the machine's byte order, unlike all others of this subsystem.
        message.nest(CTA_FILTER, |message| {
            message.attr_u32_ne(CTA_FILTER_ORIG_FLAGS, flags);
            message.attr_u32_ne(CTA_FILTER_REPLY_FLAGS, 0);
        });
    }
}
