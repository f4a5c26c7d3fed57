//! Memory that was needed for a while goes back to the system.
//!
//! An allocator keeps what is freed between other things. After many connections, or large requests, it is told to look
//! for what nobody needs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::sleep};

/// Gives free memory back to the system. Takes milliseconds.
pub type ReleaseMemory = fn();

/// After so many bytes have been freed, memory is given back.
const WORTH: usize = 2 << 20;
/// Not at once, since more is being freed in the same moment, and not more often.
const PAUSE: Duration = Duration::from_secs(1);
/// What a connection is counted as.
pub(super) const CONNECTION: usize = 16 << 10;

/// What has been freed since memory was last given back.
#[derive(Debug, Clone, Default)]
pub(super) struct Freed(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    bytes: AtomicUsize,
    enough: Notify,
}

impl Freed {
    /// About so many bytes have been freed.
    pub(super) fn add(&self, bytes: usize) {
        let before = self.0.bytes.fetch_add(bytes, Relaxed);
        if before < WORTH && before.saturating_add(bytes) >= WORTH {
            self.0.enough.notify_one();
        }
    }

    /// Gives memory back when there is enough.
    pub(super) async fn release(self, release: ReleaseMemory) {
        loop {
            self.0.enough.notified().await;
            sleep(PAUSE).await;
            self.0.bytes.store(0, Relaxed);
            release();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    static RELEASED: AtomicU32 = AtomicU32::new(0);

    #[tokio::test(start_paused = true)]
    async fn memory_is_given_back_once_for_much_that_is_freed() {
        let freed = Freed::default();
        let task = tokio::spawn(freed.clone().release(|| {
            RELEASED.fetch_add(1, Relaxed);
        }));
        let after = async |bytes: usize| {
            freed.add(bytes);
            sleep(PAUSE * 3).await;
            RELEASED.load(Relaxed)
        };
        assert_eq!(after(WORTH - 1).await, 0);
        assert_eq!(after(1).await, 1);
        assert_eq!(after(WORTH * 5).await, 2);
        assert_eq!(after(WORTH - 1).await, 2);
        task.abort();
    }
}
