//! Health-check node ports: one small server for each Service that has one, telling load balancers how many
//! endpoints this node has.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::{Health, Now};
use crate::address::{Family, NodePortMatch};
use crate::http::{self, Answer, Handler, Wildcard};

const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// A Service by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// Where health-check node ports of one family listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddresses {
    /// Every address of this family and of no other.
    All(Family),
    /// These addresses; none is no error.
    These(Vec<IpAddr>),
}

impl ListenAddresses {
    /// From the node port addresses and the addresses that the node has now.
    pub fn choose(node_ports: &NodePortMatch, family: Family, here: &[IpAddr]) -> Self {
        match node_ports {
            NodePortMatch::MatchAll => Self::All(family),
            NodePortMatch::Cidrs(_) => {
                Self::These(node_ports.matching(family, here.iter().copied()).into_iter().collect())
            }
        }
    }

    fn addresses(&self) -> &[IpAddr] {
        const V4: &[IpAddr] = &[IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
        const V6: &[IpAddr] = &[IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        match self {
            Self::All(Family::Ipv4) => V4,
            Self::All(Family::Ipv6) => V6,
            Self::These(addresses) => addresses,
        }
    }
}

/// A Service whose health-check node port could not be opened. The next sync tries again.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for the health checks of {}/{}: {source}; free the port", .service.namespace, .service.name)]
pub struct ListenFailure {
    /// The Service.
    pub service: ServiceKey,
    /// Where it should listen.
    pub address: SocketAddr,
    /// What the system said.
    pub source: io::Error,
}

/// The servers of one family's health-check node ports.
pub struct ServiceHealth {
    runtime: Handle,
    addresses: ListenAddresses,
    health: Arc<Health>,
    servers: BTreeMap<ServiceKey, ServiceServer>,
}

impl ServiceHealth {
    /// No server yet. They will run on `runtime`; [`ServiceHealth::sync`] may be called from any thread.
    pub fn new(runtime: Handle, addresses: ListenAddresses, health: Arc<Health>) -> Self {
        Self { runtime, addresses, health, servers: BTreeMap::new() }
    }

    /// Listens on these addresses from now on. What listens on one of them already goes on undisturbed; what
    /// has to be opened is opened by the next [`ServiceHealth::sync`].
    pub fn listen_on(&mut self, addresses: ListenAddresses) {
        self.addresses = addresses;
        let wanted = self.addresses.addresses();
        for server in self.servers.values_mut() {
            server.listeners.retain(|listener| wanted.contains(&listener.address));
        }
    }

    /// Makes the open servers those of `services` (Service to port), then sets the count of local endpoints
    /// of each to that in `counts`, 0 where it has none.
    ///
    /// A Service listens on all addresses or on none. What could not be opened is logged and returned.
    pub fn sync(
        &mut self,
        services: &BTreeMap<ServiceKey, u16>,
        counts: &BTreeMap<ServiceKey, usize>,
    ) -> Vec<ListenFailure> {
        // Close first: a port may have moved from one Service to another.
        self.servers.retain(|service, server| services.get(service) == Some(&server.port));
        let mut failures = Vec::new();
        for (service, port) in services {
            let count = counts.get(service).copied().unwrap_or(0);
            let known = self.servers.remove(service);
            let server = known.unwrap_or_else(|| ServiceServer { port: *port, ..ServiceServer::default() });
            server.count.store(count, Ordering::Relaxed);
            match self.complete(service, server) {
                Ok(server) => drop(self.servers.insert(service.clone(), server)),
                Err(failure) => {
                    tracing::error!(error = %failure, "no health-check node port");
                    failures.push(failure);
                }
            }
        }
        failures
    }

    /// Opens the listeners that a server lacks.
    fn complete(
        &self,
        service: &ServiceKey,
        mut server: ServiceServer,
    ) -> Result<ServiceServer, ListenFailure> {
        for &address in self.addresses.addresses() {
            if server.listeners.iter().any(|listener| listener.address == address) {
                continue;
            }
            let handler = handler(service.clone(), Arc::clone(&server.count), Arc::clone(&self.health));
            let socket = SocketAddr::new(address, server.port);
            let failure = |source| ListenFailure { service: service.clone(), address: socket, source };
            server.listeners.push(self.listen(socket, handler).map_err(failure)?);
        }
        Ok(server)
    }

    fn listen(&self, address: SocketAddr, handler: Handler) -> io::Result<Listener> {
        let _runtime = self.runtime.enter();
        let socket = Arc::new(TcpListener::from_std(http::listen(address, Wildcard::OneFamily)?)?);
        let served = Arc::clone(&socket);
        let task = self.runtime.spawn(async move {
            let error = http::serve(&served, &handler).await;
            tracing::debug!(%address, %error, "a health-check node port closed");
        });
        Ok(Listener { address: address.ip(), socket, task: task.abort_handle() })
    }
}

#[derive(Default)]
struct ServiceServer {
    port: u16,
    count: Arc<AtomicUsize>,
    listeners: Vec<Listener>,
}

struct Listener {
    address: IpAddr,
    socket: Arc<TcpListener>,
    task: AbortHandle,
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The task goes when its runtime gets to it; the port must be free at once.
        if let Err(error) = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both) {
            tracing::debug!(%error, "a health-check node port was already closed");
        }
        self.task.abort();
    }
}

/// Any path and any method: 200 if there is a local endpoint and the proxy is healthy.
fn handler(service: ServiceKey, count: Arc<AtomicUsize>, health: Arc<Health>) -> Handler {
    Arc::new(move |_| service_answer(&service, count.load(Ordering::Relaxed), health.is_healthy(Now::read())))
}

fn service_answer(service: &ServiceKey, count: usize, proxy_healthy: bool) -> Answer {
    let good = count > 0 && proxy_healthy;
    let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // Names of Kubernetes objects hold nothing that JSON would escape, but nothing here has checked that.
    let (namespace, name) = (json_text(&service.namespace), json_text(&service.name));
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace},\n\t\t\"name\": {name}\n\t}},\n\
         \t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {proxy_healthy}\n}}"
    );
    let mut answer = http::answer(status, http::JSON, body);
    answer.headers_mut().insert(WEIGHT, HeaderValue::from(count));
    answer
}

fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
