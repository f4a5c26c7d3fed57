//! What the server does of its own accord: keeps the objects that every cluster has, lets ServiceCIDRs come and go, mends
//! what is wrong with addresses and node ports, deletes what nobody owns any more, empties Namespaces, mirrors Endpoints
//! to EndpointSlices, lets Events expire.
//!
//! Each loop writes through [`Api`] like any client. None holds a truth of its own: after a start, or a gap in the
//! history, it compares what is there. Several servers on one store may do the same at the same time: every write is
//! bound to the object that was seen, so one of them succeeds and the others find nothing left to do.

mod expiry;
mod feed;
mod garbage;
pub(crate) mod kubernetes_service;
mod mirror;
mod namespaces;
mod object;
mod queue;
pub(crate) mod repair;
pub(crate) mod service_cidr;

#[cfg(test)]
mod tests;

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use tokio::{sync::watch, task::JoinSet};

pub(crate) use self::feed::{Feed, Seen};
use self::{expiry::Expiry, garbage::Collector, mirror::Mirror, namespaces::Namespaces};
use crate::{api::Api, config::Config, error::ApiError};

/// How often what every cluster has is looked for (upstream's controllers of both objects).
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Writes that one controller has under way at once.
const AT_ONCE: usize = 16;
/// Objects that one controller looks at before others get their turn.
const BATCH: usize = 256;

/// Puts everything in order, and keeps it so until the server stops. Clients are to be answered after this returns; not at
/// all, if the store cannot write what must be there before.
pub(crate) async fn start(
    api: &Arc<Api>,
    config: &Config,
    address: SocketAddr,
    stopping: &watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
) -> Result<(), ApiError> {
    if config.controllers {
        tasks.spawn(until_stop(Collector::new(api).run(), stopping.clone()));
        tasks.spawn(until_stop(Namespaces::new(api).run(), stopping.clone()));
        tasks.spawn(until_stop(Mirror::new(api).run(), stopping.clone()));
        tasks.spawn(until_stop(Expiry::new(api, config.event_ttl).run(), stopping.clone()));
    }
    service_cidr::sync(api).await;
    let kubernetes = kubernetes_service::KubernetesService::new(config, address);
    if let Some(kubernetes) = &kubernetes {
        kubernetes.begin(api).await?;
    }
    let mut repair = repair::Repair::default();
    repair.pass(api).await;
    let mut stopping = stopping.clone();
    let api = Arc::clone(api);
    tasks.spawn(async move {
        let keep = async {
            tokio::join!(
                service_cidr::keep(&api),
                repair.keep(&api),
                kubernetes_service::keep(&api, kubernetes.as_ref())
            )
        };
        tokio::select! {
            _ = keep => {}
            _ = stopping.wait_for(|stopping| *stopping) => {}
        }
        if let Some(kubernetes) = &kubernetes {
            kubernetes.leave(&api).await;
        }
    });
    Ok(())
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
