//! Threads of the parts.

use std::future::Future;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::AddonError;

/// Runs a part on a thread of its own, with a runtime of its own. The part must end when
/// the value of its argument becomes true. Adds a task to `tasks` that ends when the thread does.
pub(crate) fn spawn<Part>(
    name: &'static str,
    stopping: &watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
    part: impl FnOnce(watch::Receiver<bool>) -> Part + Send + 'static,
) -> Result<(), AddonError>
where
    Part: Future<Output = ()>,
{
    let failed = |source| AddonError::Thread { name, source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (running, ended) = oneshot::channel::<()>();
    let stopping = stopping.clone();
    let body = move || {
        // Dropped at the end of the thread, also after a panic.
        let _running = running;
        // Moved here so that it is dropped first: the tasks of the runtime hold the part's sockets.
        let runtime = runtime;
        runtime.block_on(part(stopping));
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map_err(failed)?;
    tasks.spawn(async move {
        // The sender sends nothing; it is dropped.
        let _ = ended.await;
    });
    Ok(())
}

/// Completes when the server stops.
pub(crate) async fn stopped(mut stopping: watch::Receiver<bool>) {
    // An error means that the server has ended already.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}
