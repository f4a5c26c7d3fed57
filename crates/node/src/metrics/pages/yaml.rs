//! Formats a JSON value as block YAML.

use std::fmt::Write as _;

use serde_json::Value;

/// Returns one line for each leaf. Strings are quoted as in JSON, which is a subset of YAML.
pub(super) fn yaml(value: &Value) -> String {
    let mut text = String::new();
    write(value, 0, &mut text);
    text
}

fn write(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let _ = write!(text, "{indent}{}:", plain_or_quoted(name));
                after(value, depth + 1, text);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let _ = write!(text, "{indent}-");
                after(item, depth + 1, text);
            }
        }
        leaf => {
            let _ = writeln!(text, "{indent}{leaf}");
        }
    }
}

fn after(value: &Value, depth: usize, text: &mut String) {
    let nested = value.as_object().is_some_and(|fields| !fields.is_empty())
        || value.as_array().is_some_and(|items| !items.is_empty());
    if nested {
        text.push('\n');
        write(value, depth, text);
    } else {
        let _ = writeln!(text, " {value}");
    }
}

/// Names such as `v` and `log-format` need no quotes, unless YAML may read them as a truth value.
fn plain_or_quoted(name: &str) -> String {
    let plain = name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-');
    let word = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    if plain && !word.contains(&name.to_ascii_lowercase().as_str()) {
        name.to_owned()
    } else {
        Value::from(name).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_has_its_line() {
        let value = serde_json::json!({
            "kind": "Flagz",
            "empty": {},
            "no": [],
            "flags": { "v": "4", "text": "a: \"b\"\n" },
            "paths": ["/a", { "b": 1 }],
        });
        insta::assert_snapshot!(yaml(&value), @r#"
        empty: {}
        flags:
          text: "a: \"b\"\n"
          v: "4"
        kind: "Flagz"
        "no": []
        paths:
          - "/a"
          -
            b: 1
        "#);
    }
}
