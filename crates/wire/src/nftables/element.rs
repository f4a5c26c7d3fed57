//! Elements of sets and maps. They make up most of the bytes, so neither writing nor reading allocates for each
//! element.

use super::data::{NFTA_DATA_VALUE, NOT_TEXT};
use super::expr::{Counter, Expr};
use super::rule::decode_expressions;
use super::{Data, DataRef, LIST_ELEMENT, kind, operation};
use crate::netlink::{Attribute, Attributes, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use crate::nfnetlink::{self, Family, Header};
use crate::{Batch, DecodeError, Frame};

const LIST: &str = "nf_tables element list";
const ELEMENT: &str = "nf_tables element";
const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;

const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_SET_ELEM_DATA: u16 = 2;
const NFTA_SET_ELEM_FLAGS: u16 = 3;
const NFTA_SET_ELEM_TIMEOUT: u16 = 4;
const NFTA_SET_ELEM_EXPIRATION: u16 = 5;
const NFTA_SET_ELEM_USERDATA: u16 = 6;
const NFTA_SET_ELEM_EXPR: u16 = 7;
const NFTA_SET_ELEM_KEY_END: u16 = 10;
const NFTA_SET_ELEM_EXPRESSIONS: u16 = 11;

/// Flag of the element that ends a range in an interval set with a single field.
pub const INTERVAL_END: u32 = 1;
/// Flag of the element that matches if no other does. It has no key.
pub const CATCH_ALL: u32 = 2;

/// Length of a message in bytes after which a new one starts. Its list of elements is limited to 65,535 bytes; an
/// element has less than 5,000.
const LIST_LENGTH_MAX: usize = 60_000;

/// The operation on elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementsOperation {
    /// Adds an element. An existing one with the same data is not an error, with other data it is (EEXIST).
    Add,
    /// Adds an element. An existing one is an error (EEXIST).
    Create,
    /// Removes an element. A missing one is an error (ENOENT).
    Delete,
}

/// A borrowed element, as written and as read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ElementRef<'a> {
    /// The key, with the fields of a concatenation padded to four bytes each; empty for [`CATCH_ALL`].
    pub key: &'a [u8],
    /// Last key of the range, in sets of concatenated ranges.
    pub key_end: Option<&'a [u8]>,
    /// The data to which a map's element maps.
    pub data: Option<DataRef<'a>>,
    /// [`INTERVAL_END`] and [`CATCH_ALL`].
    pub flags: u32,
    /// Lifetime in milliseconds; `None` for the set's default.
    pub timeout: Option<u64>,
    /// Remaining lifetime in milliseconds.
    pub expiration: Option<u64>,
    /// User data with the element's comment: see [`UserData::comment`](super::UserData::comment).
    pub userdata: &'a [u8],
    /// The values of the element's counter. An element that is written with one counts from these values on.
    pub counter: Option<Counter>,
}

/// An owned element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// See [`ElementRef::key`].
    pub key: Vec<u8>,
    /// See [`ElementRef::key_end`].
    pub key_end: Option<Vec<u8>>,
    /// See [`ElementRef::data`].
    pub data: Option<Data>,
    /// See [`ElementRef::flags`].
    pub flags: u32,
    /// See [`ElementRef::timeout`].
    pub timeout: Option<u64>,
    /// See [`ElementRef::expiration`].
    pub expiration: Option<u64>,
    /// See [`ElementRef::userdata`].
    pub userdata: Vec<u8>,
    /// See [`ElementRef::counter`].
    pub counter: Option<Counter>,
}

/// Writes any number of elements of one set, in as many messages as needed.
#[derive(Debug)]
pub struct ElementsWriter<'a> {
    batch: &'a mut Batch,
    /// Type and flags of the messages.
    message: (u16, u16),
    family: Family,
    table: &'a str,
    set: &'a str,
    open: Option<OpenMessage>,
}

/// A message with elements that was read.
#[derive(Debug, Clone)]
pub struct ElementList<'a> {
    /// Family of the table.
    pub family: Family,
    /// Name of the table.
    pub table: &'a str,
    /// Name of the set.
    pub set: &'a str,
    elements: Attributes<'a>,
}

/// An iterator over the elements of a message.
#[derive(Debug, Clone)]
pub struct Elements<'a>(Attributes<'a>);

#[derive(Debug, Clone, Copy)]
struct OpenMessage {
    start: usize,
    list: crate::netlink::OpenNest,
}

impl<'a> ElementRef<'a> {
    /// Creates an element of a set.
    pub fn key(key: &'a [u8]) -> Self {
        Self { key, ..Self::default() }
    }

    /// Creates the element for all keys that a set has no element for, as a request for it or to delete it.
    pub fn catch_all() -> Self {
        Self { flags: CATCH_ALL, ..Self::default() }
    }

    /// Creates an element of a map.
    pub fn mapping(key: &'a [u8], data: DataRef<'a>) -> Self {
        Self { key, data: Some(data), ..Self::default() }
    }

    /// Returns the element owned.
    pub fn to_owned(&self) -> Element {
        Element {
            key: self.key.to_vec(),
            key_end: self.key_end.map(<[u8]>::to_vec),
            data: self.data.as_ref().map(DataRef::to_owned),
            flags: self.flags,
            timeout: self.timeout,
            expiration: self.expiration,
            userdata: self.userdata.to_vec(),
            counter: self.counter,
        }
    }

    fn encode(&self, batch: &mut Batch) {
        let element = batch.open_nest(LIST_ELEMENT);
        if self.flags & CATCH_ALL == 0 {
            encode_key(batch, NFTA_SET_ELEM_KEY, self.key);
        }
        if let Some(key) = self.key_end {
            encode_key(batch, NFTA_SET_ELEM_KEY_END, key);
        }
        if let Some(data) = &self.data {
            data.encode(batch, NFTA_SET_ELEM_DATA);
        }
        if self.flags != 0 {
            batch.attribute(NFTA_SET_ELEM_FLAGS, &self.flags.to_be_bytes());
        }
        if let Some(timeout) = self.timeout {
            batch.attribute(NFTA_SET_ELEM_TIMEOUT, &timeout.to_be_bytes());
        }
        if let Some(expiration) = self.expiration {
            batch.attribute(NFTA_SET_ELEM_EXPIRATION, &expiration.to_be_bytes());
        }
        if !self.userdata.is_empty() {
            batch.attribute(NFTA_SET_ELEM_USERDATA, self.userdata);
        }
        if let Some(counter) = self.counter {
            let expression = batch.open_nest(NFTA_SET_ELEM_EXPR);
            counter.encode_expression(batch);
            batch.close_nest(expression);
        }
        batch.close_nest(element);
    }

    fn decode(element: &Attribute<'a>) -> Result<Self, DecodeError> {
        let mut decoded = Self::default();
        for attribute in element.nested(ELEMENT) {
            decoded.read(&attribute?)?;
        }
        Ok(decoded)
    }

    fn read(&mut self, attribute: &Attribute<'a>) -> Result<(), DecodeError> {
        match attribute.kind {
            NFTA_SET_ELEM_KEY => self.key = DataRef::decode_value(attribute)?,
            NFTA_SET_ELEM_KEY_END => self.key_end = Some(DataRef::decode_value(attribute)?),
            NFTA_SET_ELEM_DATA => self.data = Some(DataRef::decode(attribute)?),
            NFTA_SET_ELEM_FLAGS => self.flags = attribute.u32_be()?,
            NFTA_SET_ELEM_TIMEOUT => self.timeout = Some(attribute.u64_be()?),
            NFTA_SET_ELEM_EXPIRATION => self.expiration = Some(attribute.u64_be()?),
            NFTA_SET_ELEM_USERDATA => self.userdata = attribute.payload,
            NFTA_SET_ELEM_EXPR => self.counter = counter(&Expr::decode(attribute)?),
            NFTA_SET_ELEM_EXPRESSIONS => {
                self.counter = decode_expressions(attribute)?.iter().find_map(counter);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Element {
    /// Returns the element borrowed.
    pub fn as_ref(&self) -> ElementRef<'_> {
        ElementRef {
            key: &self.key,
            key_end: self.key_end.as_deref(),
            data: self.data.as_ref().map(Data::as_ref),
            flags: self.flags,
            timeout: self.timeout,
            expiration: self.expiration,
            userdata: &self.userdata,
            counter: self.counter,
        }
    }
}

impl ElementsOperation {
    /// Returns type and flags of the message.
    const fn message(self) -> (u16, u16) {
        match self {
            Self::Add => (kind(operation::NEW_ELEMENT), NLM_F_CREATE),
            Self::Create => (kind(operation::NEW_ELEMENT), NLM_F_CREATE | NLM_F_EXCL),
            Self::Delete => (kind(operation::DELETE_ELEMENT), 0),
        }
    }
}

impl<'a> ElementsWriter<'a> {
    pub(super) fn new(
        batch: &'a mut Batch,
        operation: ElementsOperation,
        family: Family,
        table: &'a str,
        set: &'a str,
    ) -> Self {
        Self { batch, message: operation.message(), family, table, set, open: None }
    }

    /// Writes requests for elements by their keys, to be sent with the socket's `ask`. The kernel answers with one
    /// message for each element. If it does not have one, it refuses the message (ENOENT) and leaves out the elements
    /// after it in that message.
    pub fn requests(batch: &'a mut Batch, family: Family, table: &'a str, set: &'a str) -> Self {
        Self { batch, message: (kind(operation::GET_ELEMENT), NLM_F_ACK), family, table, set, open: None }
    }

    /// Writes an element and returns the sequence number of its message.
    pub fn push(&mut self, element: &ElementRef<'_>) -> u32 {
        let full = |open: &OpenMessage| self.batch.len().saturating_sub(open.start) > LIST_LENGTH_MAX;
        if self.open.as_ref().is_some_and(full) {
            self.close();
        }
        if self.open.is_none() {
            self.open = Some(self.open_message());
        }
        element.encode(self.batch);
        self.batch.next_sequence().wrapping_sub(1)
    }

    fn open_message(&mut self) -> OpenMessage {
        let (kind, flags) = self.message;
        let start = self.batch.open(kind, flags, &Header::of(self.family));
        self.batch.attribute_of(NFTA_SET_ELEM_LIST_TABLE, self.table.as_bytes(), &[0]);
        self.batch.attribute_of(NFTA_SET_ELEM_LIST_SET, self.set.as_bytes(), &[0]);
        OpenMessage { start, list: self.batch.open_nest(NFTA_SET_ELEM_LIST_ELEMENTS) }
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            self.batch.close_nest(open.list);
            self.batch.close(open.start);
        }
    }
}

impl Drop for ElementsWriter<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<'a> ElementList<'a> {
    /// Reads a message with elements. The elements are decoded during the iteration of [`ElementList::elements`].
    pub fn decode(frame: &Frame<'a>) -> Result<Self, DecodeError> {
        let family = Header::decode(frame)?.family;
        let map = frame.attributes(LIST, nfnetlink::HEADER_LENGTH)?.by_kind::<4>()?;
        let elements = map.get(NFTA_SET_ELEM_LIST_ELEMENTS).map(|list| list.nested(LIST));
        Ok(Self {
            family,
            table: map.required(NFTA_SET_ELEM_LIST_TABLE)?.text().unwrap_or(NOT_TEXT),
            set: map.required(NFTA_SET_ELEM_LIST_SET)?.text().unwrap_or(NOT_TEXT),
            elements: elements.unwrap_or(Attributes::new(LIST, &[], 0)),
        })
    }

    /// Returns an iterator over the elements.
    pub fn elements(&self) -> Elements<'a> {
        Elements(self.elements.clone())
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<ElementRef<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let element = self.0.next()?;
        Some(element.and_then(|attribute| ElementRef::decode(&attribute)))
    }
}

/// Returns the element of a message that the kernel refused, by the offset in its acknowledgement. The offset
/// counts from the start of the message's header.
pub fn element_at<'a>(frame: &Frame<'a>, offset: u32) -> Option<ElementRef<'a>> {
    let offset = usize::try_from(offset).ok()?.checked_sub(crate::netlink::HEADER_LENGTH)?;
    let list = ElementList::decode(frame).ok()?;
    let holds = |attribute: &Attribute<'_>| {
        let start = attribute.offset.saturating_sub(crate::netlink::ATTRIBUTE_HEADER_LENGTH);
        (start..attribute.offset.saturating_add(attribute.payload.len())).contains(&offset)
    };
    let found = list.elements.filter_map(Result::ok).find(holds)?;
    ElementRef::decode(&found).ok()
}

fn encode_key(batch: &mut Batch, kind: u16, key: &[u8]) {
    let nest = batch.open_nest(kind);
    batch.attribute(NFTA_DATA_VALUE, key);
    batch.close_nest(nest);
}

fn counter(expression: &Expr) -> Option<Counter> {
    match expression {
        Expr::Counter(counter) => Some(*counter),
        _ => None,
    }
}

/// Names a set, for an operation on all its elements.
pub(super) fn encode_list_name(message: &mut crate::Message<'_>, table: &str, set: &str) {
    message.attr_str(NFTA_SET_ELEM_LIST_TABLE, table);
    message.attr_str(NFTA_SET_ELEM_LIST_SET, set);
}
