//! Sets and maps.

use super::rule::{decode_expressions, encode_expressions};
use super::{DataType, Expr, LIST_ELEMENT, UserData};
use crate::netlink::{Attribute, AttributeMap, Message};
use crate::nfnetlink::{self, Family, Header};
use crate::{DecodeError, Frame};

const OBJECT: &str = "nf_tables set";
const NFTA_SET_TABLE: u16 = 1;
const NFTA_SET_NAME: u16 = 2;
const NFTA_SET_FLAGS: u16 = 3;
const NFTA_SET_KEY_TYPE: u16 = 4;
const NFTA_SET_KEY_LEN: u16 = 5;
const NFTA_SET_DATA_TYPE: u16 = 6;
const NFTA_SET_DATA_LEN: u16 = 7;
const NFTA_SET_DESC: u16 = 9;
const NFTA_SET_ID: u16 = 10;
const NFTA_SET_TIMEOUT: u16 = 11;
const NFTA_SET_GC_INTERVAL: u16 = 12;
const NFTA_SET_USERDATA: u16 = 13;
const NFTA_SET_HANDLE: u16 = 16;
const NFTA_SET_EXPR: u16 = 17;
const NFTA_SET_EXPRESSIONS: u16 = 18;
/// Since kernel 6.16.
const NFTA_SET_COUNT: u16 = 20;
const ATTRIBUTES: usize = 21;

const NFTA_SET_DESC_SIZE: u16 = 1;
const NFTA_SET_DESC_CONCAT: u16 = 2;
const NFTA_SET_FIELD_LEN: u16 = 1;

/// `NFT_SET_*`, without `NFT_SET_MAP` (8), which follows from [`Set::data`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SetFlags(pub u32);

impl SetFlags {
    /// No name of its own; goes with the rule that uses it.
    pub const ANONYMOUS: Self = Self(0x1);
    /// Never changes while a rule uses it.
    pub const CONSTANT: Self = Self(0x2);
    /// Holds ranges.
    pub const INTERVAL: Self = Self(0x4);
    /// Elements may end.
    pub const TIMEOUT: Self = Self(0x10);
    /// Rules may add elements (nft's `dynamic`).
    pub const EVAL: Self = Self(0x20);
    /// Ranges of concatenated fields; needs [`Set::fields`].
    pub const CONCAT: Self = Self(0x80);
    /// Elements carry expressions; set by the kernel.
    pub const EXPR: Self = Self(0x100);
    const MAP: u32 = 0x8;

    /// Both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in it.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What a map's elements map to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetData {
    /// Verdicts.
    Verdict,
    /// Values.
    Value {
        /// nft's type of them.
        kind: DataType,
        /// Their length in bytes, fields of a concatenation padded to four each.
        length: u32,
    },
}

/// A set, or a map when it has [`Set::data`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Family of its table.
    pub family: Family,
    /// Its table.
    pub table: String,
    /// Its name; for an anonymous set a pattern such as `__set%d`.
    pub name: String,
    /// A number that names it inside the transaction that creates it; not stored by the kernel.
    pub id: u32,
    /// What it is.
    pub flags: SetFlags,
    /// nft's type of its keys.
    pub key_type: DataType,
    /// Length of its keys in bytes, fields of a concatenation padded to four each.
    pub key_length: u32,
    /// What it maps to.
    pub data: Option<SetData>,
    /// Default timeout of its elements in milliseconds.
    pub timeout: Option<u64>,
    /// How often ended elements are collected, in milliseconds.
    pub gc_interval: Option<u32>,
    /// How many elements it holds at most; selects another implementation in the kernel.
    pub size: Option<u32>,
    /// Lengths of the fields of a concatenated key in bytes, without padding: for [`SetFlags::CONCAT`], and
    /// refused without (EINVAL, new kernels).
    pub fields: Vec<u32>,
    /// Expressions that each element gets a copy of, such as a counter.
    pub expressions: Vec<Expr>,
    /// What nft needs to print it, and its comment: see [`UserData::set`].
    pub userdata: UserData,
    /// The kernel's number for it; never written.
    pub handle: Option<u64>,
    /// How many elements it holds, on kernels from 6.16 on; never written. While the hash table of a set without
    /// a size grows or shrinks, right after a large change, a list of its elements lacks some and has others
    /// twice, and no flag says so: a list with another number of different keys than this is to be thrown away.
    pub element_count: Option<u32>,
}

/// What a delete or a notification says of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetName {
    /// Family of its table.
    pub family: Family,
    /// Its table.
    pub table: String,
    /// Its name.
    pub set: String,
}

impl Set {
    /// A set of keys of one type; the other fields are for the caller to fill.
    pub fn new(
        family: Family,
        table: impl Into<String>,
        name: impl Into<String>,
        key_type: DataType,
        key_length: u32,
    ) -> Self {
        Self {
            family,
            table: table.into(),
            name: name.into(),
            id: 0,
            flags: SetFlags::default(),
            key_type,
            key_length,
            data: None,
            timeout: None,
            gc_interval: None,
            size: None,
            fields: Vec::new(),
            expressions: Vec::new(),
            userdata: UserData::empty(),
            handle: None,
            element_count: None,
        }
    }

    /// The set as a dump shows it, less what the kernel adds: equal for a set as written and as read back.
    #[must_use]
    pub fn normalized(self) -> Self {
        // The kernel raises this flag itself once elements can carry expressions.
        let flags = SetFlags(self.flags.0 & !SetFlags::EXPR.0);
        let expressions = self.expressions.into_iter().map(Expr::normalized).collect();
        // A concatenation of one field is not reported.
        let fields = if self.fields.len() > 1 { self.fields } else { Vec::new() };
        Self { handle: None, element_count: None, id: 0, flags, expressions, fields, ..self }
    }

    pub(super) fn encode(&self, message: &mut Message<'_>) {
        encode_name(message, &self.table, Some(&self.name));
        message.attr_u32_be(NFTA_SET_FLAGS, self.kernel_flags());
        message.attr_u32_be(NFTA_SET_KEY_TYPE, self.key_type.0);
        message.attr_u32_be(NFTA_SET_KEY_LEN, self.key_length);
        match self.data {
            Some(SetData::Verdict) => message.attr_u32_be(NFTA_SET_DATA_TYPE, DataType::VERDICT.0),
            Some(SetData::Value { kind, length }) => {
                message.attr_u32_be(NFTA_SET_DATA_TYPE, kind.0);
                message.attr_u32_be(NFTA_SET_DATA_LEN, length);
            }
            None => {}
        }
        message.attr_u32_be(NFTA_SET_ID, self.id);
        self.encode_description(message);
        if let Some(timeout) = self.timeout {
            message.attr_u64_be(NFTA_SET_TIMEOUT, timeout);
        }
        if let Some(interval) = self.gc_interval {
            message.attr_u32_be(NFTA_SET_GC_INTERVAL, interval);
        }
        if !self.userdata.is_empty() {
            message.attr_bytes(NFTA_SET_USERDATA, self.userdata.as_bytes());
        }
        match self.expressions.as_slice() {
            [] => {}
            // Kernels before 5.12 know only this attribute.
            [expression] => message.nest(NFTA_SET_EXPR, |message| expression.encode(message)),
            expressions => encode_expressions(message, NFTA_SET_EXPRESSIONS, expressions),
        }
    }

    fn kernel_flags(&self) -> u32 {
        if self.data.is_some() { self.flags.0 | SetFlags::MAP } else { self.flags.0 }
    }

    fn encode_description(&self, message: &mut Message<'_>) {
        if self.size.is_none() && self.fields.is_empty() {
            return;
        }
        message.nest(NFTA_SET_DESC, |message| {
            if let Some(size) = self.size {
                message.attr_u32_be(NFTA_SET_DESC_SIZE, size);
            }
            if self.fields.is_empty() {
                return;
            }
            message.nest(NFTA_SET_DESC_CONCAT, |message| {
                for &length in &self.fields {
                    message.nest(LIST_ELEMENT, |message| message.attr_u32_be(NFTA_SET_FIELD_LEN, length));
                }
            });
        });
    }

    /// Reads a new set.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let family = Header::decode(frame)?.family;
        let map = frame.attributes(OBJECT, nfnetlink::HEADER_LENGTH)?.by_kind::<ATTRIBUTES>()?;
        let flags = map.u32_be(NFTA_SET_FLAGS)?.unwrap_or(0);
        let description = map.get(NFTA_SET_DESC).map(|nest| decode_description(&nest)).transpose()?;
        let (size, fields) = description.unwrap_or_default();
        let userdata = map.get(NFTA_SET_USERDATA).map(|data| UserData::from_bytes(data.payload));
        Ok(Self {
            family,
            table: map.required(NFTA_SET_TABLE)?.string()?,
            name: map.required(NFTA_SET_NAME)?.string()?,
            id: map.u32_be(NFTA_SET_ID)?.unwrap_or(0),
            flags: SetFlags(flags & !SetFlags::MAP),
            key_type: DataType(map.u32_be(NFTA_SET_KEY_TYPE)?.unwrap_or(0)),
            key_length: map.required(NFTA_SET_KEY_LEN)?.u32_be()?,
            data: if flags & SetFlags::MAP == 0 { None } else { Some(decode_data(&map)?) },
            timeout: map.u64_be(NFTA_SET_TIMEOUT)?,
            gc_interval: map.u32_be(NFTA_SET_GC_INTERVAL)?,
            size,
            fields,
            expressions: decode_set_expressions(&map)?,
            userdata: userdata.unwrap_or_default(),
            handle: map.u64_be(NFTA_SET_HANDLE)?,
            element_count: map.u32_be(NFTA_SET_COUNT)?,
        })
    }
}

impl SetName {
    /// Reads the name of a deleted set.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let family = Header::decode(frame)?.family;
        let map = frame.attributes(OBJECT, nfnetlink::HEADER_LENGTH)?.by_kind::<ATTRIBUTES>()?;
        let table = map.required(NFTA_SET_TABLE)?.string()?;
        Ok(Self { family, table, set: map.required(NFTA_SET_NAME)?.string()? })
    }
}

/// Names a set, or all sets of a table.
pub(super) fn encode_name(message: &mut Message<'_>, table: &str, set: Option<&str>) {
    message.attr_str(NFTA_SET_TABLE, table);
    if let Some(set) = set {
        message.attr_str(NFTA_SET_NAME, set);
    }
}

fn decode_data(map: &AttributeMap<'_, ATTRIBUTES>) -> Result<SetData, DecodeError> {
    let kind = DataType(map.required(NFTA_SET_DATA_TYPE)?.u32_be()?);
    if kind == DataType::VERDICT {
        return Ok(SetData::Verdict);
    }
    Ok(SetData::Value { kind, length: map.required(NFTA_SET_DATA_LEN)?.u32_be()? })
}

fn decode_set_expressions(map: &AttributeMap<'_, ATTRIBUTES>) -> Result<Vec<Expr>, DecodeError> {
    if let Some(list) = map.get(NFTA_SET_EXPRESSIONS) {
        return decode_expressions(&list);
    }
    let single = map.get(NFTA_SET_EXPR).map(|expression| Expr::decode(&expression)).transpose()?;
    Ok(single.into_iter().collect())
}

fn decode_description(nest: &Attribute<'_>) -> Result<(Option<u32>, Vec<u32>), DecodeError> {
    let map = nest.nested("nf_tables set description").by_kind::<3>()?;
    let field = |member: Result<Attribute<'_>, DecodeError>| {
        let map = member?.nested("nf_tables set field").by_kind::<2>()?;
        map.required(NFTA_SET_FIELD_LEN)?.u32_be()
    };
    let fields = map
        .get(NFTA_SET_DESC_CONCAT)
        .map(|list| list.nested("nf_tables set fields").map(field).collect::<Result<Vec<_>, _>>());
    Ok((map.u32_be(NFTA_SET_DESC_SIZE)?, fields.transpose()?.unwrap_or_default()))
}
