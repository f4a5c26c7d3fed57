//! The parts that all netlink families share: message header, attributes, acknowledgements.
//!
//! Writing: [`Batch`] holds any number of messages. [`Batch::message`] starts one, attributes are added, and
//! lengths are filled in when it is dropped. Reading: [`Frames`] iterates over the messages of a datagram and
//! [`Attributes`] over those of a payload, both forward only and without copying.

mod attributes;
mod batch;
mod frame;

pub use attributes::{Attribute, AttributeMap, Attributes};
pub(crate) use batch::OpenNest;
pub use batch::{Batch, Message, Request};
pub use frame::{Acknowledgement, Frame, Frames, Header};

/// Protocol of addresses, links and routes.
pub const NETLINK_ROUTE: u32 = 0;
/// Protocol of `nf_tables`, conntrack and ipset.
pub const NETLINK_NETFILTER: u32 = 12;
/// Protocol of the families that are identified by name instead of number.
pub const NETLINK_GENERIC: u32 = 16;

/// Length of `struct nlmsghdr`.
pub const HEADER_LENGTH: usize = 16;
/// Length of `struct nlattr`.
pub const ATTRIBUTE_HEADER_LENGTH: usize = 4;

/// No content; to be skipped.
pub const NLMSG_NOOP: u16 = 1;
/// An acknowledgement: see [`Acknowledgement`].
pub const NLMSG_ERROR: u16 = 2;
/// The end of a dump; it carries an error number, too.
pub const NLMSG_DONE: u16 = 3;
/// Data was lost.
pub const NLMSG_OVERRUN: u16 = 4;
/// Types below this one are control messages.
pub const NLMSG_MIN_TYPE: u16 = 0x10;

/// The message is a request.
pub const NLM_F_REQUEST: u16 = 0x01;
/// One of several messages, ended by [`NLMSG_DONE`].
pub const NLM_F_MULTI: u16 = 0x02;
/// Requests an acknowledgement even on success.
pub const NLM_F_ACK: u16 = 0x04;
/// Requests that the notifications that the request causes are sent to the requester, too.
pub const NLM_F_ECHO: u16 = 0x08;
/// The dump is inconsistent: the objects changed while it ran.
pub const NLM_F_DUMP_INTR: u16 = 0x10;
/// The kernel applied the dump's filter.
pub const NLM_F_DUMP_FILTERED: u16 = 0x20;
/// Requests all objects (`NLM_F_ROOT | NLM_F_MATCH`).
pub const NLM_F_DUMP: u16 = 0x300;
/// Replace an existing object.
pub const NLM_F_REPLACE: u16 = 0x100;
/// Fail if the object exists.
pub const NLM_F_EXCL: u16 = 0x200;
/// Create the object if it does not exist.
pub const NLM_F_CREATE: u16 = 0x400;
/// Add the object at the end of the list.
pub const NLM_F_APPEND: u16 = 0x800;
/// The acknowledgement holds only the header of the failed message.
pub const NLM_F_CAPPED: u16 = 0x100;
/// The acknowledgement carries extended-acknowledgement attributes.
pub const NLM_F_ACK_TLVS: u16 = 0x200;

/// The attribute contains attributes.
pub const NLA_F_NESTED: u16 = 1 << 15;
/// The attribute's payload is in network byte order.
pub const NLA_F_NET_BYTEORDER: u16 = 1 << 14;
/// Mask of the bits of an attribute's type field that hold the type.
pub const NLA_TYPE_MASK: u16 = !(NLA_F_NESTED | NLA_F_NET_BYTEORDER);

/// Rounds a length up to netlink's alignment of four bytes.
pub(crate) const fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}
