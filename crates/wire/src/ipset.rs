//! ipset: the names of the sets, and their removal.

use crate::netlink::{Message, NLM_F_ACK, NLM_F_DUMP};
use crate::nfnetlink::{self, Family, Header, SUBSYSTEM_IPSET, message_type, subsystem_and_operation};
use crate::{DecodeError, Frame, Request};

/// Longest name of a set in bytes (`IPSET_MAXNAMELEN` counts the NUL byte too).
pub const NAME_MAX: usize = 31;
/// The error number of a refusal because a rule or another set refers to the set (`IPSET_ERR_BUSY`).
pub const ERR_BUSY: i32 = 4100;

/// What every kernel takes: those before 4.20 know only this one, later ones this one and the next.
const PROTOCOL: u8 = 6;
const IPSET_CMD_DESTROY: u8 = 3;
const IPSET_CMD_LIST: u8 = 7;
const IPSET_ATTR_PROTOCOL: u16 = 1;
const IPSET_ATTR_SETNAME: u16 = 2;
const IPSET_ATTR_FLAGS: u16 = 6;
/// The list has names only, without types and members.
const IPSET_FLAG_LIST_SETNAME: u32 = 1 << 1;
const SET: &str = "ipset";

/// A message of ipset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A set of this name is there.
    Set {
        /// Its name.
        name: String,
    },
    /// Something else.
    Other {
        /// The message type.
        kind: u16,
    },
}

/// The names of all sets. EINVAL says that the kernel does not have ipset.
pub fn names() -> Request {
    request(IPSET_CMD_LIST, NLM_F_DUMP, |message| {
        message.attr_u32_be(IPSET_ATTR_FLAGS, IPSET_FLAG_LIST_SETNAME);
    })
}

/// Removes a set with its members. [`ERR_BUSY`] says that it is in use.
pub fn destroy(name: &str) -> Request {
    request(IPSET_CMD_DESTROY, NLM_F_ACK, |message| message.attr_str(IPSET_ATTR_SETNAME, name))
}

fn request(operation: u8, flags: u16, content: impl FnOnce(&mut Message<'_>)) -> Request {
    let kind = message_type(SUBSYSTEM_IPSET, operation);
    Request::new(kind, flags, &Header::of(Family::UNSPECIFIED), |message| {
        message.attr_u8(IPSET_ATTR_PROTOCOL, PROTOCOL);
        content(message);
    })
}

impl Event {
    /// Reads a message.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let kind = frame.header.kind;
        if subsystem_and_operation(kind) != (SUBSYSTEM_IPSET, IPSET_CMD_LIST) {
            return Ok(Self::Other { kind });
        }
        let map = frame.attributes(SET, nfnetlink::HEADER_LENGTH)?.by_kind::<3>()?;
        Ok(Self::Set { name: map.required(IPSET_ATTR_SETNAME)?.string()? })
    }
}
