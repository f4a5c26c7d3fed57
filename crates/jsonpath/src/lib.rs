//! The part of `JSONPath` that kube's client needs, under the name of the crate that it asks for.
//!
//! In: a JSON value and a path. Out: the value at the path. Must not know: anything of Portolan.
//!
//! The client looks for the token and its expiry in the output of a command, where a kubeconfig has the auth provider `gcp`. Such
//! paths consist of names: `{.credential.access_token}`. The crate that implements all of `JSONPath` (RFC 9535) brings a parser
//! generator and an engine for regular expressions with it. Those are half a MiB of the node agent, and eight crates to build.

use serde_json::Value;
use thiserror::Error;

/// A path that is not a row of names and indexes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{path:?} has an unknown part at {rest:?}; write names and indexes, such as $.credential.access_token or $.items[0]"
)]
pub struct PathError {
    /// The path.
    pub path: String,
    /// Its part that is not understood.
    pub rest: String,
}

/// Queries by path.
pub trait JsonPath {
    /// Returns the value at the path, or nothing if there is none. A path begins with `$`. Then follow parts: `.name`,
    /// `['name']`, `["name"]` or `[index]`.
    ///
    /// # Errors
    /// The path has other parts.
    fn query(&self, path: &str) -> Result<Vec<&Self>, PathError>;
}

impl JsonPath for Value {
    fn query(&self, path: &str) -> Result<Vec<&Self>, PathError> {
        let unknown = |rest: &str| PathError { path: path.to_owned(), rest: rest.to_owned() };
        let mut rest = path.strip_prefix('$').ok_or_else(|| unknown(path))?;
        let mut found = Some(self);
        while !rest.is_empty() {
            let (part, after) = Part::first_of(rest).ok_or_else(|| unknown(rest))?;
            found = found.and_then(|value| part.of(value));
            rest = after;
        }
        Ok(found.into_iter().collect())
    }
}

/// One part of a path.
#[derive(Debug, Clone, Copy)]
enum Part<'a> {
    Name(&'a str),
    Index(usize),
}

impl<'a> Part<'a> {
    /// Returns the first part and what follows it.
    fn first_of(text: &'a str) -> Option<(Self, &'a str)> {
        if let Some(text) = text.strip_prefix('.') {
            let end = text.find(['.', '[']).unwrap_or(text.len());
            let (name, rest) = text.split_at_checked(end)?;
            let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_-".contains(c));
            return is_name.then_some((Self::Name(name), rest));
        }
        let text = text.strip_prefix('[')?;
        for quote in ['\'', '"'] {
            if let Some(text) = text.strip_prefix(quote) {
                let (name, rest) = text.split_once(quote)?;
                return Some((Self::Name(name), rest.strip_prefix(']')?));
            }
        }
        let (index, rest) = text.split_once(']')?;
        Some((Self::Index(index.parse().ok()?), rest))
    }

    fn of(self, value: &Value) -> Option<&Value> {
        match self {
            Self::Name(name) => value.as_object()?.get(name),
            Self::Index(index) => value.as_array()?.get(index),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_way_to_a_value() {
        let value = json!({"credential": {"access_token": "t", "a.b": [1, {"c": 2}]}});
        for (path, wanted) in [
            ("$", Some(value.clone())),
            ("$.credential.access_token", Some(json!("t"))),
            ("$['credential'][\"access_token\"]", Some(json!("t"))),
            ("$.credential['a.b'][1].c", Some(json!(2))),
            ("$.credential['a.b'][2]", None),
            ("$.credential.access_token.more", None),
            ("$[0]", None),
        ] {
            assert_eq!(value.query(path).unwrap(), Vec::from_iter(wanted.as_ref()), "{path}");
        }
    }

    #[test]
    fn other_paths_are_refused() {
        for (path, rest) in [
            ("credential", "credential"),
            ("$.a..b", "..b"),
            ("$.a[*]", "[*]"),
            ("$.a[?(@.b == 1)]", "[?(@.b == 1)]"),
            ("$.a[-1]", "[-1]"),
            ("$.a['b", "['b"),
            ("$.", "."),
        ] {
            assert_eq!(json!({"a": {}}).query(path).unwrap_err().rest, rest, "{path}");
        }
    }

    proptest! {
        #[test]
        fn no_path_makes_it_panic(path in "\\$?[.\\[\\]'\"a0$€-]{0,20}") {
            let _ = json!({"a": [{"a": 0}]}).query(&path);
        }
    }
}
