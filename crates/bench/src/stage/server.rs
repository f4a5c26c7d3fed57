//! The API server of a stage: Portolan's, in this process, or a kube-apiserver.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use portolan_serve::{Api, Config, ControllersConfig, RunningServer, Server};
use portolan_testkit::{ControlPlane, KubeApiserver, Namespace, kubeconfig};
use serde_json::Value;

use super::kubernetes::Kubernetes;
use crate::workload::{self, Size};

/// Bytes of former versions that Portolan's API server keeps: all of a run, so that no watch of a stopped proxy expires.
const HISTORY: usize = 1 << 30;

/// A running API server on the loopback of a node.
#[derive(Debug)]
pub(super) enum ApiServer {
    Portolan(RunningServer),
    Kubernetes(Box<Kubernetes>),
}

impl ApiServer {
    /// Starts an API server with the objects of a size: a kube-apiserver if its binaries are given.
    pub(super) fn start(
        control_plane: Option<&ControlPlane>,
        node: &Namespace,
        address: IpAddr,
        size: Size,
    ) -> anyhow::Result<Self> {
        if let Some(binaries) = control_plane {
            let server = Kubernetes::start(binaries, node, address)?;
            server.writer().load(size.services().chain(size.slices()).collect(), &workload::namespaces())?;
            return Ok(Self::Kubernetes(Box::new(server)));
        }
        let listener = node.run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))??;
        let mut config = Config {
            controllers: ControllersConfig { housekeeping: false, ..ControllersConfig::default() },
            ..Config::default()
        };
        config.api.history.max_superseded_bytes = HISTORY;
        let api = Arc::new(Api::new(&config.api));
        load(&api, size)?;
        Ok(Self::Portolan(Server::start_with(api, config, listener)?))
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Portolan(server) => server.url(),
            Self::Kubernetes(_) => KubeApiserver::url(),
        }
    }

    pub(super) fn kubeconfig(&self) -> String {
        match self {
            Self::Portolan(server) => kubeconfig(&server.url()),
            Self::Kubernetes(_) => KubeApiserver::agent(),
        }
    }

    pub(super) fn apply(&self, object: Value) -> anyhow::Result<()> {
        match self {
            Self::Portolan(server) => {
                server.api().blocking().apply(object).map(drop).context("write an object")
            }
            Self::Kubernetes(server) => server.writer().apply(object),
        }
    }
}

fn load(api: &Api, size: Size) -> anyhow::Result<()> {
    for object in size.services().chain(size.slices()) {
        let outcome = api.blocking().apply(object).context("write an object")?;
        ensure!(outcome.warnings.is_empty(), "the API server found fault: {:?}", outcome.warnings);
    }
    Ok(())
}
