//! The client of a TLS connection.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;

use super::authentication::Unauthorized;
use super::authorization::Identity;
use super::certificate::Facts;

/// The certificate chain that a client has presented. It is verified when the connection is made, and again when it
/// expires or the trusted CAs change. Errors are reported in HTTP, not in the TLS handshake.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    chain: Vec<CertificateDer<'static>>,
    /// Why the chain was rejected. The chain itself is not kept then.
    rejected: Option<Unauthorized>,
    judged: Mutex<Option<Judgement>>,
}

#[derive(Debug)]
struct Judgement {
    by: Arc<dyn ClientCertVerifier>,
    until: SystemTime,
    identity: Identity,
}

impl Peer {
    /// Verifies the chain of a new connection. An empty chain means that the client has no certificate.
    pub(super) fn judged(
        chain: Vec<CertificateDer<'static>>,
        verifier: &Arc<dyn ClientCertVerifier>,
        now: SystemTime,
    ) -> Self {
        let peer = Self { chain, ..Self::default() };
        match peer.identity(verifier, now) {
            // A rejected chain is dropped, because it may be long. To be verified again, the client must make a new
            // connection.
            Some(Err(why)) => Self { rejected: Some(why), ..Self::default() },
            _ => peer,
        }
    }

    /// Returns the identity in the certificate if it is valid now; `None` without a certificate.
    pub(super) fn identity(
        &self,
        verifier: &Arc<dyn ClientCertVerifier>,
        now: SystemTime,
    ) -> Option<Result<Identity, Unauthorized>> {
        if let Some(why) = &self.rejected {
            return Some(Err(why.clone()));
        }
        let (first, others) = self.chain.split_first()?;
        let mut judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(judgement) = judged.as_ref()
            && Arc::ptr_eq(&judgement.by, verifier)
            && now < judgement.until
        {
            return Some(Ok(judgement.identity.clone()));
        }
        *judged = None;
        let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let verdict = verifier.verify_client_cert(first, others, UnixTime::since_unix_epoch(since_epoch));
        if let Err(error) = verdict {
            return Some(Err(Unauthorized(format!("the client certificate is not accepted: {error}"))));
        }
        let Some(facts) = Facts::of(first) else {
            return Some(Err(Unauthorized("the client certificate cannot be read".to_owned())));
        };
        // As upstream: without a common name there is no user.
        let Some(user) = facts.user.filter(|user| !user.is_empty()) else {
            return Some(Err(Unauthorized("the client certificate has no common name".to_owned())));
        };
        let identity = Identity { user, groups: facts.groups };
        let ends = others.iter().filter_map(Facts::of).map(|facts| facts.not_after);
        let until = ends.fold(facts.not_after, SystemTime::min);
        *judged = Some(Judgement { by: Arc::clone(verifier), until, identity: identity.clone() });
        Some(Ok(identity))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::RootCertStore;
    use rustls::pki_types::pem::PemObject as _;
    use rustls::server::WebPkiClientVerifier;
    use tempfile::{TempDir, tempdir};

    use super::super::authorization::Role;
    use super::super::pki::Pki;
    use super::*;

    const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

    fn authority() -> (TempDir, Pki, Arc<dyn ClientCertVerifier>) {
        let folder = tempdir().unwrap();
        let pki = Pki::open(folder.path()).unwrap();
        let mut roots = RootCertStore::empty();
        let certificate = pki.authority_certificate().unwrap();
        roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        (folder, pki, verifier)
    }

    fn peer(pem: &str) -> Peer {
        let chain = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().unwrap();
        Peer { chain, ..Peer::default() }
    }

    #[test]
    fn name_and_group_are_in_the_certificate() {
        let (_folder, pki, verifier) = authority();
        let client = peer(&pki.issue_client(Role::ReadOnly, "eve").unwrap().certificate);
        for _ in 0..2 {
            let identity = client.identity(&verifier, SystemTime::now()).unwrap().unwrap();
            assert_eq!(
                (identity.user.as_str(), identity.groups),
                ("eve", vec!["portolan:read-only".to_owned()])
            );
        }
        assert!(Peer::default().identity(&verifier, SystemTime::now()).is_none());
    }

    #[test]
    fn a_verification_is_repeated_after_expiry_and_with_another_ca() {
        let (_folder, pki, verifier) = authority();
        let (_other_folder, _, other) = authority();
        let client = peer(&pki.issue_client(Role::Admin, "eve").unwrap().certificate);
        let now = SystemTime::now();
        assert!(client.identity(&verifier, now).unwrap().is_ok());
        let why = client.identity(&verifier, now + YEAR + YEAR).unwrap().unwrap_err().0;
        assert!(why.contains("expired"), "{why}");
        assert!(client.identity(&verifier, now).unwrap().is_ok());
        let why = client.identity(&other, now).unwrap().unwrap_err().0;
        assert!(why.contains("not accepted"), "{why}");
    }

    #[test]
    fn certificates_that_are_not_for_clients_are_rejected() {
        let (_folder, pki, verifier) = authority();
        let now = SystemTime::now();
        let server = pki.server(&["localhost".to_owned()], now).unwrap();
        assert!(peer(&server.certificate).identity(&verifier, now).unwrap().is_err());
        let garbage = vec![CertificateDer::from(vec![0x30, 0x03, 1, 2, 3])];
        let garbage = Peer::judged(garbage, &verifier, now);
        assert!(garbage.chain.is_empty() && garbage.identity(&verifier, now).unwrap().is_err());
        assert!(peer(&pki.authority_certificate().unwrap()).identity(&verifier, now).unwrap().is_err());
    }
}
