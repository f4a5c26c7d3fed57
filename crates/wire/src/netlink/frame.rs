//! Reads the messages of a datagram, and the control messages that all families share.

use super::{
    Attributes, HEADER_LENGTH, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR,
    aligned,
};
use crate::DecodeError;

const ERROR: &str = "netlink acknowledgement";
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLMSGERR_ATTR_OFFS: u16 = 2;
const NLMSGERR_ATTR_MISS_TYPE: u16 = 5;
const NLMSGERR_ATTR_MISS_NEST: u16 = 6;

/// `struct nlmsghdr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Length with this header in bytes.
    pub length: u32,
    /// Message type.
    pub kind: u16,
    /// `NLM_F_*`.
    pub flags: u16,
    /// Sequence number of the request that this message answers; 0 in most notifications.
    pub sequence: u32,
    /// Port of the sender, or of the requester.
    pub port: u32,
}

/// A message inside a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The message's header.
    pub header: Header,
    /// The bytes after the header, without padding.
    pub payload: &'a [u8],
}

/// An iterator over the messages of a datagram. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Frames<'a> {
    rest: &'a [u8],
    offset: usize,
}

/// The kernel's answer to a message: success, or an error with extended information (`NLMSG_ERROR`, and the end of
/// a dump).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Sequence number of the message that this answers.
    pub sequence: u32,
    /// Error number, positive; 0 means success.
    pub errno: i32,
    /// The kernel's error message, often absent.
    pub text: Option<String>,
    /// Offset of the wrong attribute from the start of the failed message's header.
    pub offset: Option<u32>,
    /// Type of a required attribute that is missing.
    pub missing: Option<u32>,
    /// Offset of the attribute in which `missing` is required.
    pub missing_nest: Option<u32>,
}

impl<'a> Frames<'a> {
    /// Iterates over the messages of a datagram.
    pub fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram, offset: 0 }
    }

    fn read(&mut self) -> Result<Frame<'a>, DecodeError> {
        let (rest, offset) = (self.rest, self.offset);
        let truncated =
            |needed| DecodeError::Truncated { object: "netlink message", offset, needed, have: rest.len() };
        let header = Header::decode(rest).ok_or(truncated(HEADER_LENGTH))?;
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        let payload = rest.get(HEADER_LENGTH..length).ok_or(truncated(length.max(HEADER_LENGTH)))?;
        let advance = aligned(length);
        self.rest = rest.get(advance..).unwrap_or_default();
        self.offset = offset.saturating_add(advance);
        Ok(Frame { header, payload })
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let frame = self.read();
        if frame.is_err() {
            self.rest = &[];
        }
        Some(frame)
    }
}

impl Header {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let &[l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, p0, p1, p2, p3] = bytes.first_chunk()?;
        Some(Self {
            length: u32::from_ne_bytes([l0, l1, l2, l3]),
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            port: u32::from_ne_bytes([p0, p1, p2, p3]),
        })
    }

    /// Returns true if the kernel marked this dump as inconsistent.
    pub fn interrupted(&self) -> bool {
        self.flags & NLM_F_DUMP_INTR != 0
    }
}

impl<'a> Frame<'a> {
    /// Returns the acknowledgement if this message is one (`NLMSG_ERROR` or `NLMSG_DONE`).
    pub fn acknowledgement(&self) -> Option<Result<Acknowledgement, DecodeError>> {
        match self.header.kind {
            NLMSG_ERROR => Some(self.decode_error()),
            NLMSG_DONE => Some(self.decode_done()),
            _ => None,
        }
    }

    /// Iterates over the attributes after a family header of `header_length` bytes. `object` is the name in errors.
    pub fn attributes(
        &self,
        object: &'static str,
        header_length: usize,
    ) -> Result<Attributes<'a>, DecodeError> {
        let have = self.payload.len();
        let short = DecodeError::Truncated { object, offset: 0, needed: header_length, have };
        let start = aligned(header_length);
        match self.payload.get(start..) {
            Some(bytes) => Ok(Attributes::new(object, bytes, start)),
            None if have >= header_length => Ok(Attributes::new(object, &[], start)),
            None => Err(short),
        }
    }

    /// Reads `struct nlmsgerr`: error number, header of the failed message, its body unless capped, attributes.
    fn decode_error(&self) -> Result<Acknowledgement, DecodeError> {
        let (errno, rest) = self.error_number()?;
        let failed = Header::decode(rest).ok_or(DecodeError::Truncated {
            object: ERROR,
            offset: 4,
            needed: HEADER_LENGTH,
            have: rest.len(),
        })?;
        // A success contains only the header, and so does an error if the socket requested capped acknowledgements.
        let body = match failed.length {
            _ if errno == 0 || self.header.flags & NLM_F_CAPPED != 0 => HEADER_LENGTH,
            length => aligned(usize::try_from(length).unwrap_or(usize::MAX)),
        };
        let attributes = rest.get(body..).unwrap_or_default();
        self.extended(errno, attributes, body.saturating_add(4))
    }

    fn decode_done(&self) -> Result<Acknowledgement, DecodeError> {
        if self.payload.is_empty() {
            return self.extended(0, &[], 0);
        }
        let (errno, attributes) = self.error_number()?;
        self.extended(errno, attributes, 4)
    }

    fn error_number(&self) -> Result<(i32, &'a [u8]), DecodeError> {
        let (error, rest) = self.payload.split_first_chunk().ok_or(DecodeError::Truncated {
            object: ERROR,
            offset: 0,
            needed: 4,
            have: self.payload.len(),
        })?;
        Ok((i32::from_ne_bytes(*error).saturating_neg().max(0), rest))
    }

    fn extended(&self, errno: i32, attributes: &[u8], offset: usize) -> Result<Acknowledgement, DecodeError> {
        let attributes = if self.header.flags & NLM_F_ACK_TLVS == 0 { &[] } else { attributes };
        let map = Attributes::new(ERROR, attributes, offset).by_kind::<7>()?;
        let number = |kind| map.get(kind).map(|attribute| attribute.u32_ne()).transpose();
        Ok(Acknowledgement {
            sequence: self.header.sequence,
            errno,
            text: map.string(NLMSGERR_ATTR_MSG),
            offset: number(NLMSGERR_ATTR_OFFS)?,
            missing: number(NLMSGERR_ATTR_MISS_TYPE)?,
            missing_nest: number(NLMSGERR_ATTR_MISS_NEST)?,
        })
    }
}
