use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use portolan_testkit::PortolanProcess;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::{TempDir, tempdir};

use crate::site::{BINARY, PATIENCE, Site, until};

const ADDRESS: &str = "127.0.0.1:6443";
/// Memory of one connection without credentials, in bytes.
const MOST: u64 = 16 << 10;

/// A server with TLS, and what a client needs to trust it.
struct Secure {
    site: Site,
    server: PortolanProcess,
    config: ClientConfig,
    /// Files that the server has open without a client.
    idle: usize,
    _folder: TempDir,
}

impl Secure {
    fn start() -> Self {
        let (site, folder) = (Site::new(), tempdir().unwrap());
        let data = folder.path().to_str().unwrap();
        let arguments = ["serve", "--in-memory", "--data-dir", data, "--listen", ADDRESS];
        let mut server = PortolanProcess::start(&site.namespace, BINARY.as_ref(), &arguments).unwrap();
        server.wait_for_output(PATIENCE, "tls=true").unwrap();
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
        let config = config(&folder.path().join("pki/ca.crt"));
        let idle = files(&server);
        Self { site, server, config, idle, _folder: folder }
    }

    /// A connection whose handshake is done, without a certificate.
    fn secured(&self, protocol: &[u8]) -> StreamOwned<ClientConnection, TcpStream> {
        let mut config = self.config.clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), connect());
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).unwrap();
        }
        stream.flush().unwrap();
        stream
    }

    /// Opens connections, and asserts what each takes, and that it is given back when they end.
    fn hold<T: Send>(&self, what: &str, count: usize, open: impl Fn() -> T + Sync) {
        let open = |count: usize| -> Vec<T> {
            self.site.namespace.run(|| (0..count).map(|_| open()).collect()).unwrap()
        };
        // What the first of a kind needs once.
        drop(open(20));
        until("the first are closed", || files(&self.server) <= self.idle);
        let before = self.server.resident().unwrap();
        let held = open(count);
        until("all are accepted", || files(&self.server) >= self.idle + count);
        let during = self.server.resident().unwrap();
        let each = during.saturating_sub(before) / count as u64;
        println!("{what}: {each} bytes each, {before} before, {during} with {count}");
        assert!(each <= MOST, "{what}: {each} bytes each");
        drop(held);
        until("all are closed", || files(&self.server) <= self.idle);
        let kept = || self.server.resident().unwrap().saturating_sub(before);
        until("the memory is given back", || kept() <= count as u64 * MOST / 4);
        println!("{what}: {} bytes kept", kept());
    }
}

/// A connection, in the namespace of the thread.
fn connect() -> TcpStream {
    let stream = TcpStream::connect(ADDRESS).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Files that a process has open; a connection is one.
fn files(server: &PortolanProcess) -> usize {
    fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap().count()
}

fn config(authority: &Path) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    builder.with_root_certificates(roots).with_no_client_auth()
}

#[test]
fn connections_without_credentials_take_little_and_give_it_back() {
    let secure = Secure::start();
    secure.hold("silent", 1000, connect);
    secure.hold("half a greeting", 1000, || {
        let mut stream = connect();
        stream.write_all(b"\x16\x03\x01").unwrap();
        stream
    });
    secure.hold("silent after the handshake", 300, || secure.secured(b"http/1.1"));
    secure.hold("silent after the handshake, HTTP/2", 300, || secure.secured(b"h2"));
}
