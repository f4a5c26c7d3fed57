//! nfacct: named counters that iptables rules refer to.

use crate::netlink::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use crate::nfnetlink::{self, Family, Header, SUBSYSTEM_ACCT, message_type, subsystem_and_operation};
use crate::{DecodeError, Frame, Request};

/// Maximum length of a counter's name in bytes (`NFACCT_NAME_MAX` includes the NUL byte).
pub const NAME_MAX: usize = 31;

const NFNL_MSG_ACCT_NEW: u8 = 0;
const NFNL_MSG_ACCT_GET: u8 = 1;
const NFNL_MSG_ACCT_DEL: u8 = 3;
const NFACCT_NAME: u16 = 1;
const NFACCT_PKTS: u16 = 2;
const NFACCT_BYTES: u16 = 3;
const COUNTER: &str = "nfacct counter";

/// A counter as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    /// The counter's name.
    pub name: String,
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// A message of nfacct.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NfacctEvent {
    /// A counter.
    Counter(Counter),
    /// Another message.
    Other {
        /// The message type.
        kind: u16,
    },
}

/// Creates a counter that starts at zero. EEXIST means that the name is taken, EINVAL that the kernel does not
/// support nfacct.
pub fn create(name: &str) -> Request {
    request(NFNL_MSG_ACCT_NEW, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, name)
}

/// Requests the counter of this name (not a list: send it with the socket's `query`). ENOENT means that there is
/// none.
pub fn get(name: &str) -> Request {
    request(NFNL_MSG_ACCT_GET, NLM_F_ACK, name)
}

/// Removes a counter. ENOENT means that there is none of this name, EBUSY that a rule refers to it.
pub fn delete(name: &str) -> Request {
    request(NFNL_MSG_ACCT_DEL, NLM_F_ACK, name)
}

fn request(operation: u8, flags: u16, name: &str) -> Request {
    let kind = message_type(SUBSYSTEM_ACCT, operation);
    Request::new(kind, flags, &Header::of(Family::UNSPECIFIED), |message| {
        message.attr_str(NFACCT_NAME, name);
    })
}

impl NfacctEvent {
    /// Reads a message.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let kind = frame.header.kind;
        if subsystem_and_operation(kind) != (SUBSYSTEM_ACCT, NFNL_MSG_ACCT_NEW) {
            return Ok(Self::Other { kind });
        }
        let map = frame.attributes(COUNTER, nfnetlink::HEADER_LENGTH)?.by_kind::<4>()?;
        Ok(Self::Counter(Counter {
            name: map.required(NFACCT_NAME)?.string(),
            packets: map.required(NFACCT_PKTS)?.u64_be()?,
            bytes: map.required(NFACCT_BYTES)?.u64_be()?,
        }))
    }
}
