//! The runtime that the server runs on.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// After this many tasks, the runtime polls one that another thread has woken. With tokio's default of 31 and many
/// clients, a create that was durable waited behind several rounds of new requests before it was answered.
const TASKS_BETWEEN_WAKEUPS: u32 = 8;

/// Returns a runtime for one server. Everything runs on the thread that blocks on it, so that requests do not compete
/// for locks.
///
/// # Errors
/// The system refuses the file descriptors that the runtime needs.
pub fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().global_queue_interval(TASKS_BETWEEN_WAKEUPS).enable_all().build()
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering::SeqCst},
        },
        task::Poll,
    };

    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn a_task_that_another_thread_wakes_does_not_wait_for_a_round_of_all_others() {
        let polls = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&polls);
        let others = runtime().unwrap().block_on(async move {
            let (wake, woken) = oneshot::channel();
            for _ in 0..256 {
                let polls = Arc::clone(&polls);
                tokio::spawn(poll_fn(move |context| {
                    polls.fetch_add(1, SeqCst);
                    context.waker().wake_by_ref();
                    Poll::<()>::Pending
                }));
            }
            let waiting = tokio::spawn(async move {
                woken.await.unwrap();
                polls.load(SeqCst)
            });
            // The tasks above have run once when this one does.
            let waking = tokio::spawn(async move {
                let thread = std::thread::spawn(move || wake.send(()).unwrap());
                thread.join().unwrap();
                count.load(SeqCst)
            });
            let before = waking.await.unwrap();
            waiting.await.unwrap() - before
        });
        assert!(others <= TASKS_BETWEEN_WAKEUPS, "{others} other tasks ran first");
    }
}
