//! Finds duplicate fields in JSON and YAML. Text in, the paths of these fields out.
//!
//! Decoders keep the last of the duplicates silently, so the search needs a pass of its own.

use std::collections::HashSet;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Maximum number of paths that are reported.
const MOST: usize = 20;

/// Returns the paths of fields that occur more than once in their object. In invalid JSON, only those before the
/// error.
pub(super) fn of_json(text: &[u8]) -> Vec<String> {
    let mut walk = Walk::default();
    let mut decoder = serde_json::Deserializer::from_slice(text);
    // The decoder of the text reports its errors.
    let _ = Seed(&mut walk).deserialize(&mut decoder);
    walk.found
}

/// Returns the same for YAML.
pub(super) fn of_yaml(text: &str) -> Vec<String> {
    let mut walk = Walk::default();
    let seed = |decoder: serde_saphyr::Deserializer<'_, '_>| Seed(&mut walk).deserialize(decoder);
    let _ = serde_saphyr::with_deserializer_from_str_with_options(text, yaml_options(), seed);
    walk.found
}

/// Returns the options for YAML of clients: as in JSON, the last of duplicate fields counts.
pub(super) fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! { duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins }
}

#[derive(Default)]
struct Walk {
    path: String,
    found: Vec<String>,
}

impl Walk {
    /// Runs `inner` with `part` appended to the path.
    fn at<T>(&mut self, part: &str, inner: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        self.path.push_str(part);
        let result = inner(self);
        self.path.truncate(length);
        result
    }
}

struct Seed<'a>(&'a mut Walk);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, decoder: D) -> Result<(), D::Error> {
        decoder.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = ();

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("JSON or YAML")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let part = if self.0.path.is_empty() { name.clone() } else { format!(".{name}") };
            self.0.at(&part, |walk| {
                if names.contains(&name) && walk.found.len() < MOST && !walk.found.contains(&walk.path) {
                    walk.found.push(walk.path.clone());
                }
                map.next_value_seed(Seed(walk))
            })?;
            names.insert(name);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut index = 0_usize;
        while self.0.at(&format!("[{index}]"), |walk| list.next_element_seed(Seed(walk)))?.is_some() {
            index = index.saturating_add(1);
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, decoder: D) -> Result<(), D::Error> {
        self.deserialize(decoder)
    }

    fn visit_i128<E>(self, _: i128) -> Result<(), E> {
        Ok(())
    }

    fn visit_u128<E>(self, _: u128) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_fields() {
        for (text, expected) in [
            (r#"{"a": 1, "b": [true, null, 1.5, -1, "x"], "c": {"a": {}}}"#, &[][..]),
            (r#"{"a": 1, "a": 2, "a": 3}"#, &["a"]),
            (
                r#"{"s": {"p": [{"x": 1}, {"x": 1, "y": [], "x": 2}], "t": "\"", "t": ""}}"#,
                &["s.p[1].x", "s.t"],
            ),
            (r#"{"a": 1, "\u0061": 2}"#, &["a"]),
            (r#"{"a": 1, "#, &[]),
            ("[[", &[]),
            ("", &[]),
        ] {
            assert_eq!(of_json(text.as_bytes()), expected, "{text}");
        }
        for (text, expected) in [
            ("a: 1\nb: [x, ~]\nc: {a: 1}\n", &[][..]),
            ("a: 1\na: 2\na: 3\n", &["a"]),
            ("s:\n  p:\n  - x: 1\n  - x: 1\n    y: ~\n    x: 2\n  t: a\n  \"t\": b\n", &["s.p[1].x", "s.t"]),
        ] {
            assert_eq!(of_yaml(text), expected, "{text}");
        }
        let many: Vec<String> = (0..100).map(|number| format!("\"a{number}\":0,\"a{number}\":0")).collect();
        assert_eq!(of_json(format!("{{{}}}", many.join(",")).as_bytes()).len(), MOST);
        of_json("[".repeat(1_000_000).as_bytes());
    }
}
