//! The TLS configuration and the credentials of clients, loaded from files and reloaded while the server runs.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, header};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject as _};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
};
use thiserror::Error;

use super::authentication::{self, Unauthorized};
use super::authorization::Identity;
use super::certificate::{Facts, Pair};
use super::peer::Peer;
use super::pki::{Pki, PkiError};
use super::stamp::{self, Stamp};
use super::tokens::{Form, ProcessToken, TokenFileError, Tokens};

/// Pause before a failed renewal is retried.
const RENEWAL_PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of times that files are read while they change.
const READS: usize = 3;

/// The sources of certificates, CAs and tokens.
#[derive(Debug, Clone)]
pub struct TlsSettings {
    /// The folder of the server's own CA. It is created at the first start.
    pub pki: PathBuf,
    /// Names and addresses in the server's own certificate.
    pub names: Vec<String>,
    /// Certificate chain and key to use instead of those from the own CA (`--tls-cert-file`,
    /// `--tls-private-key-file`).
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// CAs of client certificates, in addition to the own CA (`--client-ca-file`).
    pub client_authorities: Option<PathBuf>,
    /// Static tokens (`--token-auth-file`).
    pub tokens: Option<PathBuf>,
    /// The token of a client in the same process.
    pub of_process: Option<ProcessToken>,
}

/// Why TLS cannot be set up.
#[derive(Debug, Error)]
pub enum SecurityError {
    /// The server's own files cannot be used.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// A given file cannot be used.
    #[error("{flag}: {}: {reason}", .path.display())]
    File {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The certificate and the key do not match, or one of them cannot be used.
    #[error("the server's certificate cannot be used: {0}")]
    Certificate(rustls::Error),
}

/// The credentials and the TLS configuration of a running server.
#[derive(Debug)]
pub(crate) struct Security {
    settings: TlsSettings,
    pki: Pki,
    current: RwLock<Arc<Current>>,
    seen: Mutex<Seen>,
}

/// The state of the files just before they were last read, even if they could not be used, and the time of that read.
#[derive(Debug)]
struct Seen {
    stamps: Vec<Stamp>,
    at: SystemTime,
}

/// One loaded state of the files.
#[derive(Debug)]
struct Current {
    server: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
    tokens: Tokens,
    certificate: Option<Facts>,
}

impl Security {
    /// Reads all files. Creates the server's own files that are missing.
    pub(crate) fn load(settings: TlsSettings) -> Result<Self, SecurityError> {
        let pki = Pki::open(&settings.pki)?;
        let now = SystemTime::now();
        let (loaded, stamps) = settled(|| stamps(&settings, &pki), || Current::load(&settings, &pki, now));
        let (current, seen) = (RwLock::new(Arc::new(loaded?)), Mutex::new(Seen { stamps, at: now }));
        Ok(Self { settings, pki, current, seen })
    }

    /// Returns the TLS configuration for the next connection.
    pub(crate) fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current().server)
    }

    /// Verifies the certificates that a client has presented.
    pub(crate) fn peer(&self, chain: Vec<CertificateDer<'static>>) -> Peer {
        Peer::judged(chain, &self.current().verifier, SystemTime::now())
    }

    /// Authenticates a request.
    pub(crate) fn identify(&self, peer: &Peer, headers: &HeaderMap) -> Result<Identity, Unauthorized> {
        let now = SystemTime::now();
        let identify = || {
            let current = self.current();
            authentication::identify(peer.identity(&current.verifier, now), headers, &current.tokens)
        };
        let first = identify();
        if first.is_err() && headers.contains_key(header::AUTHORIZATION) {
            // The token may have been issued after the last reload.
            self.refresh(now);
            return identify();
        }
        first
    }

    /// Returns when the server's certificate expires.
    pub(crate) fn certificate_end(&self) -> Option<SystemTime> {
        self.current().certificate.as_ref().map(|facts| facts.not_after)
    }

    /// Reloads files that have changed, and renews the server's own certificate when it is old. If files cannot be
    /// used, logs that and keeps the loaded state.
    pub(crate) fn refresh(&self, now: SystemTime) {
        let old = self.settings.certificate.is_none()
            && self.current().certificate.as_ref().is_some_and(|facts| facts.is_old(now));
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock that was set back is no reason to wait.
        let paused = (seen.at..seen.at + RENEWAL_PAUSE).contains(&now);
        if (!old || paused) && seen.stamps == stamps(&self.settings, &self.pki) {
            return;
        }
        let (loaded, stamps) =
            settled(|| stamps(&self.settings, &self.pki), || Current::load(&self.settings, &self.pki, now));
        match loaded {
            Ok(current) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(current);
                tracing::info!("certificates, authorities and tokens were read again");
            }
            Err(error) => {
                tracing::error!(%error, "changed files cannot be used; the former ones stay in use");
            }
        }
        *seen = Seen { stamps, at: now };
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Current {
    fn load(settings: &TlsSettings, pki: &Pki, now: SystemTime) -> Result<Self, SecurityError> {
        let pair = match &settings.certificate {
            None => pki.server(&settings.names, now)?,
            Some((certificate, key)) => {
                let certificate = read("--tls-cert-file", certificate)?;
                Pair { certificate, key: read("--tls-private-key-file", key)? }
            }
        };
        let verifier = verifier(settings, pki)?;
        let mut tokens = Tokens::default();
        if let Some(path) = &settings.tokens {
            let flag = "--token-auth-file";
            let parsed = Tokens::parse(&read(flag, path)?, Form::Plain);
            tokens.extend(parsed.map_err(|error| unusable(flag, path, &error))?);
        }
        let own = Tokens::parse(&pki.tokens()?, Form::Hashed);
        tokens.extend(own.map_err(|error| {
            let path = pki.path("tokens");
            PkiError::File { path, source: std::io::Error::other(error) }
        })?);
        if let Some(token) = &settings.of_process {
            tokens.extend(token.accepted());
        }
        let certificate = Facts::of_pem(&pair.certificate);
        if let Some(facts) = certificate.as_ref().filter(|facts| facts.is_old(now)) {
            tracing::warn!(days = facts.days_left(now), "the server's certificate ends soon");
        }
        Ok(Self { server: server_config(&pair, &verifier)?, verifier, tokens, certificate })
    }
}

fn server_config(
    pair: &Pair,
    verifier: &Arc<dyn ClientCertVerifier>,
) -> Result<Arc<ServerConfig>, SecurityError> {
    let unusable = |error: rustls::pki_types::pem::Error| {
        SecurityError::Certificate(rustls::Error::General(format!("not PEM: {error:?}")))
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pair.certificate.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(unusable)?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(unusable)?;
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(SecurityError::Certificate)?;
    let asking = Arc::new(AskOnly(Arc::clone(verifier)));
    let mut config = builder
        .with_client_cert_verifier(asking)
        .with_single_cert(chain, key)
        .map_err(SecurityError::Certificate)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Sessions are not resumed. A resumed session would restore the client's certificate chain, however long, for a
    // few received bytes. Go's clients do not resume sessions, and no session survives a restart of this server.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Creates the verifier of client certificates, which trusts the own CA and the given ones.
fn verifier(settings: &TlsSettings, pki: &Pki) -> Result<Arc<dyn ClientCertVerifier>, SecurityError> {
    let mut roots = RootCertStore::empty();
    let own = pki.authority_certificate()?;
    let flag = "--client-ca-file";
    let given = match &settings.client_authorities {
        Some(path) => read(flag, path)?,
        None => String::new(),
    };
    let mut given_roots = 0;
    for (text, count) in [(&own, &mut 0), (&given, &mut given_roots)] {
        for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
            let added = certificate
                .map_err(|error| format!("{error:?}"))
                .and_then(|certificate| roots.add(certificate).map_err(|error| error.to_string()));
            added.map_err(|reason| SecurityError::File {
                flag,
                path: settings.client_authorities.clone().unwrap_or_else(|| pki.path("ca.crt")),
                reason,
            })?;
            *count += 1;
        }
    }
    if let (Some(path), 0) = (&settings.client_authorities, given_roots) {
        return Err(unusable(flag, path, &"no certificate in PEM form"));
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider()));
    builder.build().map_err(|error| {
        SecurityError::Certificate(rustls::Error::General(format!("client authorities: {error}")))
    })
}

/// Reads files until they have not changed meanwhile, at most [`READS`] times: a first read creates the server's own
/// files, and another program may be writing. Returns what was read last, and the stamps from just before. Stamps
/// from after a read could belong to content that was not read, which would then never be read.
fn settled<T, S: PartialEq>(stamps: impl Fn() -> S, mut read: impl FnMut() -> T) -> (T, S) {
    let (mut before, mut content) = (stamps(), read());
    for _ in 1..READS {
        let after = stamps();
        if after == before {
            break;
        }
        (before, content) = (after, read());
    }
    (content, before)
}

fn stamps(settings: &TlsSettings, pki: &Pki) -> Vec<Stamp> {
    let own = ["ca.crt", "server.crt", "server.key", "tokens"].map(|name| pki.path(name));
    let pair = settings.certificate.iter().flat_map(|(certificate, key)| [certificate, key]);
    let given = pair.chain(&settings.client_authorities).chain(&settings.tokens);
    own.iter().chain(given).map(|path| stamp::stamp(path)).collect()
}

fn read(flag: &'static str, path: &std::path::Path) -> Result<String, SecurityError> {
    stamp::read(path).map_err(|error| unusable(flag, path, &error))
}

fn unusable(flag: &'static str, path: &std::path::Path, reason: &dyn std::fmt::Display) -> SecurityError {
    SecurityError::File { flag, path: path.to_owned(), reason: reason.to_string() }
}

impl From<TokenFileError> for std::io::Error {
    fn from(error: TokenFileError) -> Self {
        Self::other(error.to_string())
    }
}

/// Asks clients for a certificate and checks that they own its key, but not which CA issued it. The chain is verified
/// with the request, where clients understand a refusal. Upstream does the same.
#[derive(Debug)]
struct AskOnly(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for AskOnly {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::Path;

    use super::*;

    #[test]
    fn what_changes_while_it_is_read_is_read_again() {
        let file = Cell::new(0);
        // Another program writes a number while the server reads the one before.
        let written_until = |last: u32| {
            settled(
                || file.get(),
                || {
                    let content = file.get();
                    file.set(last.min(content + 1));
                    content
                },
            )
        };
        assert_eq!(written_until(1), (1, 1));
        // A file that never rests counts as it was before the last read, so that the next check finds it changed.
        let (content, seen) = written_until(u32::MAX);
        assert_eq!(seen, content);
        assert_ne!(seen, file.get());
    }

    fn load(folder: &Path) -> Security {
        let settings = TlsSettings {
            pki: folder.join("pki"),
            names: vec!["localhost".to_owned()],
            certificate: None,
            client_authorities: None,
            tokens: None,
            of_process: None,
        };
        Security::load(settings).unwrap()
    }

    /// As at a boot where the clock is ahead until it is set by NTP.
    #[test]
    fn a_certificate_that_is_not_yet_valid_is_renewed_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let security = load(folder.path());
        let not_before = || security.current().certificate.as_ref().unwrap().not_before;
        let (first, earlier) = (not_before(), SystemTime::now() - Duration::from_secs(3 * 24 * 60 * 60));
        assert!(earlier < first);
        security.refresh(earlier);
        let renewed = not_before();
        assert!(renewed < earlier, "{renewed:?}");
        // The next check does not read the files again.
        let config = security.server_config();
        security.refresh(earlier + Duration::from_secs(2));
        assert!(Arc::ptr_eq(&config, &security.server_config()));
    }

    #[test]
    fn the_own_certificate_is_renewed_while_the_server_runs() {
        let folder = tempfile::tempdir().unwrap();
        let security = load(folder.path());
        let (first, config) = (security.certificate_end().unwrap(), security.server_config());
        let now = SystemTime::now();
        security.refresh(now + Duration::from_secs(200 * 24 * 60 * 60));
        assert_eq!(security.certificate_end().unwrap(), first);
        assert!(Arc::ptr_eq(&config, &security.server_config()), "nothing was read again");
        security.refresh(now + Duration::from_secs(300 * 24 * 60 * 60));
        assert!(security.certificate_end().unwrap() > first);
        assert!(!Arc::ptr_eq(&config, &security.server_config()));
    }
}
