//! KubeProxyConfiguration in YAML and JSON: any text is parsed or refused, and a parsed configuration can be written and
//! parsed again.

use portolan_node::config::{ConfigError, parse};

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// Parses the text.
pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // Most texts would fail at the head, so each text is also parsed after a valid head.
    for text in [text.to_owned(), format!("{HEAD}{text}")] {
        match parse(&text) {
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
}
