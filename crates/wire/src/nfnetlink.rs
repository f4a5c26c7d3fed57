//! The netfilter header and the marks of a batch, shared by `nf_tables`, conntrack, ipset, nfacct and `nft_compat`.

use crate::netlink::NLMSG_MIN_TYPE;
use crate::{Batch, DecodeError, Frame};

/// Length of `struct nfgenmsg`.
pub const HEADER_LENGTH: usize = 4;
/// Subsystem of conntrack.
pub const SUBSYSTEM_CONNTRACK: u8 = 1;
/// Subsystem of ipset.
pub const SUBSYSTEM_IPSET: u8 = 6;
/// Subsystem of nfacct.
pub const SUBSYSTEM_ACCT: u8 = 7;
/// Subsystem of `nf_tables`.
pub const SUBSYSTEM_NFTABLES: u8 = 10;
/// Subsystem of `nft_compat`.
pub const SUBSYSTEM_COMPAT: u8 = 11;

/// Multicast group of new conntrack entries.
pub const GROUP_CONNTRACK_NEW: u32 = 1;
/// Multicast group of removed conntrack entries.
pub const GROUP_CONNTRACK_DESTROY: u32 = 3;
/// Multicast group of changes to `nf_tables`.
pub const GROUP_NFTABLES: u32 = 7;

/// Begins a transaction.
pub const BATCH_BEGIN: u16 = NLMSG_MIN_TYPE;
/// Ends a transaction.
pub const BATCH_END: u16 = NLMSG_MIN_TYPE + 1;
const NFNL_BATCH_GENID: u16 = 1;

numbers! {
    /// Protocol family of a table or a message (`NFPROTO_*`).
    Family(u8) {
        /// No family, or all families.
        UNSPECIFIED = 0,
        /// IPv4 and IPv6 in one table.
        INET = 1,
        /// IPv4 (nft's `ip`).
        IPV4 = 2,
        /// ARP.
        ARP = 3,
        /// Devices (nft's `netdev`).
        NETDEV = 5,
        /// Bridges.
        BRIDGE = 7,
        /// IPv6 (nft's `ip6`).
        IPV6 = 10,
    }
}

/// `struct nfgenmsg`: follows the netlink header of every netfilter message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Family of the object.
    pub family: Family,
    /// Always 0.
    pub version: u8,
    /// The subsystem in the mark of a batch; the low half of the generation in `nf_tables` replies.
    pub resource: u16,
}

impl Header {
    /// Returns the header of a message about an object of this family.
    pub fn of(family: Family) -> [u8; HEADER_LENGTH] {
        [family.0, 0, 0, 0]
    }

    /// Reads the header of a message.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let have = frame.payload.len();
        let short =
            DecodeError::Truncated { object: "nfnetlink header", offset: 0, needed: HEADER_LENGTH, have };
        let &[family, version, high, low] = frame.payload.first_chunk().ok_or(short)?;
        Ok(Self { family: Family(family), version, resource: u16::from_be_bytes([high, low]) })
    }
}

/// Returns the message type of a subsystem's operation.
pub const fn message_type(subsystem: u8, operation: u8) -> u16 {
    u16::from_be_bytes([subsystem, operation])
}

/// Returns the subsystem and operation of a message type.
pub const fn subsystem_and_operation(kind: u16) -> (u8, u8) {
    let [subsystem, operation] = kind.to_be_bytes();
    (subsystem, operation)
}

/// Begins a transaction of `subsystem`. With a `generation`, the kernel refuses the transaction (ERESTART) if its
/// rules have another generation.
pub fn batch_begin(batch: &mut Batch, subsystem: u8, generation: Option<u32>) {
    let mut message = batch.message(BATCH_BEGIN, 0, &batch_header(subsystem));
    if let Some(generation) = generation {
        message.attr_u32_be(NFNL_BATCH_GENID, generation);
    }
}

/// Ends a transaction of `subsystem`.
pub fn batch_end(batch: &mut Batch, subsystem: u8) {
    batch.message(BATCH_END, 0, &batch_header(subsystem));
}

fn batch_header(subsystem: u8) -> [u8; HEADER_LENGTH] {
    [0, 0, 0, subsystem]
}
