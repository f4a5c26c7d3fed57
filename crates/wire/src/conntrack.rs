//! Connection tracking: lists and deletes flows, reads notifications.
//!
//! A list is requested with a [`Filter`]. Kernels ignore the parts of a filter that they do not support (protocol
//! and address before 5.8, status before 5.15), so callers check each flow again.

mod filter;
mod tuple;

pub use filter::Filter;
pub use tuple::{Transport, Tuple};

use crate::netlink::{Attribute, Batch, Message};
use crate::nfnetlink::{self, Family, Header, SUBSYSTEM_CONNTRACK, message_type, subsystem_and_operation};
use crate::{DecodeError, Frame, Request};

const OBJECT: &str = "conntrack flow";
const IPCTNL_MSG_CT_NEW: u8 = 0;
const IPCTNL_MSG_CT_GET: u8 = 1;
const IPCTNL_MSG_CT_DELETE: u8 = 2;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_TIMEOUT: u16 = 7;
const CTA_MARK: u16 = 8;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;

/// `IPS_*` of `nf_conntrack_common.h`.
pub mod status {
    /// Packets were seen in both directions.
    pub const SEEN_REPLY: u32 = 1 << 1;
    /// The kernel does not drop the flow early.
    pub const ASSURED: u32 = 1 << 2;
    /// The first packet left the host or was delivered.
    pub const CONFIRMED: u32 = 1 << 3;
    /// The source was translated.
    pub const SRC_NAT: u32 = 1 << 4;
    /// The destination was translated.
    pub const DST_NAT: u32 = 1 << 5;
    /// The flow is being deleted.
    pub const DYING: u32 = 1 << 9;
}

/// States of a TCP connection (`nf_conntrack_tcp.h`).
pub mod tcp_state {
    /// The client has sent SYN, and nothing has come back.
    pub const SYN_SENT: u8 = 1;
    /// A reset has ended the connection.
    pub const CLOSE: u8 = 8;
}

/// A flow (tracked connection) in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// The direction of the first packet.
    pub original: Tuple,
    /// The direction of the replies. It differs from the mirrored original by the translated fields.
    pub reply: Tuple,
    /// Bits of [`status`].
    pub status: u32,
    /// The connection mark.
    pub mark: Option<u32>,
    /// The kernel's id, which distinguishes the flow from a later one with the same tuple.
    pub id: Option<u32>,
    /// Seconds until the flow expires if no packet comes.
    pub timeout: Option<u32>,
    /// The zone, if not 0.
    pub zone: Option<u16>,
    /// The state of a TCP connection: see [`tcp_state`].
    pub tcp_state: Option<u8>,
}

/// A message of the conntrack subsystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConntrackEvent {
    /// A flow in a list, or in a notification that it is new or changed.
    New(Flow),
    /// A flow was deleted.
    Delete(Flow),
    /// Another message.
    Other {
        /// The message type.
        kind: u16,
    },
}

/// Requests the flows that match a filter.
pub fn list(filter: &Filter) -> Request {
    let kind = message_type(SUBSYSTEM_CONNTRACK, IPCTNL_MSG_CT_GET);
    let flags = crate::netlink::NLM_F_DUMP;
    Request::new(kind, flags, &Header::of(filter.family), |message| filter.encode(message))
}

/// Requests the flow with this reply tuple. ENOENT means that there is none.
pub fn answered_by(reply: &Tuple) -> Request {
    let kind = message_type(SUBSYSTEM_CONNTRACK, IPCTNL_MSG_CT_GET);
    Request::new(kind, 0, &Header::of(reply.family()), |message| {
        message.nest(CTA_TUPLE_REPLY, |message| reply.encode(message));
    })
}

/// Adds the deletion of a flow to a batch and returns the sequence number of its message. ENOENT means that there
/// is no such flow.
///
/// The flow is identified by its reply tuple, and by its id if known. The id alone does not distinguish it from a
/// later flow of the same client: the kernel derives the id from the original tuple and the flow's memory address
/// (`nf_ct_get_id`). If the later flow goes to another endpoint, its reply tuple differs.
pub fn delete(batch: &mut Batch, flow: &Flow) -> u32 {
    let kind = message_type(SUBSYSTEM_CONNTRACK, IPCTNL_MSG_CT_DELETE);
    let mut message = batch.message(kind, 0, &Header::of(flow.family()));
    message.nest(CTA_TUPLE_REPLY, |message| flow.reply.encode(message));
    encode_identity(&mut message, flow.id, flow.zone);
    message.sequence()
}

fn encode_identity(message: &mut Message<'_>, id: Option<u32>, zone: Option<u16>) {
    if let Some(id) = id {
        message.attr_u32_be(CTA_ID, id);
    }
    if let Some(zone) = zone {
        message.attr_u16_be(CTA_ZONE, zone);
    }
}

impl ConntrackEvent {
    /// Reads a message.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        match subsystem_and_operation(frame.header.kind) {
            (SUBSYSTEM_CONNTRACK, IPCTNL_MSG_CT_NEW) => Flow::decode(frame).map(Self::New),
            (SUBSYSTEM_CONNTRACK, IPCTNL_MSG_CT_DELETE) => Flow::decode(frame).map(Self::Delete),
            _ => Ok(Self::Other { kind: frame.header.kind }),
        }
    }
}

impl Flow {
    /// Reads a flow.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        Header::decode(frame)?;
        let map = frame.attributes(OBJECT, nfnetlink::HEADER_LENGTH)?.by_kind::<19>()?;
        Ok(Self {
            original: Tuple::decode(&map.required(CTA_TUPLE_ORIG)?)?,
            reply: Tuple::decode(&map.required(CTA_TUPLE_REPLY)?)?,
            status: map.u32_be(CTA_STATUS)?.unwrap_or(0),
            mark: map.u32_be(CTA_MARK)?,
            id: map.u32_be(CTA_ID)?,
            timeout: map.u32_be(CTA_TIMEOUT)?,
            zone: map.get(CTA_ZONE).map(|attribute| attribute.u16_be()).transpose()?,
            tcp_state: map.get(CTA_PROTOINFO).map(|info| decode_tcp_state(&info)).transpose()?.flatten(),
        })
    }

    /// Returns the family of the addresses.
    pub fn family(&self) -> Family {
        self.original.family()
    }
}

/// Returns `None` if the information is that of another protocol.
fn decode_tcp_state(info: &Attribute<'_>) -> Result<Option<u8>, DecodeError> {
    let map = info.nested("conntrack protocol state").by_kind::<2>()?;
    let Some(tcp) = map.get(CTA_PROTOINFO_TCP) else { return Ok(None) };
    let tcp = tcp.nested("conntrack TCP state").by_kind::<2>()?;
    tcp.get(CTA_PROTOINFO_TCP_STATE).map(|state| state.u8()).transpose()
}
