//! The server's own controllers. They maintain the objects that every cluster has, track the state of ServiceCIDRs,
//! repair addresses and node ports, collect garbage, empty deleted Namespaces, mirror Endpoints to EndpointSlices,
//! and remove expired Events.
//!
//! Each controller writes through [`Api`] like any client. None keeps state that the store does not have: after a
//! start, or a gap in the history, it compares the stored objects. Several servers on one store may run the same
//! controllers at the same time. Every write is conditional on the object that was read, so one server succeeds and
//! the others find nothing left to do.

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

/// Interval at which the objects of every cluster are checked (as upstream's controllers of both objects).
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Most writes that one controller has under way at once.
const AT_ONCE: usize = 16;
/// Objects that one controller examines before it yields to other tasks.
const BATCH: usize = 256;

/// Starts the controllers, which run until the server stops. The objects that must exist before clients are served
/// are in place when this returns. Returns an error if the store cannot write them; clients must not be served then.
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

/// Runs a controller until the server stops. A write that is under way then is applied as a whole or not at all,
/// without being awaited.
async fn until_stop(controller: impl Future<Output = ()> + Send, mut stopping: watch::Receiver<bool>) {
    tokio::select! {
        () = controller => {}
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
}

/// Runs all futures, at most [`AT_ONCE`] at a time. The results come in any order.
async fn all<T: Send>(work: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    stream::iter(work).buffer_unordered(AT_ONCE).collect().await
}

/// Boxes a future for [`all`].
fn boxed<'a, T>(work: impl Future<Output = T> + Send + 'a) -> BoxFuture<'a, T> {
    work.boxed()
}
