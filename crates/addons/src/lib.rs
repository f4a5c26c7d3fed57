//! Optional parts of the API server's process: the DNS server for names of Services ([`names`]) and active health checks
//! ([`health`]). Crates `dns` and `prober` do the work; this crate connects them with the API.
//!
//! In: settings, the changes of stored Services, EndpointSlices and ServiceCIDRs. Out: DNS answers; conditions of
//! EndpointSlices, Events and a Lease, written through [`Api`] like the writes of any client; metrics.
//!
//! Must not know: HTTP, TLS and clients of the API server, rules, the node agent.
//!
//! Each part has a thread of its own. A large request to the API thus delays no DNS answer and makes no probe late, and
//! many probes delay no request. A part that is off has no thread, no socket and no feed.

pub mod health;
pub mod names;
#[cfg(test)]
mod testing;
mod thread;

use std::net::SocketAddr;
use std::sync::Arc;

use portolan_api::Api;
use portolan_web::metrics::Sources;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use self::health::HealthChecks;
pub use self::names::{Forward, NamesConfig, Readiness};

/// Settings of the parts.
#[derive(Debug, Clone, Default)]
pub struct AddonsConfig {
    /// The DNS server. `None`: it is off.
    pub names: Option<NamesConfig>,
    /// Active health checks. `None`: they are off.
    pub health_checks: Option<HealthChecks>,
}

/// Why a part cannot start.
#[derive(Debug, Error)]
pub enum AddonError {
    /// All addresses of the node. The kernel would select the source address of each UDP answer, which resolvers and
    /// connection tracking then do not recognise.
    #[error("--dns-listen: {0} is every address of this node; write the addresses one by one")]
    Unspecified(SocketAddr),
    /// Listening for DNS requests failed.
    #[error("--dns-listen: cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The file with the servers for other names cannot be read.
    #[error("--dns-forward: cannot read {file}: {source}")]
    Forward {
        /// The file.
        file: String,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The cluster domain is not a domain name.
    #[error("--cluster-domain: {0:?} is not a domain name; write one such as cluster.local")]
    Domain(String),
    /// TLS for the probes of type `https` cannot be configured.
    #[error("--health-checks: TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// A thread cannot be created.
    #[error("cannot start the thread {name}: {source}")]
    Thread {
        /// Its name.
        name: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
}

/// Parts that are ready to start: settings are checked and sockets are bound.
#[derive(Debug)]
pub struct Addons {
    names: Option<names::Prepared>,
    health_checks: Option<HealthChecks>,
}

impl Addons {
    /// Checks the settings and binds the sockets, besides those of addresses that this host does not have yet.
    pub fn prepare(config: &AddonsConfig) -> Result<Self, AddonError> {
        let names = config.names.as_ref().map(names::Prepared::new).transpose()?;
        Ok(Self { names, health_checks: config.health_checks.clone() })
    }

    /// Returns the addresses that are to be endpoints of the Service `kube-system/kube-dns`. Empty if there is no DNS
    /// server, or the Service is not wanted.
    pub fn dns_endpoints(&self) -> Vec<SocketAddr> {
        self.names.as_ref().map(names::Prepared::endpoints).unwrap_or_default()
    }

    /// Returns the addresses at which the DNS server answers, now and later. `None` if there is no DNS server.
    pub fn dns_answering(&self) -> Option<watch::Receiver<Vec<SocketAddr>>> {
        self.names.as_ref().map(names::Prepared::answering)
    }

    /// Starts the parts, which run until the server stops. `loaded` becomes true when the objects of the manifests folder
    /// are stored; no name is said not to exist before. Returns the readiness of the DNS server, if there is one.
    pub fn start(
        self,
        api: &Arc<Api>,
        loaded: watch::Receiver<bool>,
        stopping: &watch::Receiver<bool>,
        tasks: &mut JoinSet<()>,
        metrics: &Sources,
    ) -> Result<Option<Readiness>, AddonError> {
        if let Some(health_checks) = self.health_checks {
            metrics.register(health::start(api, &health_checks, stopping, tasks)?);
        }
        self.names.map(|names| names.start(api, loaded, stopping, tasks, metrics)).transpose()
    }
}
