//! Probes: connections from this node to an address and port of an endpoint, never to a Service. The kernel chooses the
//! node's source address by its routes.
//!
//! A probe has its own connection and is over after the check's timeout. Errors of this node, such as too many open
//! files, are not the endpoint's and decide nothing.

mod get;
mod redirect;
mod socket;
#[cfg(test)]
mod tests;
mod tls;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustix::io::Errno;

use crate::annotations::{HealthCheck, Probe};

/// `User-Agent` of requests.
pub const USER_AGENT: &str = concat!("portolan-probe/", env!("CARGO_PKG_VERSION"));

/// The result of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The endpoint passed.
    Passed,
    /// The endpoint failed.
    Failed(Failure),
    /// This node could not probe.
    Unable(String),
}

/// Why an endpoint failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// There was no complete answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// The port is closed.
    #[error("connection refused")]
    Refused,
    /// No route leads to the endpoint, or a router reported that it is unreachable.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// TLS failed.
    #[error("TLS: {0}")]
    Tls(String),
    /// The status does not pass.
    #[error("HTTP status {0}")]
    Status(u16),
    /// The answer is no HTTP, too long, or incomplete.
    #[error("no valid answer: {0}")]
    Answer(String),
}

/// Names of the failures in metrics, in the order of [`Failure::index`].
pub const REASONS: [&str; 6] = ["timeout", "refused", "unreachable", "tls", "status", "answer"];

impl Failure {
    /// Returns the failure's place in [`REASONS`].
    pub fn index(&self) -> usize {
        match self {
            Self::TimedOut => 0,
            Self::Refused => 1,
            Self::Unreachable(_) => 2,
            Self::Tls(_) => 3,
            Self::Status(_) => 4,
            Self::Answer(_) => 5,
        }
    }
}

/// What probes endpoints.
pub trait Probes: Send + Sync + 'static {
    /// Returns the probe of an endpoint.
    fn probe(
        &self,
        address: SocketAddr,
        check: &Arc<HealthCheck>,
    ) -> impl Future<Output = Outcome> + Send + 'static;
}

/// Probes over TCP, HTTP and TLS.
#[derive(Debug, Clone)]
pub struct Client {
    tls: Arc<rustls::ClientConfig>,
}

impl Client {
    /// Creates a client that verifies no certificates, as the kubelet's probes: an endpoint is reached at its address,
    /// which its certificate seldom names.
    pub fn new() -> Result<Self, rustls::Error> {
        Ok(Self { tls: Arc::new(tls::unverified()?) })
    }

    /// Creates a client with another configuration of TLS, which may verify certificates.
    pub fn with_tls(tls: Arc<rustls::ClientConfig>) -> Self {
        Self { tls }
    }
}

impl Probes for Client {
    fn probe(
        &self,
        address: SocketAddr,
        check: &Arc<HealthCheck>,
    ) -> impl Future<Output = Outcome> + Send + 'static {
        let (check, tls) = (Arc::clone(check), Arc::clone(&self.tls));
        async move {
            let probe = async {
                match &check.probe {
                    Probe::Tcp => socket::open(address).await.map(socket::close),
                    // The state of a request is large. A `tcp` probe need not have room for it.
                    Probe::Http(request) => Box::pin(get::get(address, request, &tls)).await,
                }
            };
            match tokio::time::timeout(check.timing.timeout, probe).await {
                Ok(Ok(())) => Outcome::Passed,
                Ok(Err(outcome)) => outcome,
                Err(_) => Outcome::Failed(Failure::TimedOut),
            }
        }
    }
}

/// Returns the outcome of a connection that could not be made.
fn of_connect(error: &io::Error) -> Outcome {
    match Errno::from_io_error(error) {
        Some(
            Errno::MFILE
            | Errno::NFILE
            | Errno::NOMEM
            | Errno::NOBUFS
            | Errno::ADDRNOTAVAIL
            | Errno::ADDRINUSE
            | Errno::ACCESS
            | Errno::PERM
            | Errno::AFNOSUPPORT,
        ) => Outcome::Unable(error.to_string()),
        Some(Errno::CONNREFUSED | Errno::CONNRESET) => Outcome::Failed(Failure::Refused),
        Some(Errno::TIMEDOUT) => Outcome::Failed(Failure::TimedOut),
        _ => Outcome::Failed(Failure::Unreachable(error.to_string())),
    }
}
