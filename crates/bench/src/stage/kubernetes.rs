//! A kube-apiserver in the namespace of a node, and a blocking way to write objects to it.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use portolan_testkit::{ControlPlane, KubeApiserver, Namespace, PortolanProcess, SigningKey};
use portolan_watch::ClientSettings;
use tempfile::TempDir;

use super::writer::Writer;

/// Maximum time until the server is ready.
const READY_WITHIN: Duration = Duration::from_secs(180);
/// The name of the agents' kubeconfig.
const KUBECONFIG: &str = "kubeconfig.conf";

/// A running kube-apiserver. It and its etcd end when dropped.
#[derive(Debug)]
pub(crate) struct Kubernetes {
    writer: Writer,
    server: KubeApiserver,
    folder: TempDir,
}

impl Kubernetes {
    /// Starts both on the node's loopback and waits until the server is ready. `address` is the node's own address.
    pub(crate) fn start(binaries: &ControlPlane, node: &Namespace, address: IpAddr) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("portolan-bench-")?;
        let key = rcgen::KeyPair::generate().context("make the key of service accounts")?;
        let key = SigningKey { private: key.serialize_pem(), public: key.public_key_pem() };
        let mut server = KubeApiserver::start(binaries, &key, node, address, folder.path())?;
        fs::write(folder.path().join(KUBECONFIG), KubeApiserver::agent())?;
        fs::write(folder.path().join("writer.conf"), KubeApiserver::administrator())?;
        let settings = ClientSettings {
            kubeconfig: Some(folder.path().join("writer.conf")),
            qps: -1.0,
            content_type: "application/json".to_owned(),
            ..ClientSettings::default()
        };
        let writer = Writer::new(node, settings)?;
        wait_for(server.process(), &writer)?;
        Ok(Self { writer, server, folder })
    }

    /// Returns what writes to it.
    pub(crate) fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Returns the process of the server.
    pub(crate) fn process(&mut self) -> &mut PortolanProcess {
        self.server.process()
    }

    /// Starts the server again after its end, and waits until it is ready.
    pub(crate) fn start_again(&mut self, node: &Namespace) -> anyhow::Result<()> {
        self.server.start_again(node)?;
        wait_for(self.server.process(), &self.writer)
    }

    /// Returns the path of an agent's kubeconfig file.
    pub(crate) fn kubeconfig_path(&self) -> PathBuf {
        self.folder.path().join(KUBECONFIG)
    }
}

fn wait_for(server: &mut PortolanProcess, writer: &Writer) -> anyhow::Result<()> {
    let is_ready = || writer.get("/readyz").is_ok();
    Ok(server.wait_until(READY_WITHIN, "a kube-apiserver that is ready", is_ready)?)
}
