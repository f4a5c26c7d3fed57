//! The Service `kube-system/kube-dns`, through which pods reach the DNS servers of the processes that share the store.
//! Like `default/kubernetes` it is created before clients are served, and an existing Service is left unchanged.
//!
//! Its endpoints are the addresses at which the servers answer. Each server has one EndpointSlice for each address, and
//! removes it when it stops; [`super::presence`] removes those of servers that crashed. If the Service has EndpointSlices
//! of others, it belongs to another DNS server, and no server adds its own.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use portolan_api::{Api, ApiError};
use portolan_ipam::AddressRange;
use portolan_schema::SERVICE_NAME;
use portolan_schema::json::{Value, json};

use super::object::MANAGED_BY;
use super::presence::{self, MANAGER, Presence, ServerService, ensure};
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

/// The Service, and this server's endpoints.
#[derive(Debug, Clone)]
pub(super) struct DnsService {
    /// Addresses that pods can reach.
    endpoints: Vec<SocketAddr>,
    /// The range of cluster IPs of each family of the endpoints, the primary one first.
    ranges: Vec<IpNet>,
}

/// Maintains the Service: checks it every [`RECHECK_INTERVAL`]. Without a Service, removes the EndpointSlices that
/// earlier servers have left, and ends.
pub(super) async fn keep(api: &Api, service: Option<&DnsService>) {
    let mut presence = Presence::default();
    loop {
        let has_others = match service {
            Some(service) => service.sync(api, &mut presence).await,
            None => presence.sweep(api, SERVICE, &[]).await,
        };
        if service.is_none() && !has_others {
            return;
        }
        tokio::time::sleep(RECHECK_INTERVAL).await;
    }
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
        Some(Self { endpoints, ranges })
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
        let names: Vec<String> = self.endpoints.iter().map(slice_name).collect();
        if let Some(foreign) = foreign {
            if slices.iter().any(|slice| names.iter().any(|name| name == slice.name())) {
                let slice = foreign.name();
                tracing::warn!(slice, "kube-system/kube-dns has endpoints of another DNS server: not added");
                self.leave(api).await;
            }
        } else {
            for (endpoint, name) in self.endpoints.iter().zip(&names) {
                if let Err(error) = presence::renew(api, name).await {
                    tracing::warn!(name, %error, "Lease not renewed");
                }
                presence.log_made(SERVICE, name, ensure(api, slice(endpoint)).await);
            }
        }
        let own: Vec<&str> = names.iter().map(String::as_str).collect();
        presence.sweep(api, SERVICE, &own).await
    }

    /// Removes this server's endpoints.
    pub(super) async fn leave(&self, api: &Api) {
        for endpoint in &self.endpoints {
            presence::leave(api, SERVICE, &slice_name(endpoint)).await;
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
