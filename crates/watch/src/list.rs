//! Splits the body of a list into its items, without holding the page.
//!
//! [`ListSplitter`] finds the elements of the top-level `items` array by counting brackets and passes each to the
//! caller as soon as it is complete. Whether an element is well-formed is left to its decoder. Of the rest of the
//! page only `kind` and `metadata` are read. No item of a page of another kind is passed on: items before `kind`
//! are kept until `kind` is known. API servers write `kind` first; an encoder of a Go map sorts it after `items`.

#[cfg(test)]
mod tests;

use serde::Deserialize;

use crate::frame::{InvalidBody, carry, check_kind};

/// Maximum bytes of items before `kind`. A page of 500 EndpointSlices with 100 endpoints each has about 12 MiB.
const MAX_WAITING: usize = 32 << 20;

/// The metadata of a list page.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct ListMeta {
    /// The revision at which the whole list was read.
    #[serde(default, rename = "resourceVersion")]
    pub(crate) resource_version: Box<str>,
    /// Continue token of the next page; empty on the last page.
    #[serde(default, rename = "continue")]
    pub(crate) next: Box<str>,
}

/// Finds the items of one list page in the chunks of its body.
#[derive(Debug)]
pub(crate) struct ListSplitter {
    /// The kind of the list, such as `ServiceList`.
    kind: &'static str,
    kind_seen: bool,
    /// Items before `kind`, concatenated, and the end offset of each.
    waiting: Vec<u8>,
    waiting_ends: Vec<usize>,
    place: ParserState,
    value: Value,
    /// Bytes of the current value from earlier chunks.
    carry: Vec<u8>,
    meta: ListMeta,
    items_seen: bool,
}

/// Position of the next byte in the list's own structure.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ParserState {
    #[default]
    Start,
    /// Between the members of the top-level object.
    Member,
    /// Before the colon of this member, and before its value.
    Colon(Member),
    Before(Member),
    /// Between the elements of `items`.
    Items,
    /// Inside a value.
    Inside(Capture),
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Kind,
    Items,
    Metadata,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Capture {
    Key,
    Kind,
    Item,
    Metadata,
    Skip,
}

impl ListSplitter {
    /// Creates a splitter for a list of this kind.
    pub(crate) fn new(kind: &'static str) -> Self {
        Self {
            kind,
            kind_seen: false,
            waiting: Vec::new(),
            waiting_ends: Vec::new(),
            place: ParserState::default(),
            value: Value::default(),
            carry: Vec::new(),
            meta: ListMeta::default(),
            items_seen: false,
        }
    }

    /// Calls `item` for every item that `chunk` completes, until one call returns an error.
    pub(crate) fn push<E: From<InvalidBody>>(
        &mut self,
        mut chunk: &[u8],
        mut item: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(&first) = chunk.first() {
            chunk = match self.place {
                ParserState::Inside(capture) => self.inside(capture, chunk, &mut item)?,
                _ if first.is_ascii_whitespace() => chunk.trim_ascii_start(),
                place => {
                    let (next, consumed) = step(place, first)?;
                    self.items_seen |= place == ParserState::Before(Member::Items);
                    self.place = next;
                    chunk.get(consumed..).unwrap_or_default()
                }
            };
        }
        Ok(())
    }

    /// Returns the page's metadata after its body ended, or `None` if the body ended too early.
    pub(crate) fn finish(self) -> Result<Option<ListMeta>, InvalidBody> {
        if self.place != ParserState::End {
            return Ok(None);
        }
        if !self.kind_seen {
            check_kind(self.kind, "")?;
        }
        if !self.items_seen {
            return Err(InvalidBody::Incomplete("items"));
        }
        if self.meta.resource_version.is_empty() {
            return Err(InvalidBody::Incomplete("metadata.resourceVersion"));
        }
        Ok(Some(self.meta))
    }

    /// Continues inside a value. Returns the rest of the chunk after it.
    fn inside<'a, E: From<InvalidBody>>(
        &mut self,
        capture: Capture,
        chunk: &'a [u8],
        item: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<&'a [u8], E> {
        let (consumed, complete) = self.value.scan(chunk);
        let (head, rest) = chunk.split_at_checked(consumed).unwrap_or((chunk, &[]));
        let mut whole = std::mem::take(&mut self.carry);
        let keep = capture != Capture::Skip && (!complete || !whole.is_empty());
        if keep {
            carry(&mut whole, head)?;
        }
        if complete {
            self.value = Value::default();
            let bytes = if whole.is_empty() { head } else { &whole };
            self.place = self.complete(capture, bytes, item)?;
            whole.clear();
        }
        self.carry = whole;
        Ok(rest)
    }

    /// Uses a complete value. Returns the position of the next byte.
    fn complete<E: From<InvalidBody>>(
        &mut self,
        capture: Capture,
        bytes: &[u8],
        item: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<ParserState, E> {
        Ok(match capture {
            Capture::Key => ParserState::Colon(match bytes {
                br#""kind""# => Member::Kind,
                br#""items""# => Member::Items,
                br#""metadata""# => Member::Metadata,
                _ => Member::Other,
            }),
            Capture::Kind => {
                check_kind(self.kind, String::from_utf8_lossy(bytes).trim_matches('"'))?;
                self.kind_seen = true;
                self.hand_on(item)?;
                ParserState::Member
            }
            Capture::Item if self.kind_seen => {
                item(bytes)?;
                ParserState::Items
            }
            Capture::Item => {
                self.wait(bytes)?;
                ParserState::Items
            }
            Capture::Metadata => {
                self.meta = serde_json::from_slice(bytes).map_err(InvalidBody::Metadata)?;
                ParserState::Member
            }
            Capture::Skip => ParserState::Member,
        })
    }

    /// Keeps an item until the kind is known.
    fn wait(&mut self, item: &[u8]) -> Result<(), InvalidBody> {
        let ends = self.waiting_ends.len().saturating_mul(size_of::<usize>());
        if self.waiting.len().saturating_add(ends).saturating_add(item.len()) > MAX_WAITING {
            return Err(InvalidBody::LateKind);
        }
        self.waiting.extend_from_slice(item);
        self.waiting_ends.push(self.waiting.len());
        Ok(())
    }

    /// Passes on the items that were kept.
    fn hand_on<E>(&mut self, item: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let waiting = std::mem::take(&mut self.waiting);
        let mut begin = 0;
        for end in std::mem::take(&mut self.waiting_ends) {
            item(waiting.get(begin..end).unwrap_or_default())?;
            begin = end;
        }
        Ok(())
    }
}

/// Handles one byte of the list's own structure. Returns the next position and the number of bytes used. The first
/// byte of a value is left to its scanner.
fn step(place: ParserState, byte: u8) -> Result<(ParserState, usize), InvalidBody> {
    Ok(match (place, byte) {
        (ParserState::Start, b'{') | (ParserState::Member, b',') | (ParserState::Items, b']') => {
            (ParserState::Member, 1)
        }
        (ParserState::Member, b'"') => (ParserState::Inside(Capture::Key), 0),
        (ParserState::Member, b'}') => (ParserState::End, 1),
        (ParserState::Colon(member), b':') => (ParserState::Before(member), 1),
        (ParserState::Before(Member::Items), b'[') | (ParserState::Items, b',') => (ParserState::Items, 1),
        (ParserState::Before(Member::Metadata), b'{') => (ParserState::Inside(Capture::Metadata), 0),
        // `"items":null` is a Go slice that was never created. API servers write `[]` for an empty list (`storage`,
        // `GetList`), so this list was never read from storage.
        (ParserState::Before(Member::Items), b'n') => {
            return Err(InvalidBody::Incomplete("items: they are null"));
        }
        (ParserState::Before(Member::Kind), _) if begins_value(byte) => {
            (ParserState::Inside(Capture::Kind), 0)
        }
        (ParserState::Before(Member::Other), _) if begins_value(byte) => {
            (ParserState::Inside(Capture::Skip), 0)
        }
        // Whether an item is an object is left to its decoder, so that one bad item is skipped alone.
        (ParserState::Items, _) if begins_value(byte) => (ParserState::Inside(Capture::Item), 0),
        _ => return Err(InvalidBody::Unexpected(byte)),
    })
}

fn begins_value(byte: u8) -> bool {
    matches!(byte, b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n')
}

/// Finds the end of one JSON value.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Value {
    #[default]
    Begin,
    /// A number, `true`, `false` or `null`.
    Scalar,
    /// A string inside `depth` containers. `escaped` is true if the next byte follows a backslash.
    Text { depth: u32, escaped: bool },
    /// Between tokens inside `depth` containers.
    Nest { depth: u32 },
}

impl Value {
    /// Returns how many bytes of `chunk` belong to the value, and true if the value ends there.
    fn scan(&mut self, chunk: &[u8]) -> (usize, bool) {
        let mut rest = chunk;
        while let Some((&byte, tail)) = rest.split_first() {
            (*self, rest) = match *self {
                Self::Begin => (Self::begin(byte), tail),
                Self::Scalar => match byte {
                    b',' | b'}' | b']' => return (chunk.len() - rest.len(), true),
                    _ if byte.is_ascii_whitespace() => return (chunk.len() - rest.len(), true),
                    _ => (Self::Scalar, tail),
                },
                Self::Text { depth, escaped: true } => (Self::Text { depth, escaped: false }, tail),
                Self::Text { depth, escaped: false } => text(depth, rest),
                Self::Nest { depth } => (Self::nest(depth, byte), tail),
            };
            if *self == (Self::Nest { depth: 0 }) {
                return (chunk.len() - rest.len(), true);
            }
        }
        (chunk.len(), false)
    }

    fn begin(byte: u8) -> Self {
        match byte {
            b'{' | b'[' => Self::Nest { depth: 1 },
            b'"' => Self::Text { depth: 0, escaped: false },
            _ => Self::Scalar,
        }
    }

    fn nest(depth: u32, byte: u8) -> Self {
        match byte {
            b'"' => Self::Text { depth, escaped: false },
            b'{' | b'[' => Self::Nest { depth: depth.saturating_add(1) },
            b'}' | b']' => Self::Nest { depth: depth.saturating_sub(1) },
            _ => Self::Nest { depth },
        }
    }
}

/// Inside a string: skips to the next quote or backslash.
fn text(depth: u32, rest: &[u8]) -> (Value, &[u8]) {
    let at = memchr::memchr2(b'"', b'\\', rest);
    let tail = at.and_then(|at| rest.get(at.saturating_add(1)..)).unwrap_or_default();
    match at.and_then(|at| rest.get(at)) {
        Some(b'"') => (Value::Nest { depth }, tail),
        Some(_) => (Value::Text { depth, escaped: true }, tail),
        None => (Value::Text { depth, escaped: false }, tail),
    }
}
