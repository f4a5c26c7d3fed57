//! Options for etcd: its endpoints, TLS, credentials and timeouts.

use std::{error::Error, fmt, iter, sync::Arc, time::Duration};

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::OpenError;

/// Deadline of a connection attempt before the next server is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Keep-alive pings while a request is open. etcd rejects clients that ping more often than every 5 seconds.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// A server that does not reply to a ping within this fraction of [`EtcdOptions::timeout`] counts as failed: half.
const KEEP_ALIVE_PATIENCE: u32 = 2;
/// Size of the HTTP/2 windows in bytes. It holds several pages of the initial list without a round trip.
const WINDOW_BYTES: u32 = 4 << 20;

/// Where etcd is, how to connect to it, and the prefix of the objects' keys.
#[derive(Debug, Clone)]
pub struct EtcdOptions {
    /// The servers of one etcd cluster: `https://host:port`, `http://host:port`, or `host:port`. The latter means
    /// https if [`EtcdOptions::tls`] is given, and http otherwise.
    pub endpoints: Vec<String>,
    /// All keys begin with this prefix and a slash. Begins with a slash.
    pub prefix: String,
    /// Certificates for https; `None` for http.
    pub tls: Option<EtcdTls>,
    /// Name and password, if etcd requires authentication.
    pub credentials: Option<Credentials>,
    /// Reads the certificates and the credentials again while the store is used; `None` if they never change.
    pub renewal: Option<Renewal>,
    /// Deadline of a request, all attempts included. A connection on which nothing comes for half of this time after a
    /// ping is given up.
    pub timeout: Duration,
    /// Compacts etcd's history: once per this interval, everything older than it. `None` leaves compaction to etcd's
    /// operator (`--auto-compaction-retention`); without any compaction, etcd fills up. Several servers may compact
    /// at once. It affects all of etcd, not only the prefix.
    pub compaction: Option<Duration>,
}

/// Reads the certificates and credentials for etcd. Called from a thread that may block.
#[derive(Clone)]
pub struct Renewal(Arc<dyn Fn() -> Result<Secrets, String> + Send + Sync>);

/// The certificates and the credentials for etcd.
pub type Secrets = (Option<EtcdTls>, Option<Credentials>);

impl Renewal {
    /// Creates a renewal that calls `read`. The error says which file cannot be read, and why.
    pub fn new(read: impl Fn() -> Result<Secrets, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// Reads the certificates and the credentials.
    pub fn read(&self) -> Result<Secrets, String> {
        (self.0)()
    }
}

impl fmt::Debug for Renewal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Renewal").finish_non_exhaustive()
    }
}

/// Certificates for etcd, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdTls {
    /// The CA of etcd's certificates.
    pub ca: Vec<u8>,
    /// The client certificate and its key, if etcd requires them.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in etcd's certificates, if it differs from the host of the endpoint.
    pub server_name: Option<String>,
}

/// A user of etcd.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self {
            endpoints: vec!["http://127.0.0.1:2379".into()],
            prefix: "/portolan/v1".into(),
            tls: None,
            credentials: None,
            renewal: None,
            timeout: Duration::from_secs(10),
            compaction: Some(Duration::from_secs(600)),
        }
    }
}

impl fmt::Debug for EtcdTls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EtcdTls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Credentials").field("name", &self.name).finish_non_exhaustive()
    }
}

impl EtcdOptions {
    /// Checks the prefix. Returns it without a slash at its end.
    pub(super) fn checked_prefix(&self) -> Result<String, OpenError> {
        let prefix = self.prefix.trim_end_matches('/');
        if !prefix.starts_with('/') || prefix.contains("//") {
            let reason =
                format!("{:?} must begin with a slash and have a name, as in /portolan/v1", self.prefix);
            return Err(OpenError::Options { field: "prefix", reason });
        }
        Ok(prefix.to_owned())
    }

    /// Checks the endpoints. Returns how to connect to each.
    pub(super) fn checked_endpoints(&self) -> Result<Vec<Endpoint>, OpenError> {
        if self.endpoints.is_empty() {
            let reason = "none is given; name at least one, as in https://10.0.0.1:2379".into();
            return Err(OpenError::Options { field: "servers", reason });
        }
        self.endpoints.iter().map(|endpoint| self.endpoint(endpoint)).collect()
    }

    fn endpoint(&self, text: &str) -> Result<Endpoint, OpenError> {
        let wrong =
            |reason: String| OpenError::Options { field: "servers", reason: format!("{text:?}: {reason}") };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let uri = if text.contains("://") { text.to_owned() } else { format!("{scheme}://{text}") };
        match (uri.split_once("://").map(|(scheme, _)| scheme), &self.tls) {
            (Some("http"), None) | (Some("https"), Some(_)) => {}
            (Some("http"), Some(_)) => {
                return Err(wrong("certificates are given, so it must be https".into()));
            }
            (Some("https"), None) => return Err(wrong("https needs the CA of etcd's certificates".into())),
            _ => return Err(wrong("it must be https://host:port or http://host:port".into())),
        }
        let endpoint = Endpoint::from_shared(uri).map_err(|error| wrong(error.to_string()))?;
        if endpoint.uri().port().is_none() || endpoint.uri().path().len() > 1 {
            return Err(wrong("it must be host and port, as in https://10.0.0.1:2379".into()));
        }
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(self.timeout / KEEP_ALIVE_PATIENCE)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES);
        let Some(tls) = &self.tls else { return Ok(endpoint) };
        let unusable = |reason: String| OpenError::Options { field: "certificates", reason };
        // Without a certificate in the CA, each connection would fail with an unknown issuer, which hides the cause.
        if !String::from_utf8_lossy(&tls.ca).contains("-----BEGIN CERTIFICATE-----") {
            return Err(unusable("the CA holds no certificate in PEM".into()));
        }
        endpoint.tls_config(tls.client()).map_err(|error| unusable(chain(&error)))
    }
}

impl EtcdTls {
    fn client(&self) -> ClientTlsConfig {
        let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.ca));
        if let Some((certificate, key)) = &self.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        if let Some(name) = &self.server_name {
            config = config.domain_name(name);
        }
        config
    }
}

/// Returns the causes of an error, nearest first.
pub(super) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(error.source(), |cause| Error::source(*cause))
}

/// Returns an error and its causes as a text for people.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    causes(error).fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
}
