//! Reads attributes: an iterator, and a table by type.

use super::{ATTRIBUTE_HEADER_LENGTH, NLA_TYPE_MASK, aligned};
use crate::DecodeError;

/// An iterator over the attributes in some bytes. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Attributes<'a> {
    object: &'static str,
    rest: &'a [u8],
    offset: usize,
}

/// An attribute, borrowed from the message.
#[derive(Debug, Clone, Copy)]
pub struct Attribute<'a> {
    /// The attribute's type, without the flags for nesting and byte order.
    pub kind: u16,
    /// The payload, without header and padding.
    pub payload: &'a [u8],
    /// Offset of the payload, for error messages.
    pub offset: usize,
    object: &'static str,
}

/// The attributes with types below `N`, by type. Of several with the same type the last one is kept, as in the
/// kernel.
#[derive(Debug)]
pub struct AttributeMap<'a, const N: usize> {
    object: &'static str,
    found: [Option<Attribute<'a>>; N],
}

impl<'a> Attributes<'a> {
    /// Iterates over `bytes`, which start `offset` bytes into the message's payload. `object` is the name in
    /// errors.
    pub fn new(object: &'static str, bytes: &'a [u8], offset: usize) -> Self {
        Self { object, rest: bytes, offset }
    }

    /// Reads all attributes into a table.
    pub fn by_kind<const N: usize>(self) -> Result<AttributeMap<'a, N>, DecodeError> {
        let mut map = AttributeMap { object: self.object, found: [None; N] };
        for attribute in self {
            let attribute = attribute?;
            if let Some(slot) = map.found.get_mut(usize::from(attribute.kind)) {
                *slot = Some(attribute);
            }
        }
        Ok(map)
    }

    fn read(&mut self) -> Result<Attribute<'a>, DecodeError> {
        let (rest, offset) = (self.rest, self.offset);
        let truncated =
            |needed| DecodeError::Truncated { object: self.object, offset, needed, have: rest.len() };
        let Some((&[len0, len1, kind0, kind1], _)) = rest.split_first_chunk() else {
            return Err(truncated(ATTRIBUTE_HEADER_LENGTH));
        };
        let length = usize::from(u16::from_ne_bytes([len0, len1]));
        let payload = rest
            .get(ATTRIBUTE_HEADER_LENGTH..length)
            .ok_or(truncated(length.max(ATTRIBUTE_HEADER_LENGTH)))?;
        let advance = aligned(length);
        self.rest = rest.get(advance..).unwrap_or_default();
        self.offset = offset.saturating_add(advance);
        let kind = u16::from_ne_bytes([kind0, kind1]) & NLA_TYPE_MASK;
        Ok(Attribute {
            kind,
            payload,
            offset: offset.saturating_add(ATTRIBUTE_HEADER_LENGTH),
            object: self.object,
        })
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let attribute = self.read();
        if attribute.is_err() {
            self.rest = &[];
        }
        Some(attribute)
    }
}

impl<'a> Attribute<'a> {
    /// Reads the payload as attributes. `object` is the name in errors.
    pub fn nested(&self, object: &'static str) -> Attributes<'a> {
        Attributes::new(object, self.payload, self.offset)
    }

    /// Reads a byte.
    pub fn u8(&self) -> Result<u8, DecodeError> {
        self.array().map(|[byte]| byte)
    }

    /// Reads a 16-bit number in network byte order.
    pub fn u16_be(&self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    /// Reads a 16-bit number in the machine's byte order.
    pub fn u16_ne(&self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_ne_bytes)
    }

    /// Reads a 32-bit number in network byte order.
    pub fn u32_be(&self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads a 32-bit number in the machine's byte order.
    pub fn u32_ne(&self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_ne_bytes)
    }

    /// Reads a signed 32-bit number in network byte order.
    pub fn i32_be(&self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_be_bytes)
    }

    /// Reads a 64-bit number in network byte order.
    pub fn u64_be(&self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads text that ends at the first NUL byte or at the end of the payload.
    pub fn text(&self) -> Result<&'a str, DecodeError> {
        let end = self.payload.iter().position(|&byte| byte == 0).unwrap_or(self.payload.len());
        let text = self.payload.get(..end).unwrap_or_default();
        let error = DecodeError::Text { object: self.object, attribute: self.kind, offset: self.offset };
        std::str::from_utf8(text).map_err(|_| error)
    }

    /// Like [`Attribute::text`], but owned, and with U+FFFD in place of bytes that are not UTF-8. The kernel takes such names from
    /// any program, and they must not hide other objects. None of them is a name of ours.
    pub fn string(&self) -> String {
        let text = self.payload.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }

    /// Reads the payload as exactly `N` bytes.
    pub fn array<const N: usize>(&self) -> Result<[u8; N], DecodeError> {
        self.payload.try_into().map_err(|_| DecodeError::Length {
            object: self.object,
            attribute: self.kind,
            offset: self.offset,
            expected: N,
            have: self.payload.len(),
        })
    }

    /// Returns the error for a number that is not valid in this attribute.
    pub fn impossible(&self, value: impl Into<u64>) -> DecodeError {
        DecodeError::Value {
            object: self.object,
            attribute: self.kind,
            offset: self.offset,
            value: value.into(),
        }
    }
}

impl<'a, const N: usize> AttributeMap<'a, N> {
    /// Returns the attribute of this type, if present.
    pub fn get(&self, kind: u16) -> Option<Attribute<'a>> {
        self.found.get(usize::from(kind)).copied().flatten()
    }

    /// Returns the attribute of this type, or an error that names it.
    pub fn required(&self, kind: u16) -> Result<Attribute<'a>, DecodeError> {
        self.get(kind).ok_or(DecodeError::Missing { object: self.object, attribute: kind })
    }

    /// Reads an optional number.
    pub fn u32_be(&self, kind: u16) -> Result<Option<u32>, DecodeError> {
        self.get(kind).map(|attribute| attribute.u32_be()).transpose()
    }

    /// Reads an optional number.
    pub fn u64_be(&self, kind: u16) -> Result<Option<u64>, DecodeError> {
        self.get(kind).map(|attribute| attribute.u64_be()).transpose()
    }

    /// Reads optional text, as [`Attribute::string`] does.
    pub fn string(&self, kind: u16) -> Option<String> {
        self.get(kind).map(|attribute| attribute.string())
    }
}
