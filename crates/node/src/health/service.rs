//! Health-check node ports: a small HTTP server for each Service that has one. It returns to load balancers how many
//! endpoints this node has.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};
use portolan_web::{self as web, Answer, Handler, Wildcard};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::{Health, Now};
use crate::address::{Family, NodePortMatch};

/// How long a listener waits after the kernel refused to accept a connection.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The namespace and name of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// The addresses on which health-check node ports of one family listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddresses {
    /// Every address of this family only.
    All(Family),
    /// These addresses. An empty list is no error.
    These(Vec<IpAddr>),
}

impl ListenAddresses {
    /// Chooses the addresses from the node port setting and the node's present addresses. IPv6 link-local addresses are
    /// left out: without a zone no socket can listen on them, and one failed address would close the Service's other
    /// listeners.
    pub fn choose(node_ports: &NodePortMatch, family: Family, here: &[IpAddr]) -> Self {
        match node_ports {
            NodePortMatch::MatchAll => Self::All(family),
            NodePortMatch::Cidrs(_) => {
                let matching = node_ports.matching(family, here.iter().copied()).into_iter();
                Self::These(matching.filter(|ip| !is_link_local(ip)).collect())
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

/// A Service whose health-check node port could not be opened. The next sync retries it.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for the health checks of {}/{}: {source}; free the port", .service.namespace, .service.name)]
pub struct ListenFailure {
    /// The Service.
    pub service: ServiceKey,
    /// The address and port.
    pub address: SocketAddr,
    /// The error of the system.
    pub source: io::Error,
}

impl ListenFailure {
    /// Returns the note of the Warning Event for the Service, in kube-proxy's words.
    pub fn event_note(&self, node: &str) -> String {
        let Self { service, address, source } = self;
        let (service, port) = (format!("{}/{}", service.namespace, service.name), address.port());
        format!(
            "node {node} failed to start healthcheck {service:?} on port {port}: listen on {address}: {source}"
        )
    }
}

/// The servers of one family's health-check node ports.
pub struct ServiceHealth {
    runtime: Handle,
    addresses: ListenAddresses,
    health: Arc<Health>,
    servers: BTreeMap<ServiceKey, ServiceServer>,
}

impl ServiceHealth {
    /// Creates an empty set of servers, which will run on `runtime`. [`ServiceHealth::sync`] may be called from any
    /// thread.
    pub fn new(runtime: Handle, addresses: ListenAddresses, health: Arc<Health>) -> Self {
        Self { runtime, addresses, health, servers: BTreeMap::new() }
    }

    /// Sets the addresses to listen on. Listeners on addresses that stay are not disturbed. Missing ones are opened by
    /// the next [`ServiceHealth::sync`].
    pub fn listen_on(&mut self, addresses: ListenAddresses) {
        self.addresses = addresses;
        let wanted = self.addresses.addresses();
        for server in self.servers.values_mut() {
            server.listeners.retain(|listener| wanted.contains(&listener.address));
        }
    }

    /// Opens and closes servers to match `services` (Service to port). Then sets the count of local endpoints of each to
    /// that in `counts`, or to 0 if it has none.
    ///
    /// A new server listens on all addresses or on none. An open server keeps its listeners even if another address
    /// cannot be opened yet (an IPv6 address is tentative at first, RFC 4862). Failures are logged and returned.
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
            let keep = known.is_some();
            let new = || ServiceServer { port: *port, ..ServiceServer::default() };
            let mut server = known.unwrap_or_else(new);
            server.count.store(count, Ordering::Relaxed);
            let outcome = self.complete(service, &mut server);
            if outcome.is_ok() || keep {
                self.servers.insert(service.clone(), server);
            }
            if let Err(failure) = outcome {
                tracing::error!(error = %failure, "no health-check node port");
                failures.push(failure);
            }
        }
        failures
    }

    /// Opens a server's missing listeners.
    fn complete(&self, service: &ServiceKey, server: &mut ServiceServer) -> Result<(), ListenFailure> {
        for &address in self.addresses.addresses() {
            if server.listeners.iter().any(|listener| listener.address == address) {
                continue;
            }
            let handler = handler(service.clone(), Arc::clone(&server.count), Arc::clone(&self.health));
            let socket = SocketAddr::new(address, server.port);
            let failure = |source| ListenFailure { service: service.clone(), address: socket, source };
            server.listeners.push(self.listen(socket, handler).map_err(failure)?);
        }
        Ok(())
    }

    fn listen(&self, address: SocketAddr, handler: Handler) -> io::Result<Listener> {
        let _runtime = self.runtime.enter();
        let socket = Arc::new(TcpListener::from_std(web::listen(address, Wildcard::OneFamily)?)?);
        let served = Arc::clone(&socket);
        let task = self.runtime.spawn(async move {
            loop {
                let error = web::serve(web::Listener::Tcp(&served), &handler).await;
                tracing::warn!(%address, %error, "a health-check node port accepts no connections; trying again");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
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
        // The runtime drops the task later, but the port must be free at once.
        if let Err(error) = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both) {
            tracing::debug!(%error, "a health-check node port was already closed");
        }
        self.task.abort();
    }
}

fn is_link_local(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Creates the handler for any path and method: 200 if the Service has a local endpoint and the proxy is healthy, else
/// 503.
fn handler(service: ServiceKey, count: Arc<AtomicUsize>, health: Arc<Health>) -> Handler {
    Arc::new(move |_| {
        service_answer(&service, count.load(Ordering::Relaxed), health.is_healthy(Now::read())).into()
    })
}

fn service_answer(service: &ServiceKey, count: usize, proxy_healthy: bool) -> Answer {
    let good = count > 0 && proxy_healthy;
    let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // Names of Kubernetes objects need no JSON escapes, but this function does not rely on that.
    let (namespace, name) = (json_text(&service.namespace), json_text(&service.name));
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace},\n\t\t\"name\": {name}\n\t}},\n\
         \t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {proxy_healthy}\n}}"
    );
    let mut answer = web::answer(status, web::JSON, body);
    answer.headers_mut().insert(WEIGHT, HeaderValue::from(count));
    answer
}

fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
