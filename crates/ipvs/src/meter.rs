//! The metrics of this mode.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The value before the first data plane of this mode.
const NEVER: usize = usize::MAX;

/// The metrics of one family. The data plane writes them, and the exporter of metrics reads them in a thread of its
/// own.
#[derive(Debug)]
pub struct Meter {
    draining: AtomicUsize,
}

impl Default for Meter {
    fn default() -> Self {
        Self { draining: AtomicUsize::new(NEVER) }
    }
}

impl Meter {
    /// Returns the number of draining endpoints; `None` if this mode has never run.
    pub fn draining(&self) -> Option<usize> {
        Some(self.draining.load(Ordering::Relaxed)).filter(|count| *count != NEVER)
    }

    pub(super) fn set_draining(&self, count: usize) {
        self.draining.store(count, Ordering::Relaxed);
    }
}
