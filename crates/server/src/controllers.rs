//! What the server does of its own accord: keeps the objects that every cluster has, lets ServiceCIDRs come and go, and
//! mends what is wrong with addresses and node ports.

pub(crate) mod kubernetes_service;
pub(crate) mod repair;
pub(crate) mod service_cidr;

#[cfg(test)]
mod tests;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{sync::watch, task::JoinSet};

use crate::{api::Api, config::Config};

/// How often what every cluster has is looked for (upstream's controllers of both objects).
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Puts everything in order, and keeps it so until the server stops. Clients are to be answered after this returns.
pub(crate) async fn start(
    api: &Arc<Api>,
    config: &Config,
    address: SocketAddr,
    stopping: &watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
) {
    service_cidr::sync(api).await;
    let kubernetes = kubernetes_service::KubernetesService::new(config, address);
    if let Some(kubernetes) = &kubernetes {
        kubernetes.sync(api).await;
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
}
