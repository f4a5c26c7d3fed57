//! The API server's own controllers. They maintain the objects that every cluster has and the Service of the DNS server,
//! track the state of ServiceCIDRs, repair addresses and node ports, give Services the load-balancer addresses for which
//! they wait, collect garbage, empty deleted Namespaces, mirror Endpoints to EndpointSlices, remove expired Events, register
//! the Node of the server's host, and follow a folder of [`manifests`].
//!
//! In: the changes of the store, files of manifests, the host's addresses, the time. Out: writes through [`Api`], and counts of what was
//! repaired.
//!
//! Must not know: HTTP, TLS, clients.
//!
//! Each controller writes through [`Api`] like any client. None keeps state that the store does not have: after a
//! start, or a gap in the history, it compares the stored objects. Several servers on one store may run the same
//! controllers at the same time. Every write is conditional on the object that was read, so one server succeeds and
//! the others find nothing left to do.

mod dns_service;
mod expiry;
mod feed;
mod garbage;
mod kubernetes_service;
mod load_balancer;
pub mod manifests;
mod mirror;
mod namespaces;
mod object;
mod own_node;
mod presence;
mod queue;
mod repair;
mod service_cidr;

#[cfg(test)]
mod tests;

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use portolan_api::{Api, ApiError};
use tokio::{sync::watch, task::JoinSet};

pub use self::feed::{Feed, Seen};
pub use self::own_node::OwnNode;
pub use self::repair::{RepairCounters, RepairMetrics, repair_once};
use self::{
    dns_service::DnsService, expiry::Expiry, garbage::Collector, load_balancer::LoadBalancers,
    mirror::Mirror, namespaces::Namespaces,
};

/// Interval at which the objects of every cluster are checked (as upstream's controllers of both objects).
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Most writes that one controller has under way at once.
const AT_ONCE: usize = 16;
/// Objects that one controller examines before it yields to other tasks.
const BATCH: usize = 256;

/// Settings of the controllers.
#[derive(Debug, Clone)]
pub struct ControllersConfig {
    /// True if the Service `default/kubernetes` is maintained, at the first address of the primary range.
    pub kubernetes_service: bool,
    /// Address of that Service's endpoint (`--advertise-address`). `None`: the address listened on.
    pub advertise_address: Option<IpAddr>,
    /// Addresses at which this process is to answer DNS requests: the endpoints of the Service `kube-system/kube-dns`,
    /// which is maintained if pods can reach one of them.
    pub dns_endpoints: Vec<SocketAddr>,
    /// Those addresses at which it answers, now and later. The others are no endpoints. `None`: all of them.
    pub dns_answering: Option<watch::Receiver<Vec<SocketAddr>>>,
    /// True if garbage is collected, deleted Namespaces are emptied, Endpoints are mirrored and Events expire. False
    /// for tests of clients whose objects name owners that do not exist.
    pub housekeeping: bool,
    /// Time that an Event is kept after the last write to it (`--event-ttl`).
    pub event_ttl: Duration,
    /// The host whose Node is registered, if it is.
    pub own_node: Option<OwnNode>,
}

impl Default for ControllersConfig {
    fn default() -> Self {
        Self {
            kubernetes_service: false,
            advertise_address: None,
            dns_endpoints: Vec::new(),
            dns_answering: None,
            housekeeping: true,
            event_ttl: Duration::from_secs(60 * 60),
            own_node: None,
        }
    }
}

/// Starts the controllers, which run until the server stops. The objects that must exist before clients are served
/// are in place when this returns. Returns an error if the store cannot write them; clients must not be served then.
///
/// `address` is where the server listens. `repairs` counts what the repair loop does.
pub async fn start(
    api: &Arc<Api>,
    config: &ControllersConfig,
    address: SocketAddr,
    repairs: &RepairCounters,
    stopping: &watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
) -> Result<(), ApiError> {
    if config.housekeeping {
        tasks.spawn(until_stop(Collector::new(api).run(), stopping.clone()));
        tasks.spawn(until_stop(Namespaces::new(api).run(), stopping.clone()));
        tasks.spawn(until_stop(Mirror::new(api).run(), stopping.clone()));
        tasks.spawn(until_stop(Expiry::new(api, config.event_ttl).run(), stopping.clone()));
    }
    if !api.load_balancer_ranges().is_empty() {
        tasks.spawn(until_stop(LoadBalancers::new(api).run(), stopping.clone()));
    }
    portolan_api::service_cidr::sync(api).await;
    let kubernetes = kubernetes_service::KubernetesService::new(config, api.ranges(), address);
    if let Some(kubernetes) = &kubernetes {
        kubernetes.begin(api).await?;
    }
    let own_node = config.own_node.clone();
    if let Some(node) = &own_node {
        node.sync(api).await;
    }
    let dns = DnsService::new(config, api);
    if let Some(dns) = &dns {
        dns.begin(api).await?;
    }
    let mut repair = repair::Repair::new(repairs.clone());
    repair.pass(api).await;
    let mut stopping = stopping.clone();
    let api = Arc::clone(api);
    tasks.spawn(async move {
        let keep = async {
            tokio::join!(
                service_cidr::keep(&api),
                repair.keep(&api),
                kubernetes_service::keep(&api, kubernetes.as_ref()),
                own_node::keep(&api, own_node.as_ref()),
                dns_service::keep(&api, dns.as_ref())
            )
        };
        tokio::select! {
            _ = keep => {}
            _ = stopping.wait_for(|stopping| *stopping) => {}
        }
        if let Some(kubernetes) = &kubernetes {
            kubernetes.leave(&api).await;
        }
        if let Some(dns) = &dns {
            dns.leave(&api).await;
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
