//! Tables.

use super::UserData;
use crate::netlink::Message;
use crate::nfnetlink::{self, Family, Header};
use crate::{DecodeError, Frame};

const OBJECT: &str = "nf_tables table";
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFTA_TABLE_USE: u16 = 3;
const NFTA_TABLE_HANDLE: u16 = 4;
const NFTA_TABLE_USERDATA: u16 = 6;
const ATTRIBUTES: usize = 7;

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NftTable {
    /// Family of the table.
    pub family: Family,
    /// Name of the table.
    pub name: String,
    /// `NFT_TABLE_F_*`: 1 dormant, 2 owned by a socket, 4 persists after its owner.
    pub flags: u32,
    /// User data, with the table's comment.
    pub userdata: UserData,
    /// The kernel's handle. Never written.
    pub handle: Option<u64>,
    /// Number of its chains and sets. Never written.
    pub use_count: Option<u32>,
}

/// A table as named in a deletion or its notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    /// Family of the table.
    pub family: Family,
    /// Name of the table.
    pub table: String,
}

impl NftTable {
    /// Creates a table without flags and comment.
    pub fn new(family: Family, name: impl Into<String>) -> Self {
        let (name, userdata) = (name.into(), UserData::empty());
        Self { family, name, flags: 0, userdata, handle: None, use_count: None }
    }

    /// Removes what the kernel adds, so that a table equals its written form.
    #[must_use]
    pub fn normalized(self) -> Self {
        Self { handle: None, use_count: None, ..self }
    }

    pub(super) fn encode(&self, message: &mut Message<'_>) {
        message.attr_str(NFTA_TABLE_NAME, &self.name);
        message.attr_u32_be(NFTA_TABLE_FLAGS, self.flags);
        if !self.userdata.is_empty() {
            message.attr_bytes(NFTA_TABLE_USERDATA, self.userdata.as_bytes());
        }
    }

    /// Reads a new table.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let family = Header::decode(frame)?.family;
        let map = frame.attributes(OBJECT, nfnetlink::HEADER_LENGTH)?.by_kind::<ATTRIBUTES>()?;
        Ok(Self {
            family,
            name: map.required(NFTA_TABLE_NAME)?.string(),
            flags: map.u32_be(NFTA_TABLE_FLAGS)?.unwrap_or(0),
            userdata: map
                .get(NFTA_TABLE_USERDATA)
                .map(|data| UserData::from_bytes(data.payload))
                .unwrap_or_default(),
            handle: map.u64_be(NFTA_TABLE_HANDLE)?,
            use_count: map.u32_be(NFTA_TABLE_USE)?,
        })
    }
}

impl TableName {
    /// Reads the name of a deleted table.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let family = Header::decode(frame)?.family;
        let map = frame.attributes(OBJECT, nfnetlink::HEADER_LENGTH)?.by_kind::<ATTRIBUTES>()?;
        Ok(Self { family, table: map.required(NFTA_TABLE_NAME)?.string() })
    }
}

pub(super) fn encode_name(message: &mut Message<'_>, table: &str) {
    message.attr_str(NFTA_TABLE_NAME, table);
}
