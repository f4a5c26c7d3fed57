//! The Service `kube-system/kube-dns`, through which pods reach the DNS servers of the processes that share the store.
//! Like `default/kubernetes` it is created before clients are served, and an existing Service is left unchanged.
//!
//! Its endpoints are the addresses at which the servers answer. Each server has one EndpointSlice for each address, and
//! removes it when it stops or does not answer there; [`super::presence`] removes those of servers that crashed. A
//! virtual address moves between servers: its EndpointSlice belongs to the server that renewed its Lease last.
//!
//! If the Service has EndpointSlices of others, it belongs to another DNS server, and no server adds its own.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use portolan_api::{Api, ApiError};
use portolan_ipam::AddressRange;
use portolan_schema::json::{Value, json};
use portolan_schema::{Resource, SERVICE_NAME};
use tokio::sync::watch;

use super::object::MANAGED_BY;
use super::presence::{self, Holder, MANAGER, Presence, ServerService, ensure};
use super::{ControllersConfig, RECHECK_INTERVAL};

#[cfg(test)]
mod tests;

const NAME: &str = "kube-dns";
const NAMESPACE: &str = "kube-system";
const SERVICE: ServerService = ServerService { namespace: NAMESPACE, name: NAME };
/// Port of the Service.
const PORT: u16 = 53;
/// Number of the cluster IP in its range, counted from 0. It is the tenth address as in clusters of kubeadm (`GetDNSIP`),
/// such as 10.96.0.10, which nodes are often configured with.
const NUMBER: u64 = 9;
/// Time from the removal of an own EndpointSlice by others until it is created again.
const PAUSE: Duration = Duration::from_secs(1);

/// The Service, and this server's endpoints.
#[derive(Debug, Clone)]
pub(super) struct DnsService {
    /// Addresses that pods can reach.
    endpoints: Vec<SocketAddr>,
    /// The addresses at which the server answers. `None`: all of them.
    answering: Option<watch::Receiver<Vec<SocketAddr>>>,
    /// The range of cluster IPs of each family of the endpoints, the primary one first.
    ranges: Vec<IpNet>,
    holder: Holder,
}

/// Maintains the Service: checks it every [`RECHECK_INTERVAL`], and when its endpoints change. Without a Service, removes
/// the EndpointSlices that earlier servers have left, and ends.
pub(super) async fn keep(api: &Api, service: Option<&DnsService>) {
    let mut presence = Presence::default();
    let mut answering = service.and_then(|service| service.answering.clone());
    loop {
        let has_others = match service {
            Some(service) => service.sync(api, &mut presence).await,
            None => presence.sweep(api, SERVICE, &[]).await,
        };
        if service.is_none() && !has_others {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(RECHECK_INTERVAL) => {}
            () = changed(&mut answering) => {}
            () = taken_away(api, service) => {}
        }
    }
}

/// Completes when the server begins or ceases to answer at an address.
async fn changed(answering: &mut Option<watch::Receiver<Vec<SocketAddr>>>) {
    let is_changed = match answering {
        Some(answering) => answering.changed().await.is_ok(),
        None => false,
    };
    if !is_changed {
        std::future::pending::<()>().await;
    }
}

/// Completes some time after others removed an EndpointSlice of this server. A server that had the same address before may
/// do so.
async fn taken_away(api: &Api, service: Option<&DnsService>) {
    let mut changes = api.store().subscribe(Resource::EndpointSlice);
    let is_stored = |key: &String| api.store().get(Resource::EndpointSlice, key).is_some();
    let key = |endpoint| format!("{NAMESPACE}/{}", slice_name(endpoint));
    let answered = service.map(DnsService::answered).unwrap_or_default();
    let stored: Vec<String> = answered.iter().map(key).filter(is_stored).collect();
    while stored.iter().all(is_stored) {
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
    tokio::time::sleep(PAUSE).await;
}

impl DnsService {
    /// Returns the Service of a server with these settings; `None` if it answers at no address that pods can reach.
    pub(super) fn new(config: &ControllersConfig, api: &Api) -> Option<Self> {
        if config.dns_endpoints.is_empty() {
            return None;
        }
        let has_range = |address: &SocketAddr| api.ranges().iter().any(|range| has_family(&range, address));
        let is_reachable = |address: &&SocketAddr| {
            !address.ip().is_loopback() && !address.ip().is_unspecified() && has_range(address)
        };
        let mut endpoints: Vec<SocketAddr> = Vec::new();
        for address in config.dns_endpoints.iter().filter(is_reachable) {
            if !endpoints.contains(address) {
                endpoints.push(*address);
            }
        }
        if endpoints.is_empty() {
            let mend = "give --dns-listen an address of this node, in a family that has cluster IPs";
            tracing::warn!(mend, "no Service kube-system/kube-dns: pods cannot reach this DNS server");
            return None;
        }
        let is_used = |range: &IpNet| endpoints.iter().any(|address| has_family(range, address));
        let ranges = api.ranges().iter().filter(is_used).collect();
        let answering = config.dns_answering.clone();
        Some(Self { endpoints, answering, ranges, holder: Holder::new(NAME) })
    }

    /// Returns the endpoints at which the server answers now.
    fn answered(&self) -> Vec<SocketAddr> {
        let answering = self.answering.as_ref().map(|answering| answering.borrow().clone());
        let answers = |endpoint: &&SocketAddr| answering.as_ref().is_none_or(|all| all.contains(endpoint));
        self.endpoints.iter().filter(answers).copied().collect()
    }

    /// Creates the Service before clients are served. Returns an error only if the store cannot write.
    pub(super) async fn begin(&self, api: &Api) -> Result<(), ApiError> {
        match self.make(api).await {
            Err(error @ (ApiError::Unavailable(_) | ApiError::Unconfirmed(_))) => Err(error),
            other => {
                Presence::default().log_made(SERVICE, "Service", other);
                Ok(())
            }
        }
    }

    /// Creates the Service if it does not exist: with the usual cluster IP, or with another one if that is taken.
    async fn make(&self, api: &Api) -> Result<Option<String>, ApiError> {
        match ensure(api, self.service(true)).await {
            Err(error @ ApiError::Invalid { .. }) => {
                let made = ensure(api, self.service(false)).await;
                if matches!(made, Ok(Some(_))) {
                    tracing::warn!(%error, "kube-system/kube-dns gets another cluster IP than the usual one");
                }
                made
            }
            other => other,
        }
    }

    /// Creates missing objects, and removes those of servers that are gone. Returns true if there are other servers.
    async fn sync(&self, api: &Api, presence: &mut Presence) -> bool {
        presence.log_made(SERVICE, "Service", self.make(api).await);
        let slices = SERVICE.slices(api);
        let foreign = slices.iter().find(|slice| !presence::is_of_a_server(slice));
        let answered = self.answered();
        self.withdraw(api, &answered).await;
        let mut names: Vec<String> = answered.iter().map(slice_name).collect();
        if let Some(foreign) = foreign {
            if names.iter().any(|name| self.holder.holds(api, name)) {
                let slice = foreign.name();
                tracing::warn!(slice, "kube-system/kube-dns has endpoints of another DNS server: not added");
                self.leave(api).await;
            }
            // Those of an earlier run are removed like those of another server.
            names.clear();
        } else {
            for (endpoint, name) in answered.iter().zip(&names) {
                if let Err(error) = self.holder.renew(api, name).await {
                    tracing::warn!(name, %error, "Lease not renewed");
                }
                presence.log_made(SERVICE, name, ensure(api, slice(endpoint)).await);
            }
        }
        let own: Vec<&str> = names.iter().map(String::as_str).collect();
        presence.sweep(api, SERVICE, &own).await
    }

    /// Removes this server's endpoints besides those `answered`.
    async fn withdraw(&self, api: &Api, answered: &[SocketAddr]) {
        for address in self.endpoints.iter().filter(|endpoint| !answered.contains(endpoint)) {
            let name = slice_name(address);
            if self.holder.holds(api, &name) {
                tracing::warn!(%address, "this DNS server does not answer at the address: its endpoint is taken away");
                self.holder.leave(api, SERVICE, &name).await;
            }
        }
    }

    /// Removes this server's endpoints.
    pub(super) async fn leave(&self, api: &Api) {
        for name in self.endpoints.iter().map(slice_name) {
            if self.holder.holds(api, &name) {
                self.holder.leave(api, SERVICE, &name).await;
            }
        }
    }

    fn service(&self, has_usual_address: bool) -> Value {
        let families: Vec<&str> =
            self.ranges.iter().map(|range| if range.addr().is_ipv4() { "IPv4" } else { "IPv6" }).collect();
        let policy = if families.len() > 1 { "RequireDualStack" } else { "SingleStack" };
        let target = self.endpoints.first().map(SocketAddr::port);
        let mut spec = json!({
            "type": "ClusterIP", "sessionAffinity": "None", "ipFamilyPolicy": policy, "ipFamilies": families,
            "ports": [
                {"name": "dns", "protocol": "UDP", "port": PORT, "targetPort": target},
                {"name": "dns-tcp", "protocol": "TCP", "port": PORT, "targetPort": target},
            ],
        });
        let usual = self.ranges.iter().map(|range| AddressRange::new(*range).ok()?.address_at(NUMBER));
        let usual: Option<Vec<IpAddr>> = usual.collect();
        if let (Some(usual), Some(spec), true) = (usual, spec.as_object_mut(), has_usual_address) {
            spec.insert("clusterIP".to_owned(), json!(usual.first()));
            spec.insert("clusterIPs".to_owned(), json!(usual));
        }
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"k8s-app": NAME}}, "spec": spec,
        })
    }
}

fn has_family(range: &IpNet, address: &SocketAddr) -> bool {
    range.addr().is_ipv4() == address.is_ipv4()
}

fn slice_name(endpoint: &SocketAddr) -> String {
    format!("{NAME}-{}-{}", endpoint.ip(), endpoint.port()).replace([':', '.'], "-")
}

fn slice(endpoint: &SocketAddr) -> Value {
    let port = endpoint.port();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": slice_name(endpoint), "namespace": NAMESPACE,
            "labels": {SERVICE_NAME: NAME, MANAGED_BY: MANAGER}},
        "addressType": if endpoint.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [endpoint.ip()], "conditions": {"ready": true}}],
        "ports": [
            {"name": "dns", "protocol": "UDP", "port": port},
            {"name": "dns-tcp", "protocol": "TCP", "port": port},
        ],
    })
}
