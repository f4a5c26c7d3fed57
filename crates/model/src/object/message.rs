//! Protobuf messages, field by field and without copies (<https://protobuf.dev/programming-guides/encoding>).
//!
//! A reader names the numbers of the fields that it wants and skips the others. The numbers are those of Kubernetes'
//! `generated.proto` files.

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'de> {
    /// A number or a truth value.
    Number(u64),
    /// A text, bytes or a message.
    Bytes(&'de [u8]),
    /// A number of a fixed length. A node reads no such field.
    Fixed,
}

impl<'de> Value<'de> {
    /// Returns the bytes; `None` for a number.
    pub const fn bytes(self) -> Option<&'de [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Number(_) | Self::Fixed => None,
        }
    }

    /// Returns the text; `None` for a number and for bytes that are no text.
    pub fn text(self) -> Option<&'de str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
}

/// Bytes are no protobuf message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a field is cut off or has an unknown form")]
pub struct Malformed;

/// The fields of a message in their order, each with its number. Ends after the first malformed one.
#[derive(Debug, Clone)]
pub struct Fields<'de> {
    rest: &'de [u8],
}

impl<'de> Fields<'de> {
    /// Reads a message.
    pub const fn new(message: &'de [u8]) -> Self {
        Self { rest: message }
    }

    fn field(&mut self) -> Option<(u32, Value<'de>)> {
        let key = self.number()?;
        let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0)?;
        let value = match key & 7 {
            0 => Value::Number(self.number()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = usize::try_from(self.number()?).ok()?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return None,
        };
        Some((number, value))
    }

    /// Reads a number of up to ten bytes with seven bits each.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'de [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }
}

impl<'de> Iterator for Fields<'de> {
    type Item = Result<(u32, Value<'de>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field.ok_or(Malformed))
    }
}

/// Reads an entry of a map, which is a message: its key, and its value, which is an empty text if it is missing.
///
/// # Errors
/// The field is no message.
pub fn entry(field: Value<'_>) -> Result<(&str, Value<'_>), Malformed> {
    let (mut key, mut value) = ("", Value::Bytes(&[]));
    for field in Fields::new(field.bytes().ok_or(Malformed)?) {
        match field? {
            (1, found) => key = found.text().unwrap_or_default(),
            (2, found) => value = found,
            _ => {}
        }
    }
    Ok((key, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_each_form() {
        let message = [
            0x08, 0x96, 0x01, // 1: 150
            0x12, 0x02, b'h', b'i', // 2: "hi"
            0x1d, 1, 2, 3, 4, // 3: four bytes
            0x21, 1, 2, 3, 4, 5, 6, 7, 8, // 4: eight bytes
            0x80, 0x01, 0x00, // 16: 0
            0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, // 1: -1
        ];
        let fields: Vec<_> = Fields::new(&message).map(Result::unwrap).collect();
        let expected = [
            (1, Value::Number(150)),
            (2, Value::Bytes(b"hi")),
            (3, Value::Fixed),
            (4, Value::Fixed),
            (16, Value::Number(0)),
            (1, Value::Number(u64::MAX)),
        ];
        assert_eq!(fields, expected);
        assert_eq!(fields[1].1.text(), Some("hi"));
        assert_eq!((fields[0].1.text(), Value::Bytes(&[0xff]).text()), (None, None));
    }

    #[test]
    fn malformed_fields_end_the_message() {
        let cut_off: [&[u8]; 6] = [&[0x08], &[0x12, 3, b'h'], &[0x1d, 1], &[0x21, 1], &[0x80], &[0x08, 0x80]];
        let unknown: [&[u8]; 4] =
            [&[0x0b], &[0x0c], &[0x00, 1], &[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]];
        for message in cut_off.into_iter().chain(unknown) {
            let fields: Vec<_> = Fields::new(message).collect();
            assert_eq!(fields, [Err(Malformed)], "{message:?}");
        }
    }
}
