//! Query strings and percent-encoding (WHATWG `application/x-www-form-urlencoded`).
//!
//! Every parameter that this server knows is checked, whatever the request is. An invalid value is refused and never
//! treated as absent. Unknown parameters are ignored, as upstream does, because clients send some for servers of
//! other versions.

use portolan_api::{ApiError, FieldError};

/// The values that a parameter may have.
#[derive(Debug, Clone, Copy)]
enum Rule {
    /// True or false. The name without `=` means true.
    Flag,
    /// A decimal number.
    Number,
    /// A decimal number, which may be negative.
    SignedNumber,
    /// A decimal number, or empty.
    NumberOrNothing,
    /// A duration in Go's form (`time.ParseDuration`), or empty.
    Duration,
    /// One of these values.
    OneOf(&'static [&'static str]),
    /// One of these values, or empty.
    OneOfOrNothing(&'static [&'static str]),
    /// Any text. It is checked where it is used.
    Text,
}

/// The parameters, with upstream's rules (`metav1.ListOptions`, `GetOptions`, `DeleteOptions`, `CreateOptions`,
/// `PatchOptions`, `TableOptions`). A value may be empty where the empty value of upstream's type means "not set".
const PARAMETERS: &[(&str, Rule)] = &[
    ("allowWatchBookmarks", Rule::Flag),
    ("continue", Rule::Text),
    ("dryRun", Rule::OneOf(&["All"])),
    ("fieldManager", Rule::Text),
    ("fieldSelector", Rule::Text),
    ("fieldValidation", Rule::OneOfOrNothing(&["Ignore", "Warn", "Strict"])),
    ("force", Rule::Flag),
    ("gracePeriodSeconds", Rule::SignedNumber),
    ("ignoreStoreReadErrorWithClusterBreakingPotential", Rule::Flag),
    ("includeObject", Rule::OneOfOrNothing(&["None", "Metadata", "Object"])),
    ("labelSelector", Rule::Text),
    ("limit", Rule::Number),
    ("orphanDependents", Rule::Flag),
    ("pretty", Rule::Flag),
    ("propagationPolicy", Rule::OneOf(&["Background", "Foreground", "Orphan"])),
    ("resourceVersion", Rule::NumberOrNothing),
    ("resourceVersionMatch", Rule::OneOfOrNothing(&["Exact", "NotOlderThan"])),
    ("sendInitialEvents", Rule::Flag),
    ("timeout", Rule::Duration),
    ("timeoutSeconds", Rule::Number),
    ("watch", Rule::Flag),
];

/// Parameters that select among objects.
const SELECTIVE: &[&str] =
    &["continue", "fieldSelector", "labelSelector", "limit", "resourceVersion", "resourceVersionMatch"];

/// Decoded query parameters.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<Parameter>);

#[derive(Debug)]
struct Parameter {
    name: String,
    /// `None` if there is no `=`.
    value: Option<String>,
}

impl Query {
    /// Parses and checks a query.
    pub(super) fn parse(text: &str) -> Result<Self, ApiError> {
        let parameters =
            text.split('&').filter(|pair| !pair.is_empty()).map(|pair| match pair.split_once('=') {
                Some((name, value)) => {
                    Ok(Parameter { name: decode_form(name)?, value: Some(decode_form(value)?) })
                }
                None => Ok::<_, ApiError>(Parameter { name: decode_form(pair)?, value: None }),
            });
        let query = Self(parameters.collect::<Result<_, _>>()?);
        for (name, rule) in PARAMETERS {
            query.check(name, *rule)?;
        }
        Ok(query)
    }

    /// Returns the value of a parameter; empty if there is only its name.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next().map(Option::unwrap_or_default)
    }

    /// Returns a boolean parameter; false if it is absent.
    pub(super) fn flag(&self, name: &'static str) -> Result<bool, ApiError> {
        Ok(self.optional_flag(name)?.unwrap_or(false))
    }

    /// Returns a boolean parameter by the rules of Go's `strconv.ParseBool`; `None` if it is absent.
    pub(super) fn optional_flag(&self, name: &'static str) -> Result<Option<bool>, ApiError> {
        self.all(name).next().map(|value| parse_flag(name, value)).transpose()
    }

    /// Returns a decimal parameter; `None` if it is absent or empty.
    pub(super) fn number(&self, name: &'static str) -> Result<Option<u64>, ApiError> {
        self.get(name).filter(|text| !text.is_empty()).map(|text| parse_number(name, text)).transpose()
    }

    /// Returns an error if a parameter selects among objects. A request for one object would ignore it and do more
    /// than the query asks for.
    pub(super) fn check_unselective(&self) -> Result<(), ApiError> {
        let given = SELECTIVE.iter().find_map(|name| {
            let value = self.get(name).filter(|value| !value.is_empty())?;
            Some((name, value))
        });
        match given {
            None => Ok(()),
            Some((name, value)) => {
                Err(bad(name, value, "chooses among many objects, but this request is about a single one"))
            }
        }
    }

    /// Returns the values of a parameter; `None` for the name alone.
    fn all(&self, name: &str) -> impl Iterator<Item = Option<&str>> {
        self.0.iter().filter(move |it| it.name == name).map(|it| it.value.as_deref())
    }

    fn check(&self, name: &'static str, rule: Rule) -> Result<(), ApiError> {
        let mut values = self.all(name);
        let Some(first) = values.next() else { return Ok(()) };
        if let Some(other) = values.find(|value| *value != first) {
            return Err(bad(name, other.unwrap_or_default(), "is given again, with another value"));
        }
        let value = first.unwrap_or_default();
        match rule {
            Rule::Flag => parse_flag(name, first).map(drop),
            Rule::NumberOrNothing | Rule::OneOfOrNothing(_) | Rule::Duration if value.is_empty() => Ok(()),
            Rule::Number | Rule::NumberOrNothing => parse_number(name, value).map(drop),
            Rule::SignedNumber => value.parse::<i64>().map(drop).map_err(|_| no_number(name, value)),
            Rule::Duration if !is_duration(value) => {
                Err(bad(name, value, "must be a duration such as 30s or 1m30s"))
            }
            Rule::OneOf(supported) | Rule::OneOfOrNothing(supported) if !supported.contains(&value) => {
                let error = FieldError::not_supported(name, value, supported);
                Err(ApiError::InvalidOptions { what: "Options", error })
            }
            Rule::OneOf(_) | Rule::OneOfOrNothing(_) | Rule::Duration | Rule::Text => Ok(()),
        }
    }
}

fn parse_flag(name: &'static str, value: Option<&str>) -> Result<bool, ApiError> {
    match value {
        None | Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
        Some(other) => Err(bad(name, other, "must be true or false")),
    }
}

fn parse_number(name: &'static str, text: &str) -> Result<u64, ApiError> {
    text.parse().map_err(|_| no_number(name, text))
}

fn no_number(name: &'static str, text: &str) -> ApiError {
    bad(name, text, "must be a decimal number")
}

/// Returns true for a text that Go's `time.ParseDuration` accepts: `32s`, `1m30.5s`, `-1h`, `0`.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest.is_empty() || rest == "0" {
        return rest == "0";
    }
    let mut total = 0_u64;
    let is_numeric = |c: char| c.is_ascii_digit() || c == '.';
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c| !is_numeric(c)).unwrap_or(rest.len()));
        let (unit, after) = tail.split_at(tail.find(is_numeric).unwrap_or(tail.len()));
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let nanoseconds = match unit {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000_u64,
            _ => return false,
        };
        if whole.len() + fraction.len() == 0 || fraction.contains('.') {
            return false;
        }
        let whole = if whole.is_empty() { Ok(0) } else { whole.parse::<u64>() };
        let part = whole.ok().and_then(|whole| whole.checked_mul(nanoseconds));
        let Some(sum) = part.and_then(|part| total.checked_add(part)) else { return false };
        (total, rest) = (sum, after);
    }
    // Go keeps nanoseconds in 64 bits with a sign.
    i64::try_from(total).is_ok()
}

/// Decodes `%XX`. Returns `None` if the encoding is invalid or the result is not UTF-8.
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
        let query =
            Query::parse("labelSelector=a%20in+(b%2Cc)&watch=1&limit=5&resourceVersion=&pretty").unwrap();
        assert_eq!(query.get("labelSelector"), Some("a in (b,c)"));
        let flag = |name| query.optional_flag(name).unwrap();
        assert_eq!((flag("watch"), flag("pretty"), flag("force")), (Some(true), Some(true), None));
        assert_eq!(
            (query.number("limit").unwrap(), query.number("resourceVersion").unwrap()),
            (Some(5), None)
        );
        assert_eq!(decode_path("a%2Fb+c").as_deref(), Some("a/b+c"));
    }

    #[test]
    fn broken_input_is_an_error() {
        for text in ["a=%", "a=%2", "a=%zz", "a=%ff"] {
            assert!(Query::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn values_that_a_parameter_cannot_have() {
        let code = |text: &str| Query::parse(text).map_or_else(|error| error.code(), |_| 200);
        for (text, expected) in [
            ("watch=maybe", 400),
            ("watch=", 400),
            ("watch&watch", 200),
            ("watch=1&watch=0", 400),
            ("limit=-1", 400),
            ("limit=", 400),
            ("limit", 400),
            ("timeoutSeconds=x", 400),
            ("gracePeriodSeconds=", 400),
            ("gracePeriodSeconds=-1", 200),
            ("gracePeriodSeconds=1.5", 400),
            ("resourceVersion=x", 400),
            ("resourceVersion=", 200),
            ("resourceVersionMatch=", 200),
            ("resourceVersionMatch=Newest", 422),
            ("dryRun=All", 200),
            ("dryRun=All&dryRun=All", 200),
            ("dryRun=All&dryRun=", 400),
            ("dryRun=", 422),
            ("dryRun", 422),
            ("dryRun=all", 422),
            ("fieldValidation=", 200),
            ("fieldValidation=strict", 422),
            ("propagationPolicy=", 422),
            ("propagationPolicy=orphan", 422),
            ("orphanDependents=", 400),
            ("ignoreStoreReadErrorWithClusterBreakingPotential=true", 200),
            ("ignoreStoreReadErrorWithClusterBreakingPotential=maybe", 400),
            ("includeObject=All", 422),
            ("force=", 400),
            ("labelSelector=&fieldSelector=&continue=&fieldManager=", 200),
            ("timeout=32s&unknown", 200),
            ("timeout=", 200),
            ("timeout=1h2m3.5s4ms5us6%C2%B5s7ns", 200),
            ("timeout=-1s", 200),
            ("timeout=0", 200),
            ("timeout=.5s", 200),
            ("timeout=5.s", 200),
            ("timeout=soon", 400),
            ("timeout=30", 400),
            ("timeout=s", 400),
            ("timeout=.s", 400),
            ("timeout=1.2.3s", 400),
            ("timeout=1s ", 400),
            ("timeout=1d", 400),
            ("timeout=-", 400),
            ("timeout=2562048h", 400),
            ("timeout=99999999999999999999s", 400),
            ("timeout=1s&timeout=2s", 400),
        ] {
            assert_eq!(code(text), expected, "{text}");
        }
    }

    #[test]
    fn parameters_that_select_among_objects() {
        let is_fine = |text: &str| Query::parse(text).unwrap().check_unselective().is_ok();
        assert!(!is_fine("dryRun=All&fieldManager=me&labelSelector=&limit=5"));
        assert!(is_fine("dryRun=All&fieldManager=me&labelSelector=&resourceVersion="));
        for text in ["labelSelector=a", "fieldSelector=a%3Db", "resourceVersion=5", "continue=x"] {
            assert!(!is_fine(text), "{text}");
        }
    }
}
