//! Finds the API server and the credentials: from `--master`, the kubeconfig or the pod's service account.
//!
//! The rules are client-go's (`tools/clientcmd`, `rest.InClusterConfig`). The result is always a kubeconfig with
//! one current context, so that later steps handle only this form.

#[cfg(test)]
mod tests;

use std::path::Path;

use http::Uri;
use kube::config::{
    AuthInfo, Cluster, Config, Context, Kubeconfig, KubeconfigError, NamedAuthInfo, NamedCluster,
    NamedContext,
};

use super::{ClientError, ClientSettings, LocalServer};

/// Directory in which a pod's credentials are mounted (`rest.InClusterConfig`).
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Name of the cluster, user and context that are created here.
const OWN: &str = "portolan";

/// The environment of the process, which tests replace.
pub(super) struct Surroundings<'a> {
    /// Environment variables.
    pub(super) variable: &'a dyn Fn(&str) -> Option<String>,
    /// Directory of the service account's token and certificate authority.
    pub(super) service_account: &'a Path,
}

impl Surroundings<'_> {
    /// Calls `with` with the environment of this process.
    pub(super) fn of_process<T>(with: impl FnOnce(&Surroundings<'_>) -> T) -> T {
        with(&Surroundings {
            variable: &|name| std::env::var(name).ok(),
            service_account: Path::new(SERVICE_ACCOUNT),
        })
    }
}

/// An API server and the credentials for it.
#[derive(Debug)]
pub(super) struct Target {
    /// A kubeconfig with one current context, absolute paths and a full server URL.
    pub(super) kubeconfig: Kubeconfig,
    pub(super) url: Uri,
    pub(super) user: AuthInfo,
    /// The cluster's `proxy-url`.
    pub(super) proxy: Option<String>,
    /// True if an unreadable certificate authority is only logged: in a pod, as in kube-proxy.
    pub(super) lenient: bool,
}

/// Finds the API server by the given settings.
pub(super) fn find(settings: &ClientSettings, around: &Surroundings<'_>) -> Result<Target, ClientError> {
    if let Some(local) = &settings.local {
        return from_local(local);
    }
    match (&settings.kubeconfig, settings.master.as_deref().filter(|master| !master.is_empty())) {
        (Some(path), master) => from_files(path, settings, master, around),
        (None, Some(master)) => from_master(master),
        (None, None) => in_cluster(around),
    }
}

fn from_local(local: &LocalServer) -> Result<Target, ClientError> {
    let fault = |source| unusable(Path::new("of this process"), source);
    let kubeconfig = Kubeconfig::from_yaml(local.kubeconfig()).map_err(fault)?;
    complete(kubeconfig, None, false).map_err(|error| match error {
        Fault::Kube(source) => fault(source),
        Fault::Client(error) => error,
    })
}

fn from_files(
    path: &Path,
    settings: &ClientSettings,
    master: Option<&str>,
    around: &Surroundings<'_>,
) -> Result<Target, ClientError> {
    let fault = |source| unusable(path, source);
    let mut kubeconfig = Kubeconfig::read_from(path).map_err(fault)?;
    for more in &settings.more_kubeconfigs {
        let next = Kubeconfig::read_from(more).map_err(|source| unusable(more, source))?;
        kubeconfig = kubeconfig.merge(next).map_err(|source| unusable(more, source))?;
    }
    if let Some(context) = &settings.context {
        kubeconfig.current_context = Some(context.clone());
    }
    if kubeconfig.current_context.as_ref().is_none_or(String::is_empty) {
        // client-go treats such a file as empty.
        return match master {
            Some(master) => from_master(master),
            None if possibly_in_cluster(around) => {
                tracing::info!(path = %path.display(), "the kubeconfig has no current context: using the pod's service account");
                in_cluster(around)
            }
            None => Err(ClientError::NoContext { path: path.to_owned() }),
        };
    }
    complete(kubeconfig, master, false).map_err(|error| match error {
        Fault::Kube(source) => fault(source),
        Fault::Client(error) => error,
    })
}

fn unusable(path: &Path, source: KubeconfigError) -> ClientError {
    let path = path.to_owned();
    match source {
        KubeconfigError::Parse(error) => {
            let (line, column) = error.location().map_or((0, 0), |place| (place.line(), place.column()));
            ClientError::KubeconfigForm { path, line, column }
        }
        source => ClientError::Kubeconfig { path, source: Box::new(source) },
    }
}

fn from_master(master: &str) -> Result<Target, ClientError> {
    let cluster = Cluster { server: Some(master.to_owned()), ..Cluster::default() };
    made(cluster, AuthInfo::default(), false)
}

fn possibly_in_cluster(around: &Surroundings<'_>) -> bool {
    service(around).is_some() && around.service_account.join("token").is_file()
}

/// Returns host and port of the API server's Service.
fn service(around: &Surroundings<'_>) -> Option<(String, String)> {
    let variable = |name| (around.variable)(name).filter(|value| !value.is_empty());
    Some((variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?))
}

fn in_cluster(around: &Surroundings<'_>) -> Result<Target, ClientError> {
    let (host, port) = service(around).ok_or(ClientError::NotInCluster)?;
    let token = around.service_account.join("token");
    if let Err(source) = std::fs::metadata(&token) {
        return Err(ClientError::ServiceAccount { path: token, source });
    }
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let authority = around.service_account.join("ca.crt");
    let cluster = Cluster {
        server: Some(format!("https://{host}:{port}")),
        certificate_authority: Some(text(&authority)),
        ..Cluster::default()
    };
    let user = AuthInfo { token_file: Some(text(&token)), ..AuthInfo::default() };
    made(cluster, user, true)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Creates a target from a generated kubeconfig.
fn made(cluster: Cluster, user: AuthInfo, lenient: bool) -> Result<Target, ClientError> {
    let context = Context { cluster: OWN.to_owned(), user: Some(OWN.to_owned()), ..Context::default() };
    let kubeconfig = Kubeconfig {
        clusters: vec![NamedCluster {
            name: OWN.to_owned(),
            cluster: Some(cluster),
            ..NamedCluster::default()
        }],
        auth_infos: vec![NamedAuthInfo {
            name: OWN.to_owned(),
            auth_info: Some(user),
            ..NamedAuthInfo::default()
        }],
        contexts: vec![NamedContext {
            name: OWN.to_owned(),
            context: Some(context),
            ..NamedContext::default()
        }],
        current_context: Some(OWN.to_owned()),
        ..Kubeconfig::default()
    };
    complete(kubeconfig, None, lenient).map_err(|error| match error {
        Fault::Kube(source) => unusable(Path::new(""), source),
        Fault::Client(error) => error,
    })
}

enum Fault {
    Kube(KubeconfigError),
    Client(ClientError),
}

/// Brings the cluster of the current context into the form that [`Target`] requires.
fn complete(mut kubeconfig: Kubeconfig, master: Option<&str>, lenient: bool) -> Result<Target, Fault> {
    let current = kubeconfig.current_context.clone();
    let context = kubeconfig.contexts.iter().find(|context| Some(&context.name) == current.as_ref());
    let context = context.and_then(|named| named.context.clone()).unwrap_or_default();
    let certificates = kubeconfig.auth_infos.iter().any(|user| {
        let certificate =
            |user: &AuthInfo| user.client_certificate.is_some() || user.client_certificate_data.is_some();
        Some(&user.name) == context.user.as_ref() && user.auth_info.as_ref().is_some_and(certificate)
    });
    let mut proxy = None;
    for named in kubeconfig.clusters.iter_mut().filter(|named| named.name == context.cluster) {
        let Some(cluster) = &mut named.cluster else { continue };
        proxy = cluster.proxy_url.take();
        // Any value here keeps kube from reading HTTPS_PROXY by its own rules. The value is not used.
        cluster.proxy_url = Some("http://unused".to_owned());
        let server = master.map(str::to_owned).or(cluster.server.take());
        let uri = server.map(|server| url(&server, certificates || wants_tls(cluster)));
        cluster.server = uri.transpose().map_err(Fault::Client)?.map(|uri| uri.to_string());
    }
    let mut seen = kubeconfig.clone();
    if lenient {
        without_authority(&mut seen);
    }
    let Config { cluster_url, auth_info: mut user, .. } = Config::try_from(seen).map_err(Fault::Kube)?;
    if let Some(cluster) = user.exec.as_mut().and_then(|exec| exec.cluster.as_mut()) {
        cluster.proxy_url.clone_from(&proxy);
    }
    Ok(Target { kubeconfig, url: cluster_url, user, proxy, lenient })
}

/// Removes the certificate authorities, so that the system's are used.
pub(super) fn without_authority(kubeconfig: &mut Kubeconfig) {
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        cluster.certificate_authority = None;
    }
}

/// Returns true if a server without a scheme is reached over TLS (`rest.DefaultServerURL`).
fn wants_tls(cluster: &Cluster) -> bool {
    cluster.certificate_authority.is_some()
        || cluster.certificate_authority_data.is_some()
        || cluster.insecure_skip_tls_verify == Some(true)
}

fn url(text: &str, tls: bool) -> Result<Uri, ClientError> {
    let fault = |reason| ClientError::Url { url: text.to_owned(), reason };
    let scheme = if tls { "https" } else { "http" };
    let full = if text.contains("://") { text.to_owned() } else { format!("{scheme}://{text}") };
    let uri: Uri = full.parse().map_err(|_| fault("is not a URL"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(fault("is neither http nor https"));
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err(fault("has no host"));
    }
    Ok(uri)
}
