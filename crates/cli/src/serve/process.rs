//! `process_*` at the API server's `/metrics`: the figures that the proxy shows of itself.

use portolan_node::metrics::ProcessMetrics;
use portolan_server::{Collect, Page};

/// This process.
#[derive(Debug)]
pub(super) struct Process;

impl Collect for Process {
    fn collect(&self, page: &mut Page) {
        page.append(&ProcessMetrics::page());
    }
}
