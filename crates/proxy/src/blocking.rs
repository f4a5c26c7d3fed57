//! Work that waits for programs of the node, on other threads than the one that answers health and metrics requests.

use anyhow::Context as _;

/// Runs `work` on a thread for blocking work and returns its result. If this future is dropped, `work` goes on and its
/// result is dropped.
///
/// # Errors
/// `work` has panicked, or the runtime is ending.
pub(crate) async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work).await.context("work on another thread has ended without a result")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    #[test]
    fn other_tasks_go_on_while_work_waits() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (gate, opened) = mpsc::channel();
        let waits = super::run(move || opened.recv());
        let opens = async move { gate.send("open") };
        // On one thread, `opens` would never run.
        let (waited, sent) = runtime.block_on(async { tokio::join!(waits, opens) });
        assert_eq!((waited.expect("a result"), sent), (Ok("open"), Ok(())));
    }
}
