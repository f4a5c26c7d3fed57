//! Runs blocking work on a separate thread, so that the server continues to serve requests.

use std::{io, thread};

use tokio::sync::oneshot;

/// Runs the work on a separate thread and returns its result. If the caller stops waiting, the thread continues. The
/// process does not wait for it at exit, because a file system that hangs would block the exit.
pub(super) async fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (give, result) = oneshot::channel();
    thread::Builder::new().name("manifests".to_owned()).spawn(move || {
        // The caller may have stopped waiting.
        let _ = give.send(work());
    })?;
    result.await.map_err(|_| io::Error::other("the thread that reads manifests panicked"))
}
