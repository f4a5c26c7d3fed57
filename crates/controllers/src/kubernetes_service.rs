//! The Service `default/kubernetes`: the API server at the first address of the primary range. It is created before
//! clients are served, so that no client's Service can get the address. An existing Service is left unchanged, as
//! upstream does.
//!
//! Its endpoint is this server, if the server listens at an address that other hosts can reach. Each server on the
//! same store has its own EndpointSlice and removes it when it stops. [`super::presence`] removes those of servers that
//! crashed. [`endpoints`] writes the Endpoints of the Service from these slices.

mod endpoints;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};

use portolan_api::{Api, ApiError, ServiceRanges};
use portolan_schema::{SERVICE_NAME, json::json};

use super::object::MANAGED_BY;
use super::presence::{Holder, MANAGER, Presence, ServerService, ensure};
use super::{ControllersConfig, RECHECK_INTERVAL};

const NAME: &str = "kubernetes";
const PORT: u16 = 443;
const SERVICE: ServerService = ServerService { namespace: "default", name: NAME };

/// The Service, and this server's endpoint if it has one.
#[derive(Debug, Clone)]
pub(crate) struct KubernetesService {
    cluster_ip: IpAddr,
    port: u16,
    endpoint: Option<IpAddr>,
    holder: Holder,
}

/// Maintains the Service: checks it every [`RECHECK_INTERVAL`].
pub(super) async fn keep(api: &Api, service: Option<&KubernetesService>) {
    let Some(service) = service else { return std::future::pending().await };
    let mut presence = Presence::default();
    loop {
        service.sync(api, &mut presence).await;
        tokio::time::sleep(RECHECK_INTERVAL).await;
    }
}

impl KubernetesService {
    /// Returns the Service of a server at this address; `None` if the configuration does not ask for it.
    pub(crate) fn new(
        config: &ControllersConfig,
        ranges: &ServiceRanges,
        address: SocketAddr,
    ) -> Option<Self> {
        let advertised = config.advertise_address.or(Some(address.ip()));
        let range = portolan_ipam::AddressRange::new(ranges.primary()).ok()?;
        let service = Self {
            cluster_ip: range.first()?,
            port: address.port(),
            endpoint: advertised.filter(|it| !it.is_loopback() && !it.is_unspecified()),
            holder: Holder::new(NAME),
        };
        config.kubernetes_service.then_some(service)
    }

    /// Creates the Service before clients are served. Returns an error only if the store cannot write. If the Service
    /// is refused because its address is taken, the server runs without it.
    pub(crate) async fn begin(&self, api: &Api) -> Result<(), ApiError> {
        match ensure(api, self.service()).await {
            Err(error @ (ApiError::Unavailable(_) | ApiError::Unconfirmed(_))) => Err(error),
            other => {
                Presence::default().log_made(SERVICE, "Service", other);
                Ok(())
            }
        }
    }

    /// Creates missing objects, and removes those of servers that are gone.
    async fn sync(&self, api: &Api, presence: &mut Presence) {
        presence.log_made(SERVICE, "Service", ensure(api, self.service()).await);
        let name = self.endpoint.map(|endpoint| self.slice_name(endpoint));
        if let (Some(endpoint), Some(name)) = (self.endpoint, &name) {
            if let Err(error) = self.holder.renew(api, name).await {
                tracing::warn!(name, %error, "Lease not renewed");
            }
            presence.log_made(SERVICE, name, ensure(api, self.slice(endpoint)).await);
        }
        let own: Vec<&str> = name.as_deref().into_iter().collect();
        presence.sweep(api, SERVICE, &own).await;
        endpoints::sync(api).await;
    }

    /// Removes this server's endpoint.
    pub(crate) async fn leave(&self, api: &Api) {
        if let Some(endpoint) = self.endpoint {
            self.holder.leave(api, SERVICE, &self.slice_name(endpoint)).await;
            endpoints::sync(api).await;
        }
    }

    fn slice_name(&self, endpoint: IpAddr) -> String {
        format!("{NAME}-{endpoint}-{}", self.port).replace([':', '.'], "-")
    }

    fn service(&self) -> portolan_schema::json::Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": NAME, "namespace": "default",
                "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {
                "type": "ClusterIP", "clusterIP": self.cluster_ip, "sessionAffinity": "None",
                "ipFamilyPolicy": "SingleStack",
                "ports": [{"name": "https", "protocol": "TCP", "port": PORT, "targetPort": self.port}],
            },
        })
    }

    fn slice(&self, endpoint: IpAddr) -> portolan_schema::json::Value {
        let name = self.slice_name(endpoint);
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": "default", "labels": {SERVICE_NAME: NAME, MANAGED_BY: MANAGER}},
            "addressType": if endpoint.is_ipv4() { "IPv4" } else { "IPv6" },
            "endpoints": [{"addresses": [endpoint], "conditions": {"ready": true}}],
            "ports": [{"name": "https", "protocol": "TCP", "port": self.port}],
        })
    }
}
