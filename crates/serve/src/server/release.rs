//! Returns freed memory to the system.
//!
//! An allocator keeps freed memory that lies between used memory. After many connections or large requests, this task
//! makes the allocator look for free pages. Other threads that allocate may block meanwhile, and with them all requests.
//! So it waits for a quiet second, but under a steady load for half a minute only, and may take only a small part of the time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    task::spawn_blocking,
    time::{Instant, sleep},
};

/// A function that returns free memory to the system. Takes milliseconds.
pub type ReleaseMemory = fn();

/// Memory is returned after this many bytes have been freed.
const WORTH: usize = 2 << 20;
/// Memory is returned when less than [`WORTH`] was freed in this time. More memory is usually freed in the same moment.
const PAUSE: Duration = Duration::from_secs(1);
/// After its shortest pause, memory is returned within this time, however much is freed meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The pause is at least this many times as long as the last call took.
const PART: u32 = 100;
/// Bytes counted for a closed connection.
pub(super) const CONNECTION: usize = 16 << 10;

/// Counts the bytes freed since memory was last returned.
#[derive(Debug, Clone, Default)]
pub(super) struct Freed(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    bytes: AtomicUsize,
    enough: Notify,
}

impl Freed {
    /// Adds approximately freed bytes.
    pub(super) fn add(&self, bytes: usize) {
        let sum = |before: usize| Some(before.saturating_add(bytes));
        let before = self.0.bytes.fetch_update(Relaxed, Relaxed, sum).unwrap_or(WORTH);
        if before < WORTH && before.saturating_add(bytes) >= WORTH {
            self.0.enough.notify_one();
        }
    }

    /// Waits for `pause`, and then, for at most [`LONGEST_PAUSE`], until less than [`WORTH`] was freed during the last wait.
    async fn quiet(&self, pause: Duration) {
        let end = Instant::now().checked_add(pause.saturating_add(LONGEST_PAUSE));
        let mut before = self.0.bytes.load(Relaxed);
        sleep(pause).await;
        loop {
            let now = self.0.bytes.load(Relaxed);
            if now.saturating_sub(before) < WORTH || end.is_some_and(|end| Instant::now() >= end) {
                return;
            }
            before = now;
            sleep(PAUSE).await;
        }
    }

    /// Returns memory to the system, on another thread, whenever enough has been freed. Never returns.
    pub(super) async fn release(self, release: ReleaseMemory) {
        let mut pause = PAUSE;
        loop {
            self.0.enough.notified().await;
            self.quiet(pause).await;
            self.0.bytes.store(0, Relaxed);
            let took = spawn_blocking(move || {
                let begin = std::time::Instant::now();
                release();
                begin.elapsed()
            });
            pause = pause_after(took.await.unwrap_or_default());
        }
    }
}

/// Returns the pause after a call that took this long.
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
        // A count that saturates is large, not small.
        freed.add(usize::MAX);
        assert_eq!(after(usize::MAX).await, 3);
        task.abort();
    }

    static UNDER_LOAD: AtomicU32 = AtomicU32::new(0);

    #[tokio::test(start_paused = true)]
    async fn under_a_steady_load_memory_is_given_back_rarely() {
        let freed = Freed::default();
        let task = tokio::spawn(freed.clone().release(|| {
            UNDER_LOAD.fetch_add(1, Relaxed);
        }));
        let load = async |seconds: u32| {
            for _ in 0..seconds * 10 {
                freed.add(WORTH);
                sleep(Duration::from_millis(100)).await;
            }
            UNDER_LOAD.load(Relaxed)
        };
        assert_eq!(load(29).await, 0);
        assert_eq!(load(4).await, 1);
        assert_eq!(load(20).await, 1);
        sleep(PAUSE * 3).await;
        assert_eq!(UNDER_LOAD.load(Relaxed), 2, "the load has ended");
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
    fn slow_calls_are_followed_by_long_pauses() {
        assert_eq!(pause_after(Duration::ZERO), PAUSE);
        assert_eq!(pause_after(Duration::from_millis(10)), PAUSE);
        assert_eq!(pause_after(Duration::from_millis(50)), Duration::from_secs(5));
        assert_eq!(pause_after(Duration::MAX), Duration::MAX);
    }
}
