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
/// Since Linux 6.16.
const NFTA_SET_COUNT: u16 = 20;
const ATTRIBUTES: usize = 21;

const NFTA_SET_DESC_SIZE: u16 = 1;
const NFTA_SET_DESC_CONCAT: u16 = 2;
const NFTA_SET_FIELD_LEN: u16 = 1;

/// `NFT_SET_*` flags. `NFT_SET_MAP` (8) is not among them, because it follows from [`Set::data`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SetFlags(pub u32);

impl SetFlags {
    /// The set has no name of its own and is deleted with the rule that uses it.
    pub const ANONYMOUS: Self = Self(0x1);
    /// The set does not change while a rule uses it.
    pub const CONSTANT: Self = Self(0x2);
    /// The set holds ranges.
    pub const INTERVAL: Self = Self(0x4);
    /// Elements may expire.
    pub const TIMEOUT: Self = Self(0x10);
    /// Rules may add elements (nft's `dynamic`).
    pub const EVAL: Self = Self(0x20);
    /// The set holds ranges of concatenated fields and needs [`Set::fields`].
    pub const CONCAT: Self = Self(0x80);
    /// Elements have expressions. Set by the kernel.
    pub const EXPR: Self = Self(0x100);
    const MAP: u32 = 0x8;

    /// Returns the union of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if all flags of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The data to which a map's elements map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetData {
    /// Verdicts.
    Verdict,
    /// Values.
    Value {
        /// nft's type of the values.
        kind: DataType,
        /// Length of a value in bytes, with the fields of a concatenation padded to four bytes each.
        length: u32,
    },
}

/// A set, or a map if it has [`Set::data`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Family of the table.
    pub family: Family,
    /// Name of the table.
    pub table: String,
    /// Name of the set; for an anonymous set a pattern such as `__set%d`.
    pub name: String,
    /// A number that identifies the set within the transaction that creates it. The kernel does not store it.
    pub id: u32,
    /// Flags of the set.
    pub flags: SetFlags,
    /// nft's type of the keys.
    pub key_type: DataType,
    /// Length of a key in bytes, with the fields of a concatenation padded to four bytes each.
    pub key_length: u32,
    /// The data to which the elements map; `None` for a set.
    pub data: Option<SetData>,
    /// Default lifetime of elements in milliseconds.
    pub timeout: Option<u64>,
    /// Interval at which expired elements are removed, in milliseconds.
    pub gc_interval: Option<u32>,
    /// Maximum number of elements. It selects another implementation in the kernel.
    pub size: Option<u32>,
    /// Lengths of the fields of a concatenated key in bytes, without padding. Required by [`SetFlags::CONCAT`]; new
    /// kernels refuse it without that flag (EINVAL).
    pub fields: Vec<u32>,
    /// Expressions that are copied into each element, such as a counter.
    pub expressions: Vec<Expr>,
    /// User data: what nft needs to print the set, and its comment. See [`UserData::set`].
    pub userdata: UserData,
    /// The kernel's handle. Never written.
    pub handle: Option<u64>,
    /// Number of elements, since Linux 6.16. Never written. While the hash table of a set without a size is
    /// resized, right after a large change, a list of its elements lacks some elements and repeats others, and no
    /// flag reports this. Discard a list whose number of different keys differs from this count.
    pub element_count: Option<u32>,
}

/// A set as named in a deletion or its notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetName {
    /// Family of the table.
    pub family: Family,
    /// Name of the table.
    pub table: String,
    /// Name of the set.
    pub set: String,
}

impl Set {
    /// Creates a set of keys of one type. The caller fills in the other fields.
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

    /// Removes what the kernel adds and fills in its defaults, so that a set read back equals its written form.
    #[must_use]
    pub fn normalized(self) -> Self {
        // The kernel sets this flag once elements can have expressions.
        let flags = SetFlags(self.flags.0 & !SetFlags::EXPR.0);
        let expressions = self.expressions.into_iter().map(Expr::normalized).collect();
        // The kernel does not report a concatenation of one field.
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
            table: map.required(NFTA_SET_TABLE)?.string(),
            name: map.required(NFTA_SET_NAME)?.string(),
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
        let table = map.required(NFTA_SET_TABLE)?.string();
        Ok(Self { family, table, set: map.required(NFTA_SET_NAME)?.string() })
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
