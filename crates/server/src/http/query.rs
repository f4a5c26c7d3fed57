//! Query strings and percent-encoding (WHATWG `application/x-www-form-urlencoded`).

use crate::error::ApiError;

/// Decoded query parameters; the first of a name counts.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(text: &str) -> Result<Self, ApiError> {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok::<_, ApiError>((decode_form(name)?, decode_form(value)?))
        });
        Ok(Self(pairs.collect::<Result<_, _>>()?))
    }

    /// The value of a parameter.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find_map(|(key, value)| (key == name).then_some(value.as_str()))
    }

    /// A boolean parameter, by the rules of Go's `strconv.ParseBool`; absent and empty are false.
    pub(super) fn flag(&self, name: &'static str) -> Result<bool, ApiError> {
        Ok(self.optional_flag(name)?.unwrap_or(false))
    }

    /// A boolean parameter, absent told from false.
    pub(super) fn optional_flag(&self, name: &'static str) -> Result<Option<bool>, ApiError> {
        match self.get(name) {
            None | Some("") => Ok(None),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(Some(true)),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(Some(false)),
            Some(other) => Err(bad(name, other, "must be true or false")),
        }
    }

    /// A decimal parameter; absent and empty are `None`.
    pub(super) fn number(&self, name: &'static str) -> Result<Option<u64>, ApiError> {
        match self.get(name) {
            None | Some("") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| bad(name, text, "must be a decimal number")),
        }
    }
}

/// Decodes `%XX`; `None` if the encoding is broken or the result is not UTF-8.
pub(super) fn decode_path(segment: &str) -> Option<String> {
    decode(segment, false)
}

fn decode_form(text: &str) -> Result<String, ApiError> {
    decode(text, true).ok_or_else(|| bad("(encoding)", text, "broken percent-encoding"))
}

fn decode(text: &str, plus_is_space: bool) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => hex(bytes.next()?)? * 16 + hex(bytes.next()?)?,
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    String::from_utf8(decoded).ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

fn bad(parameter: &'static str, value: &str, reason: &'static str) -> ApiError {
    ApiError::BadParameter { parameter, value: value.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding() {
        let query = Query::parse("labelSelector=a%20in+(b%2Cc)&watch=1&limit=5&empty=&flag").unwrap();
        assert_eq!(query.get("labelSelector"), Some("a in (b,c)"));
        assert_eq!((query.flag("watch").unwrap(), query.flag("flag").unwrap()), (true, false));
        assert_eq!((query.number("limit").unwrap(), query.number("empty").unwrap()), (Some(5), None));
        assert_eq!(decode_path("a%2Fb+c").as_deref(), Some("a/b+c"));
    }

    #[test]
    fn broken_input_is_an_error() {
        for text in ["a=%", "a=%2", "a=%zz", "a=%ff"] {
            assert!(Query::parse(text).is_err(), "{text}");
        }
        let query = Query::parse("watch=maybe&limit=-1").unwrap();
        assert!(query.flag("watch").is_err() && query.number("limit").is_err());
    }
}
