//! Memory that was needed for a while goes back to the system.
//!
//! An allocator keeps what is freed between other things. After many connections, or large requests, it is told to look
//! for what is free. Other threads that allocate may wait for that, so it is a small part of the time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::{sync::Notify, task::spawn_blocking, time::sleep};

/// Gives free memory back to the system. Takes milliseconds.
pub type ReleaseMemory = fn();

/// After so many bytes have been freed, memory is given back.
const WORTH: usize = 2 << 20;
/// Not at once, since more is being freed in the same moment, and not more often.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause has at least so many times the time that it took last.
const PART: u32 = 100;
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
        let sum = |before: usize| Some(before.saturating_add(bytes));
        let before = self.0.bytes.fetch_update(Relaxed, Relaxed, sum).unwrap_or(WORTH);
        if before < WORTH && before.saturating_add(bytes) >= WORTH {
            self.0.enough.notify_one();
        }
    }

    /// Gives memory back when there is enough, on another thread.
    pub(super) async fn release(self, release: ReleaseMemory) {
        let mut pause = PAUSE;
        loop {
            self.0.enough.notified().await;
            sleep(pause).await;
            self.0.bytes.store(0, Relaxed);
            let took = spawn_blocking(move || {
                let begin = Instant::now();
                release();
                begin.elapsed()
            });
            pause = pause_after(took.await.unwrap_or_default());
        }
    }
}

/// How long nothing is given back after it has taken so long.
fn pause_after(took: Duration) -> Duration {
    PAUSE.max(took.saturating_mul(PART))
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
        // More than can be counted is much, not little.
        freed.add(usize::MAX);
        assert_eq!(after(usize::MAX).await, 3);
        task.abort();
    }

    static ELSEWHERE: AtomicU32 = AtomicU32::new(0);

    #[tokio::test(start_paused = true)]
    async fn memory_is_given_back_on_another_thread() {
        static SERVING: std::sync::OnceLock<std::thread::ThreadId> = std::sync::OnceLock::new();
        SERVING.set(std::thread::current().id()).unwrap();
        let freed = Freed::default();
        let task = tokio::spawn(freed.clone().release(|| {
            let is_other = SERVING.get() != Some(&std::thread::current().id());
            ELSEWHERE.fetch_add(if is_other { 1 } else { 100 }, Relaxed);
        }));
        freed.add(WORTH);
        while ELSEWHERE.load(Relaxed) == 0 {
            sleep(PAUSE).await;
        }
        assert_eq!(ELSEWHERE.load(Relaxed), 1);
        task.abort();
    }

    #[test]
    fn what_takes_long_is_done_seldom() {
        assert_eq!(pause_after(Duration::ZERO), PAUSE);
        assert_eq!(pause_after(Duration::from_millis(10)), PAUSE);
        assert_eq!(pause_after(Duration::from_millis(50)), Duration::from_secs(5));
        assert_eq!(pause_after(Duration::MAX), Duration::MAX);
    }
}
