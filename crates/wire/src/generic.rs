//! Generic netlink: its header, and the request for the number of a family by its name.

use crate::netlink::{Message, NLMSG_MIN_TYPE};
use crate::{Batch, DecodeError, Frame, Request};

/// Length of `struct genlmsghdr`.
pub const HEADER_LENGTH: usize = 4;
/// The family that returns information about families (`GENL_ID_CTRL`).
pub const CONTROL: u16 = NLMSG_MIN_TYPE;

const CONTROL_VERSION: u8 = 2;
const CTRL_CMD_NEWFAMILY: u8 = 1;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const FAMILY: &str = "generic netlink family";

/// `struct genlmsghdr`: follows the netlink header of every generic message, whose type is the family's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The requested or answered operation.
    pub command: u8,
    /// The family's version.
    pub version: u8,
}

/// A family of the running kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Family {
    /// The message type of the family.
    pub id: u16,
    /// The family's name.
    pub name: String,
}

/// A message of the family [`CONTROL`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GenericEvent {
    /// A family, in the answer to [`family`].
    NewFamily(Family),
    /// Another message.
    Other {
        /// The message type.
        kind: u16,
    },
}

/// Requests the family of this name (not a list: send it with the socket's `query`). ENOENT means that the kernel
/// has no such family.
pub fn family(name: &str) -> Request {
    let header = Header { command: CTRL_CMD_GETFAMILY, version: CONTROL_VERSION };
    request(CONTROL, 0, header, |message| message.attr_str(CTRL_ATTR_FAMILY_NAME, name))
}

/// Returns a message to the family with this number. `content` writes its attributes.
pub(crate) fn request(
    family: u16,
    flags: u16,
    header: Header,
    content: impl FnOnce(&mut Message<'_>),
) -> Request {
    Request::new(family, flags, &[header.command, header.version, 0, 0], content)
}

/// Starts a message to the family with this number in a batch.
pub(crate) fn message(batch: &mut Batch, family: u16, flags: u16, header: Header) -> Message<'_> {
    batch.message(family, flags, &[header.command, header.version, 0, 0])
}

impl Header {
    /// Reads the header of a message.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let have = frame.payload.len();
        let short = DecodeError::Truncated {
            object: "generic netlink header",
            offset: 0,
            needed: HEADER_LENGTH,
            have,
        };
        let &[command, version, _, _] = frame.payload.first_chunk().ok_or(short)?;
        Ok(Self { command, version })
    }
}

impl GenericEvent {
    /// Reads a message.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        match frame.header.kind {
            CONTROL if Header::decode(frame)?.command == CTRL_CMD_NEWFAMILY => {
                Family::decode(frame).map(Self::NewFamily)
            }
            kind => Ok(Self::Other { kind }),
        }
    }
}

impl Family {
    /// Reads a family.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let map = frame.attributes(FAMILY, HEADER_LENGTH)?.by_kind::<3>()?;
        Ok(Self {
            id: map.required(CTRL_ATTR_FAMILY_ID)?.u16_ne()?,
            name: map.required(CTRL_ATTR_FAMILY_NAME)?.string(),
        })
    }
}
