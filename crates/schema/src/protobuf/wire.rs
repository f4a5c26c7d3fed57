//! The primitives of protobuf's encoding: numbers in groups of seven bits, keys, and length-delimited bytes.
//! Source: the protobuf documentation, "Encoding".

use super::Problem;

/// Wire type of numbers and booleans.
pub(super) const VARINT: u8 = 0;
/// Wire type of texts, bytes and messages.
pub(super) const LENGTH: u8 = 2;
const FIXED_64: u8 = 1;
const FIXED_32: u8 = 5;
/// Maximum bytes of an encoded 64-bit number.
const VARINT_BYTES: u32 = 10;

/// Reads the fields of a message in order.
#[derive(Clone)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self(message)
    }

    /// Returns number and wire type of the next field; `None` at the end.
    pub(super) fn key(&mut self) -> Result<Option<(u32, u8)>, Problem> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let tag = u32::try_from(key >> 3).ok().filter(|tag| *tag != 0).ok_or(Problem::Key)?;
        Ok(Some((tag, (key & 7) as u8)))
    }

    pub(super) fn varint(&mut self) -> Result<u64, Problem> {
        let mut value = 0_u64;
        for index in 0..VARINT_BYTES {
            let (byte, rest) = self.0.split_first().ok_or(Problem::Truncated)?;
            self.0 = rest;
            // The tenth byte has room for one bit.
            if index == VARINT_BYTES - 1 && *byte > 1 {
                return Err(Problem::Number);
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Problem::Number)
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Problem> {
        let length = self.varint()?;
        let length = usize::try_from(length).map_err(|_| Problem::Truncated)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Problem::Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Skips the value of an unknown field.
    pub(super) fn skip(&mut self, wire_type: u8) -> Result<(), Problem> {
        match wire_type {
            VARINT => self.varint().map(drop),
            LENGTH => self.bytes().map(drop),
            FIXED_64 => self.advance(8),
            FIXED_32 => self.advance(4),
            _ => Err(Problem::Key),
        }
    }

    fn advance(&mut self, length: usize) -> Result<(), Problem> {
        self.0 = self.0.get(length..).ok_or(Problem::Truncated)?;
        Ok(())
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the last seven bits are left")]
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes a number field. Negative numbers are sign-extended to 64 bits.
pub(super) fn put_number(out: &mut Vec<u8>, tag: u32, value: i64) {
    put_varint(out, u64::from(tag) << 3 | u64::from(VARINT));
    put_varint(out, value.cast_unsigned());
}

/// Writes a text or bytes field.
pub(super) fn put_bytes(out: &mut Vec<u8>, tag: u32, bytes: &[u8]) {
    put_length(out, tag, bytes.len());
    out.extend_from_slice(bytes);
}

/// Writes the key and the length of a text, bytes or message field.
pub(super) fn put_length(out: &mut Vec<u8>, tag: u32, length: usize) {
    put_varint(out, u64::from(tag) << 3 | u64::from(LENGTH));
    put_varint(out, length as u64);
}

/// Writes a field with the message that `content` writes.
#[expect(clippy::cast_possible_truncation, reason = "below 0x80")]
pub(super) fn put_message<E>(
    out: &mut Vec<u8>,
    tag: u32,
    content: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    put_varint(out, u64::from(tag) << 3 | u64::from(LENGTH));
    // Most messages are shorter than 128 bytes and have a length of one byte. Longer ones are moved after their length is
    // known.
    let at = out.len();
    out.push(0);
    content(out)?;
    let length = out.len() - at - 1;
    match out.get_mut(at) {
        Some(short) if length < 0x80 => *short = length as u8,
        _ => {
            let mut long = Vec::with_capacity(5);
            put_varint(&mut long, length as u64);
            out.splice(at..=at, long);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_have_the_documented_bytes() {
        for (value, bytes) in [
            (0, &[0x00][..]),
            (1, &[0x01]),
            (127, &[0x7f]),
            (128, &[0x80, 0x01]),
            (150, &[0x96, 0x01]),
            (u64::MAX, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]),
        ] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out, bytes);
            assert_eq!(Reader::new(bytes).varint(), Ok(value));
        }
    }

    #[test]
    fn truncated_and_overlong_values_are_refused() {
        assert_eq!(Reader::new(&[0x80]).varint(), Err(Problem::Truncated));
        assert_eq!(Reader::new(&[0xff; 11]).varint(), Err(Problem::Number));
        let mut just_too_large = [0xff; 10];
        just_too_large[9] = 0x02;
        assert_eq!(Reader::new(&just_too_large).varint(), Err(Problem::Number));
        assert_eq!(Reader::new(&[0x03, 1, 2]).bytes(), Err(Problem::Truncated));
        assert_eq!(Reader::new(&[0xff, 0xff, 0xff, 0xff, 0x0f]).bytes(), Err(Problem::Truncated));
        assert_eq!(Reader::new(&[0x00]).key(), Err(Problem::Key));
        assert_eq!(Reader::new(&[1, 2, 3]).skip(FIXED_32), Err(Problem::Truncated));
        assert_eq!(Reader::new(&[1, 2, 3]).skip(3), Err(Problem::Key));
    }

    #[test]
    fn a_length_of_several_bytes_is_put_before_the_message() {
        for length in [0_usize, 1, 127, 128, 20_000] {
            let mut out = vec![9];
            put_message(&mut out, 2, |out| {
                out.resize(out.len() + length, 7);
                Ok::<_, Problem>(())
            })
            .unwrap();
            let mut reader = Reader::new(&out[1..]);
            assert_eq!(reader.key(), Ok(Some((2, LENGTH))));
            assert_eq!(reader.bytes().unwrap(), vec![7; length]);
            assert_eq!(reader.key(), Ok(None));
        }
    }

    proptest! {
        #[test]
        fn every_number_is_read_as_it_was_written(value: u64) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            prop_assert_eq!(Reader::new(&out).varint(), Ok(value));
        }
    }
}
