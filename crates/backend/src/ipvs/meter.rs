//! What operators ask of this mode.

use std::sync::atomic::{AtomicUsize, Ordering};

/// No data plane has been there.
const NEVER: usize = usize::MAX;

/// Shared by the data plane of a family, which writes, and whoever exports what it shows, in a thread of its own.
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
    /// How many endpoints that are no more still have connections; `None` where this mode never ran.
    pub fn draining(&self) -> Option<usize> {
        Some(self.draining.load(Ordering::Relaxed)).filter(|count| *count != NEVER)
    }

    pub(super) fn set_draining(&self, count: usize) {
        self.draining.store(count, Ordering::Relaxed);
    }
}
