//! etcd, for an API server in the same namespace. It uses its default ports, which nothing else uses there.

use std::path::Path;

use anyhow::Context as _;
use portolan_testkit::{Namespace, PortolanProcess};

/// Where it listens.
pub(crate) const URL: &str = "http://127.0.0.1:2379";

/// Starts etcd with its data in a folder. It may not answer yet.
pub(crate) fn start(namespace: &Namespace, etcd: &Path, data: &Path) -> anyhow::Result<PortolanProcess> {
    let data = data.to_string_lossy();
    let urls = ["--listen-client-urls", URL, "--advertise-client-urls", URL];
    let flags = [&["--data-dir", &*data, "--log-level", "error"][..], &urls].concat();
    PortolanProcess::start(namespace, etcd, &flags).context("start etcd")
}
