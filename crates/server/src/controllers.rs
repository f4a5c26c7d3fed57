//! Loops that keep the objects in order: what nobody owns any more goes, Namespaces are emptied, Endpoints are mirrored
//! to EndpointSlices, Events expire.
//!
//! Each follows the store's changes, never asks again and again, and writes through [`Api`] like any client. None holds
//! a truth of its own: after a start, or a gap in the history, it compares what is there. Several servers on one store
//! may do the same at the same time: every write is bound to the object that was seen, so one of them succeeds and the
//! others find nothing left to do.

mod events;
mod feed;
mod garbage;
mod mirror;
mod namespaces;
mod object;
mod queue;

use std::{future::Future, sync::Arc};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use tokio::{sync::watch, task::JoinSet};

pub(crate) use self::feed::{Feed, Seen};
use self::{events::Expiry, garbage::Collector, mirror::Mirror, namespaces::Namespaces};
use crate::{api::Api, config::Config};

/// Writes that one controller has under way at once.
const AT_ONCE: usize = 16;
/// Objects that one controller looks at before others get their turn.
const BATCH: usize = 256;

/// Starts every controller; they end when the server stops.
pub(crate) fn spawn(
    api: &Arc<Api>,
    config: &Config,
    stopping: &watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
) {
    if !config.controllers {
        return;
    }
    tasks.spawn(until_stop(Collector::new(api).run(), stopping.clone()));
    tasks.spawn(until_stop(Namespaces::new(api).run(), stopping.clone()));
    tasks.spawn(until_stop(Mirror::new(api).run(), stopping.clone()));
    tasks.spawn(until_stop(Expiry::new(api, config.event_ttl).run(), stopping.clone()));
}

/// A write under way when the server stops is done or not done as a whole; nobody waits for it.
async fn until_stop(controller: impl Future<Output = ()> + Send, mut stopping: watch::Receiver<bool>) {
    tokio::select! {
        () = controller => {}
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
}

/// Does all of it, some at a time; the results come in any order.
async fn all<T: Send>(work: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    stream::iter(work).buffer_unordered(AT_ONCE).collect().await
}

/// A future for [`all`].
fn boxed<'a, T>(work: impl Future<Output = T> + Send + 'a) -> BoxFuture<'a, T> {
    work.boxed()
}
