//! Work that may take long, on a thread of its own: requests are answered meanwhile.

use std::{io, thread};

use tokio::sync::oneshot;

/// Does the work on a thread of its own. A caller that stops waiting leaves the thread running; the process does not
/// wait for it when it ends, since a file system that hangs would keep it.
pub(super) async fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (give, result) = oneshot::channel();
    thread::Builder::new().name("manifests".to_owned()).spawn(move || {
        // Who asked may have gone.
        let _ = give.send(work());
    })?;
    result.await.map_err(|_| io::Error::other("the thread that reads manifests panicked"))
}
