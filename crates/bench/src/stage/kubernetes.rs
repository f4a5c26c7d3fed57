//! A kube-apiserver with its etcd, as processes in the namespace of a node.
//!
//! The two binaries go in. A URL with a kubeconfig, and a blocking way to write objects, come out. It is the API server of a
//! cluster in which no other component runs. Requests need a token, because kube-apiserver refuses anonymous ones where all
//! are allowed.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use portolan_testkit::{Namespace, PortolanProcess};
use portolan_watch::ClientSettings;
use serde_json::json;
use tempfile::TempDir;

use super::writer::Writer;
use crate::etcd;

/// Maximum time until the server is ready.
const READY_WITHIN: Duration = Duration::from_secs(180);
/// Its port on the loopback of the node. The namespace is the stage's own, so nothing else uses it.
pub(crate) const PORT: u16 = 6443;
/// The token with which objects are written.
const WRITER: &str = "writer";
/// The token of an agent. Its requests are queued and refused as those of a cluster's agents; those of `system:masters` are not
/// (API priority and fairness).
const AGENT: &str = "agent";
const AGENT_USER: &str = "system:serviceaccount:kube-system:kube-proxy";
/// The name of the agents' kubeconfig.
const KUBECONFIG: &str = "kubeconfig.conf";

/// The binaries of a Kubernetes control plane.
#[derive(Debug, Clone)]
pub(crate) struct ControlPlane {
    pub(crate) kube_apiserver: PathBuf,
    pub(crate) etcd: PathBuf,
}

impl ControlPlane {
    /// Returns the version of the kube-apiserver, such as `v1.36.2`.
    pub(crate) fn version(&self) -> anyhow::Result<String> {
        let name = || self.kube_apiserver.display().to_string();
        let output = Command::new(&self.kube_apiserver).arg("--version").output().with_context(name)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.trim().strip_prefix("Kubernetes ");
        Ok(version.with_context(|| format!("{}: does not print its version", name()))?.to_owned())
    }
}

/// A running kube-apiserver. It and its etcd end when dropped.
#[derive(Debug)]
pub(crate) struct Kubernetes {
    url: String,
    kubeconfig: String,
    writer: Writer,
    binary: PathBuf,
    flags: Vec<String>,
    server: PortolanProcess,
    _etcd: PortolanProcess,
    folder: TempDir,
}

impl Kubernetes {
    /// Starts both on the node's loopback and waits until the server is ready. `address` is the node's own address.
    pub(crate) fn start(binaries: &ControlPlane, node: &Namespace, address: IpAddr) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("portolan-bench-")?;
        let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let etcd = etcd::start(node, &binaries.etcd, &folder.path().join("etcd"))?;
        let key = rcgen::KeyPair::generate().context("make the key of service accounts")?;
        fs::write(path("key.pem"), key.serialize_pem())?;
        fs::write(path("public.pem"), key.public_key_pem())?;
        let tokens = [(WRITER, "bench", "system:masters"), (AGENT, AGENT_USER, "system:serviceaccounts")];
        let tokens = tokens.map(|(token, user, group)| format!("{token},{user},{user},{group}\n"));
        fs::write(path("tokens.csv"), tokens.concat())?;
        let flags = [
            format!("--etcd-servers={}", etcd::URL),
            format!("--secure-port={PORT}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--advertise-address={address}"),
            "--endpoint-reconciler-type=none".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/12".to_owned(),
            format!("--cert-dir={}", path("certificates")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-signing-key-file={}", path("key.pem")),
            format!("--service-account-key-file={}", path("public.pem")),
            format!("--token-auth-file={}", path("tokens.csv")),
            "--authorization-mode=AlwaysAllow".to_owned(),
        ];
        let flags = flags.to_vec();
        let mut server = spawn(node, &binaries.kube_apiserver, &flags)?;
        let url = format!("https://127.0.0.1:{PORT}");
        let kubeconfig = kubeconfig_of(&url, AGENT);
        fs::write(path(KUBECONFIG), &kubeconfig)?;
        fs::write(path("writer.conf"), kubeconfig_of(&url, WRITER))?;
        let settings = ClientSettings {
            kubeconfig: Some(folder.path().join("writer.conf")),
            qps: -1.0,
            content_type: "application/json".to_owned(),
            ..ClientSettings::default()
        };
        let writer = Writer::new(node, settings)?;
        wait_for(&mut server, &writer)?;
        let binary = binaries.kube_apiserver.clone();
        Ok(Self { url, kubeconfig, writer, binary, flags, server, _etcd: etcd, folder })
    }

    /// Returns what writes to it.
    pub(crate) fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Returns the process of the server.
    pub(crate) fn process(&mut self) -> &mut PortolanProcess {
        &mut self.server
    }

    /// Starts the server again after its end, and waits until it is ready.
    pub(crate) fn start_again(&mut self, node: &Namespace) -> anyhow::Result<()> {
        self.server = spawn(node, &self.binary, &self.flags)?;
        wait_for(&mut self.server, &self.writer)
    }

    /// Returns the path of an agent's kubeconfig file.
    pub(crate) fn kubeconfig_path(&self) -> PathBuf {
        self.folder.path().join(KUBECONFIG)
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Returns an agent's kubeconfig.
    pub(super) fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }
}

fn spawn(node: &Namespace, binary: &Path, flags: &[String]) -> anyhow::Result<PortolanProcess> {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    PortolanProcess::start(node, binary, &flags).context("start kube-apiserver")
}

fn wait_for(server: &mut PortolanProcess, writer: &Writer) -> anyhow::Result<()> {
    let is_ready = || writer.get("/readyz").is_ok();
    Ok(server.wait_until(READY_WITHIN, "a kube-apiserver that is ready", is_ready)?)
}

/// Returns a kubeconfig that trusts any certificate: the server makes its own, on the node's loopback.
fn kubeconfig_of(url: &str, token: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": url, "insecure-skip-tls-verify": true}}],
        "users": [{"name": "here", "user": {"token": token}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
    })
    .to_string()
}
