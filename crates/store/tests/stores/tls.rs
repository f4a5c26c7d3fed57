//! etcd with TLS and certificates for both sides.

use std::{
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use portolan_store::{EtcdOptions, EtcdStore, EtcdTls, History, OpenError, Renewal, Store};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose as Usage, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::support::{NODE, commit, etcd::Etcd, put};

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Creates a certificate for an address or a name, and its key.
    fn certify(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        // etcd connects to itself as a client, with its own certificate.
        params.extended_key_usages = vec![Usage::ServerAuth, Usage::ClientAuth];
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    fn client(&self, identity: Option<(String, String)>) -> EtcdTls {
        let identity = identity.map(|(certificate, key)| (certificate.into_bytes(), key.into_bytes()));
        EtcdTls { ca: self.pem.clone().into_bytes(), identity, server_name: None }
    }
}

#[tokio::test]
async fn etcd_is_reached_by_tls_with_certificates_of_both_sides() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let (certificate, key) = authority.certify("127.0.0.1");
    let mut flags = vec!["--client-cert-auth".to_owned()];
    flags.extend(["--cert-file".to_owned(), file("server.crt", &certificate)]);
    flags.extend(["--key-file".to_owned(), file("server.key", &key)]);
    flags.extend(["--trusted-ca-file".to_owned(), file("ca.crt", &authority.pem)]);
    let Some(etcd) = Etcd::start_with("https", &flags) else { return };
    let connect = async |tls: EtcdTls, endpoint: String, timeout: Duration| {
        let options =
            EtcdOptions { endpoints: vec![endpoint], tls: Some(tls), timeout, ..EtcdOptions::default() };
        EtcdStore::connect(options, History::default()).await
    };
    // `long` is longer than any delay on a busy machine. A failure takes all of `short`, a quarter of which is enough
    // for a handshake.
    let (long, short) = (Duration::from_secs(60), Duration::from_secs(12));
    let ours = Some(authority.certify("portolan"));
    let store = connect(authority.client(ours.clone()), etcd.endpoint(), long).await.unwrap();
    commit(&store, vec![put(NODE, "x", "1", None)]).await.unwrap();
    assert_eq!(store.count(NODE), 1);
    // Without a scheme the endpoint is https, because certificates are given.
    let bare = etcd.endpoint().replace("https://", "");
    assert_eq!(connect(authority.client(ours.clone()), bare, long).await.unwrap().count(NODE), 1);

    let error = connect(authority.client(None), etcd.endpoint(), short).await.unwrap_err();
    assert!(matches!(error, OpenError::Etcd { .. }), "{error}");
    let error = connect(stranger.client(ours.clone()), etcd.endpoint(), short).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    let plain = etcd.endpoint().replace("https", "http");
    let error = connect(authority.client(ours), plain, short).await.unwrap_err();
    assert!(matches!(error, OpenError::Options { field: "servers", .. }), "{error}");
    let nonsense = || "hello".to_owned();
    let no_ca = EtcdTls { ca: nonsense().into_bytes(), ..authority.client(None) };
    for tls in [no_ca, authority.client(Some((nonsense(), nonsense())))] {
        let error = connect(tls, etcd.endpoint(), short).await.unwrap_err();
        assert!(matches!(error, OpenError::Options { field: "certificates", .. }), "{error}");
    }
}

#[tokio::test]
async fn rotated_certificates_are_used() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).into_os_string().into_string().unwrap();
    let issue = |authority: &Authority| {
        let (certificate, key) = authority.certify("127.0.0.1");
        fs::write(path("server.crt"), certificate).unwrap();
        fs::write(path("server.key"), key).unwrap();
        fs::write(path("ca.crt"), &authority.pem).unwrap();
        authority.client(Some(authority.certify("portolan")))
    };
    let former = issue(&Authority::new());
    let mut flags = vec!["--client-cert-auth".to_owned()];
    for (flag, name) in
        [("--cert-file", "server.crt"), ("--key-file", "server.key"), ("--trusted-ca-file", "ca.crt")]
    {
        flags.extend([flag.to_owned(), path(name)]);
    }
    let Some(mut etcd) = Etcd::start_with("https", &flags) else { return };
    let given = Arc::new(Mutex::new(Err("half a file".to_owned())));
    let renewal = Renewal::new({
        let given = Arc::clone(&given);
        move || given.lock().unwrap().clone().map(|tls: EtcdTls| (Some(tls), None))
    });
    let endpoints = vec![etcd.endpoint()];
    let options =
        EtcdOptions { endpoints, tls: Some(former), renewal: Some(renewal), ..EtcdOptions::default() };
    let store = EtcdStore::connect(options, History::default()).await.unwrap();
    let rotated = issue(&Authority::new());
    etcd.restart();
    assert!(store.refresh().await.is_err());
    *given.lock().unwrap() = Ok(rotated);
    let used = async { while store.refresh().await.is_err() {} };
    tokio::time::timeout(Duration::from_secs(120), used).await.unwrap();
    commit(&store, vec![put(NODE, "x", "1", None)]).await.unwrap();
    assert_eq!((store.count(NODE), store.metrics().loads), (1, 1));
}

#[tokio::test]
async fn invalid_options_are_refused_with_a_remedy() {
    let with = |endpoints: &[&str], prefix: &str| EtcdOptions {
        endpoints: endpoints.iter().map(|endpoint| (*endpoint).to_owned()).collect(),
        prefix: prefix.to_owned(),
        ..EtcdOptions::default()
    };
    for (options, text) in [
        (with(&[], "/p"), "name at least one"),
        (with(&["https://localhost:2379"], "/p"), "needs the CA"),
        (with(&["ftp://localhost:2379"], "/p"), "must be https://host:port"),
        (with(&["localhost"], "/p"), "host and port"),
        (with(&["localhost:2379/v3"], "/p"), "host and port"),
        (with(&["local host:2379"], "/p"), "local host"),
        (with(&["localhost:2379"], "p"), "begin with a slash"),
        (with(&["localhost:2379"], "/"), "begin with a slash"),
        (with(&["localhost:2379"], "/a//b"), "begin with a slash"),
    ] {
        let error = EtcdStore::connect(options, History::default()).await.unwrap_err();
        assert!(matches!(error, OpenError::Options { .. }) && error.to_string().contains(text), "{error}");
    }
}
