//! KubeProxyConfiguration in YAML and JSON: any text is parsed or refused, and a parsed configuration can be written and
//! parsed again.
//!
//! Choices edit a configuration with every field. Other inputs are the text.

use portolan_node::config::{ConfigError, parse};

use crate::edits;
use crate::script::Script;

/// A configuration with every field.
pub(crate) const WHOLE: &str = include_str!("configuration.yaml");
const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// Parses the text.
pub(crate) fn run(bytes: &[u8]) {
    if let Some(mut script) = Script::of(bytes) {
        check(&edits::lines(WHOLE, &mut script));
        return;
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // Most texts would fail at the head, so each text is also parsed after a valid head.
    check(text);
    check(&format!("{HEAD}{text}"));
}

fn check(text: &str) {
    match parse(text) {
        Ok(configuration) => {
            let again = parse(&configuration.to_yaml()).expect("what was written is valid");
            assert_eq!(again, configuration.effective());
        }
        Err(ConfigError::Invalid(errors)) => {
            assert!(errors.iter().all(|error| !error.path.is_empty() && !error.to_string().is_empty()));
        }
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the path of each field of a YAML text with two spaces for each level, also of those in lists.
    fn paths(text: &str) -> Vec<String> {
        let mut path: Vec<(usize, &str)> = Vec::new();
        let mut paths = Vec::new();
        for line in text.lines() {
            let field = line.trim_start_matches([' ', '-']);
            let Some((name, _)) = field.split_once(':') else { continue };
            let indent = line.len() - field.len();
            path.retain(|(other, _)| *other < indent);
            path.push((indent, name));
            paths.push(path.iter().map(|(_, name)| *name).collect::<Vec<_>>().join("."));
        }
        paths
    }

    #[test]
    fn the_configuration_without_edits_has_every_field() {
        parse(WHOLE).expect("it is valid");
        let page = include_str!("../../../docs/reference/configuration.md");
        let fields: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
        assert!(fields.len() > 60, "{}", fields.len());
        let there = paths(WHOLE);
        let is_there = |field: &str| there.iter().any(|path| path == field);
        assert_eq!(fields.into_iter().filter(|field| !is_there(field)).collect::<Vec<_>>(), [""; 0]);
    }
}
