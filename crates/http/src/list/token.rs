//! Continue tokens: the revision of the first page and the last key returned. They are opaque to clients, and
//! hexadecimal so that they need no escaping.

/// Where a list continues.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Token {
    /// Revision to read; `None` for the current one.
    pub(super) revision: Option<u64>,
    /// The last key that was returned.
    pub(super) after: String,
}

impl Token {
    pub(super) fn encode(&self) -> String {
        let plain = format!("{}:{}", self.revision.unwrap_or(0), self.after);
        plain
            .bytes()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .filter_map(|digit| char::from_digit(digit.into(), 16))
            .collect()
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        let digits: Vec<u8> =
            text.chars().map(|digit| u8::try_from(digit.to_digit(16)?).ok()).collect::<Option<_>>()?;
        if !digits.len().is_multiple_of(2) {
            return None;
        }
        let bytes = digits.chunks(2).map(|pair| pair.iter().fold(0, |sum, digit| sum << 4 | digit));
        let plain = String::from_utf8(bytes.collect()).ok()?;
        let (revision, after) = plain.split_once(':')?;
        let revision =
            revision.parse().ok().map(|revision| Some(revision).filter(|revision| *revision > 0))?;
        Some(Self { revision, after: after.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_rubbish() {
        for revision in [None, Some(1), Some(u64::MAX)] {
            let token = Token { revision, after: "default/a.b-c".to_owned() };
            assert_eq!(Token::decode(&token.encode()), Some(token));
        }
        for rubbish in ["", "0", "zz", "é", "ff", "00", &"31".repeat(3)] {
            assert_eq!(Token::decode(rubbish), None, "{rubbish}");
        }
    }
}
