//! etcd, for an API server in the same namespace. It uses its default ports, which nothing else uses there.

use std::path::Path;

use crate::{Namespace, PortolanProcess, TestkitError};

/// The port for clients, on loopback.
pub const PORT: u16 = 2379;
/// Its URL.
pub const URL: &str = "http://127.0.0.1:2379";

/// Starts etcd with its data in a folder. It may not answer yet.
pub fn start(namespace: &Namespace, etcd: &Path, data: &Path) -> Result<PortolanProcess, TestkitError> {
    let data = data.to_string_lossy();
    let urls = ["--listen-client-urls", URL, "--advertise-client-urls", URL];
    let flags = [&["--data-dir", &*data, "--log-level", "error"][..], &urls].concat();
    // Debian builds etcd for architectures that upstream does not test.
    let architecture = std::env::consts::ARCH.replace("aarch64", "arm64");
    let environment = [("ETCD_UNSUPPORTED_ARCH", architecture.as_str())];
    PortolanProcess::start_with_environment(namespace, etcd, &flags, &environment)
}
