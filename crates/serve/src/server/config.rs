//! The settings of a server. Plain fields, which the command line fills in.

use std::{net::SocketAddr, path::PathBuf};

use portolan_addons::AddonsConfig;
use portolan_api::ApiConfig;
use portolan_controllers::{ControllersConfig, manifests::Given};
use portolan_web::metrics::Sources;
use tokio::sync::watch;

use super::{Checks, Limits, ReleaseMemory};
use crate::security::TlsSettings;

/// Settings of one server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Settings of its API.
    pub api: ApiConfig,
    /// Settings of its controllers.
    pub controllers: ControllersConfig,
    /// The optional parts: names of Services and health checks. All are off by default.
    pub addons: AddonsConfig,
    /// Address that [`Server::start`](crate::Server::start) listens on. With port 0 the kernel selects the port.
    pub listen: SocketAddr,
    /// How clients connect, and whether they must authenticate.
    pub transport: Transport,
    /// Allows plain HTTP on an address that other hosts can reach. Meant for networks that do not leave this host,
    /// such as those of tests; the command line does not offer it.
    pub insecure_allow_non_loopback: bool,
    /// Folder of manifests whose objects are applied and pruned (`--manifests`).
    pub manifests: Option<PathBuf>,
    /// Objects that the program gives, besides those of the folder.
    pub given: Option<Given>,
    /// Becomes true when the objects of both are in the store, as far as they are accepted.
    pub applied: Option<watch::Sender<bool>>,
    /// Limits on the requests of clients.
    pub limits: Limits,
    /// Returns free memory to the operating system. `None` if the allocator cannot do that.
    pub release_memory: Option<ReleaseMemory>,
    /// The checks of `/readyz`. Other crates add theirs.
    pub checks: Checks,
    /// The metrics of `/metrics` besides the server's own. Other crates add theirs.
    pub metrics: Sources,
}

/// How clients connect.
#[derive(Debug, Clone, Default)]
pub enum Transport {
    /// Plain HTTP. Every client that can connect may do everything.
    #[default]
    PlainHttp,
    /// TLS, with client certificates or tokens.
    Tls(Box<TlsSettings>),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            api: ApiConfig::default(),
            controllers: ControllersConfig::default(),
            addons: AddonsConfig::default(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            transport: Transport::default(),
            insecure_allow_non_loopback: false,
            manifests: None,
            given: None,
            applied: None,
            limits: Limits::default(),
            release_memory: None,
            checks: Checks::default(),
            metrics: Sources::default(),
        }
    }
}
