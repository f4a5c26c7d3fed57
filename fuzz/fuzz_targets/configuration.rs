//! KubeProxyConfiguration in YAML and JSON: any text is read or refused, and what is read can be written and read
//! again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portolan_node::config::{ConfigError, parse};

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fuzz_target!(|text: &str| {
    // Most texts would end at the head; so the same is tried below a good one.
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
});
