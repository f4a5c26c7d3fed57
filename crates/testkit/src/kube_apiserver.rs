//! Upstream's kube-apiserver with its etcd, which tests and the benchmark run in the namespace of a node.
//!
//! The two binaries go in. A URL, tokens and kubeconfigs come out. It is the API server of a cluster in which no other component
//! runs. It must not know which objects are written, nor how. Requests need a token. Service accounts have the permissions of the
//! RBAC objects that are written.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::{Namespace, PortolanProcess, TestkitError, etcd, kubernetes};

/// The environment variable with the path of the binary.
const VARIABLE: &str = "KUBE_APISERVER";
/// The name of etcd among the programs of the environment variable `PATH`.
const ETCD: &str = "etcd";
/// The port of kube-apiserver on the loopback of the node.
const PORT: u16 = 6443;
/// A user whose requests are never queued (`system:masters`).
const ADMINISTRATOR: Credentials =
    Credentials { token: "administrator", user: "administrator", group: "system:masters" };
/// The user of a node agent. Its requests are queued and refused as those of a cluster's agents (API priority and fairness).
const AGENT: Credentials = Credentials {
    token: "agent",
    user: "system:serviceaccount:kube-system:kube-proxy",
    group: "system:serviceaccounts",
};

struct Credentials {
    token: &'static str,
    user: &'static str,
    group: &'static str,
}

/// The binaries of a Kubernetes control plane.
#[derive(Debug, Clone)]
pub struct ControlPlane {
    /// kube-apiserver.
    pub kube_apiserver: PathBuf,
    /// etcd.
    pub etcd: PathBuf,
}

impl ControlPlane {
    /// Returns the kube-apiserver that the environment variable `KUBE_APISERVER` names, and the etcd on the `PATH`.
    pub fn from_environment() -> Result<Self, TestkitError> {
        let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
        let Some(kube_apiserver) = named.map(PathBuf::from) else {
            return Err(fail(Path::new(""), format!("is not named: {VARIABLE} is not set")));
        };
        Ok(Self { kube_apiserver, etcd: ETCD.into() })
    }

    /// Returns the version of the kube-apiserver, such as `v1.36.2`.
    pub fn version(&self) -> Result<String, TestkitError> {
        let version =
            kubernetes::version(&self.kube_apiserver).map_err(|why| fail(&self.kube_apiserver, why));
        version.map(|(version, _)| version)
    }
}

fn fail(path: &Path, why: String) -> TestkitError {
    TestkitError::KubeApiserver { path: path.to_owned(), why }
}

/// The key with which the API server signs the tokens of service accounts, in PEM.
#[derive(Clone)]
pub struct SigningKey {
    /// The private key.
    pub private: String,
    /// The public key.
    pub public: String,
}

/// A running kube-apiserver. It and its etcd end when dropped.
#[derive(Debug)]
pub struct KubeApiserver {
    binary: PathBuf,
    flags: Vec<String>,
    server: PortolanProcess,
    _etcd: PortolanProcess,
}

impl KubeApiserver {
    /// Starts both on the node's loopback, with their files in a folder. The server may not answer yet. `address` is the node's
    /// own address.
    pub fn start(
        binaries: &ControlPlane,
        key: &SigningKey,
        node: &Namespace,
        address: IpAddr,
        folder: &Path,
    ) -> Result<Self, TestkitError> {
        let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let write = |name: &str, text: &str| {
            let failed = |error| {
                fail(&binaries.kube_apiserver, format!("cannot be started, {name} was not written: {error}"))
            };
            fs::write(folder.join(name), text).map_err(failed)
        };
        let etcd = etcd::start(node, &binaries.etcd, &folder.join("etcd"))?;
        write("key.pem", &key.private)?;
        write("public.pem", &key.public)?;
        let tokens = [ADMINISTRATOR, AGENT]
            .map(|Credentials { token, user, group }| format!("{token},{user},{user},{group}\n"));
        write("tokens.csv", &tokens.concat())?;
        // RBAC allows members of system:masters everything, and this file the agent.
        write("policy.jsonl", &policy(AGENT.user))?;
        let flags = [
            format!("--etcd-servers={}", etcd::URL),
            format!("--secure-port={PORT}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--advertise-address={address}"),
            "--endpoint-reconciler-type=none".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/12,fd00:10:96::/112".to_owned(),
            format!("--cert-dir={}", path("certificates")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-signing-key-file={}", path("key.pem")),
            format!("--service-account-key-file={}", path("public.pem")),
            format!("--token-auth-file={}", path("tokens.csv")),
            "--authorization-mode=RBAC,ABAC".to_owned(),
            format!("--authorization-policy-file={}", path("policy.jsonl")),
        ];
        let (binary, flags) = (binaries.kube_apiserver.clone(), flags.to_vec());
        Ok(Self { server: spawn(node, &binary, &flags)?, binary, flags, _etcd: etcd })
    }

    /// Starts the server again after its end.
    pub fn start_again(&mut self, node: &Namespace) -> Result<(), TestkitError> {
        self.server = spawn(node, &self.binary, &self.flags)?;
        Ok(())
    }

    /// Returns the process of the server.
    pub fn process(&mut self) -> &mut PortolanProcess {
        &mut self.server
    }

    /// Returns the URL of the server.
    pub fn url() -> String {
        format!("https://127.0.0.1:{PORT}")
    }

    /// Returns the port of the server.
    pub const fn port() -> u16 {
        PORT
    }

    /// Returns the kubeconfig of a user who may write everything.
    pub fn administrator() -> String {
        Self::kubeconfig(ADMINISTRATOR.token)
    }

    /// Returns the kubeconfig of a node agent that may do everything.
    pub fn agent() -> String {
        Self::kubeconfig(AGENT.token)
    }

    /// Returns a kubeconfig with a token. It trusts any certificate: the server makes its own, on the node's loopback.
    pub fn kubeconfig(token: &str) -> String {
        kubernetes::kubeconfig_with_token(&Self::url(), token)
    }
}

fn spawn(node: &Namespace, binary: &Path, flags: &[String]) -> Result<PortolanProcess, TestkitError> {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    PortolanProcess::start(node, binary, &flags)
}

/// Returns a policy of attribute-based access control that allows a user everything.
fn policy(user: &str) -> String {
    let spec = format!(
        "{{\"user\": \"{user}\", \"namespace\": \"*\", \"resource\": \"*\", \"apiGroup\": \"*\", \"nonResourcePath\": \"*\"}}"
    );
    format!(
        "{{\"apiVersion\": \"abac.authorization.kubernetes.io/v1beta1\", \"kind\": \"Policy\", \"spec\": {spec}}}\n"
    )
}
