//! Certificates made for a test.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// A certificate authority.
pub(crate) struct Authority {
    /// The authority's certificate.
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, both PEM.
pub(crate) struct Leaf {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn leaf(&self, names: Vec<String>, purpose: ExtendedKeyUsagePurpose) -> Leaf {
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Leaf { certificate, key: key.serialize_pem() }
    }

    /// Returns a client certificate.
    pub(crate) fn client(&self) -> Leaf {
        self.leaf(vec![], ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// Returns the configuration of a server on 127.0.0.1. With `clients` it requires certificates of that
    /// authority.
    pub(crate) fn server(&self, clients: Option<&Authority>) -> Arc<ServerConfig> {
        let leaf = self.leaf(vec!["127.0.0.1".to_owned()], ExtendedKeyUsagePurpose::ServerAuth);
        let builder = match clients {
            None => ServerConfig::builder().with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
                ServerConfig::builder().with_client_cert_verifier(verifier)
            }
        };
        let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
        Arc::new(builder.with_single_cert(vec![leaf.der()], key).unwrap())
    }
}

impl Leaf {
    pub(crate) fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()
    }
}
