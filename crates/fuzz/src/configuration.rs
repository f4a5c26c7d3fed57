//! KubeProxyConfiguration in YAML and JSON: any text is parsed or refused, and a parsed configuration can be written and
//! parsed again.
//!
//! Inputs that begin with a byte 1 are edits of a configuration with every field. The others are the text.

use portolan_node::config::{ConfigError, parse};

use crate::edits;
use crate::script::Script;

/// A configuration with every field.
const WHOLE: &str = include_str!("configuration.yaml");
const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// Parses the text.
pub(crate) fn run(bytes: &[u8]) {
    if let Some(mut script) = Script::after(1, bytes) {
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

    #[test]
    fn the_configuration_without_edits_has_every_field() {
        parse(WHOLE).expect("it is valid");
        let page = include_str!("../../../docs/reference/configuration.md");
        let fields = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let missing: Vec<&str> = fields
            .filter(|field| {
                let name = field.rsplit('.').next().unwrap_or_default();
                !WHOLE.contains(&format!("{name}:"))
            })
            .collect();
        assert_eq!(missing, [""; 0]);
    }
}
