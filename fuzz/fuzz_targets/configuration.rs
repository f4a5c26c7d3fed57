//! KubeProxyConfiguration in YAML and JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = portolan_node::config::parse(text);
});
