//! `process_*` at the API server's `/metrics`: the same metrics that the proxy has of its process.

use portolan_node::metrics::ProcessMetrics;
use portolan_serve::{Collect, Page};

/// Collects the metrics of this process.
#[derive(Debug)]
pub(super) struct Process;

impl Collect for Process {
    fn collect(&self, page: &mut Page) {
        ProcessMetrics::add_to_page(page);
    }
}
