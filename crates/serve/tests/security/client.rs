//! A server with its own certificate authority, and a blocking client over TLS.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_serve::{Config, Limits, Pki, Role, RunningServer, Server, TlsSettings, Transport};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Deadline of each step of a test. Only a failure takes longer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);
pub(crate) const SERVICES: &str = "/api/v1/namespaces/default/services";

/// A server, its PKI, its address, and the folder of its files.
pub(crate) struct Secure {
    pub(crate) server: RunningServer,
    pub(crate) pki: Pki,
    pub(crate) address: SocketAddr,
    pub(crate) folder: TempDir,
}

/// A client, with the certificates that it trusts and its credentials.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) name: String,
    pub(crate) roots: String,
    pub(crate) certificate: Option<(String, String)>,
    pub(crate) headers: Vec<(&'static str, String)>,
}

pub(crate) type Stream = BufReader<StreamOwned<ClientConnection, TcpStream>>;

pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

/// Returns settings with all files in one folder.
pub(crate) fn settings(folder: &Path) -> TlsSettings {
    TlsSettings {
        pki: folder.join("pki"),
        names: ["localhost", "127.0.0.1", "kubernetes.default.svc"].map(str::to_owned).to_vec(),
        certificate: None,
        client_authorities: None,
        tokens: None,
        of_process: None,
    }
}

pub(crate) fn start() -> Secure {
    start_with(|_, _, _| {})
}

/// Returns limits whose times are longer than a test.
pub(crate) fn patient() -> Limits {
    let long = DEADLINE * 10;
    Limits {
        handshake_time: long,
        header_time: long,
        place_time: long,
        shutdown_grace: DEADLINE,
        ..Limits::default()
    }
}

/// Starts a server with [`patient`] limits. `change` gets the settings, and the folder for further files.
pub(crate) fn start_with(change: impl FnOnce(&mut Config, &mut TlsSettings, &Path)) -> Secure {
    let folder = tempfile::tempdir().unwrap();
    let (mut config, mut tls) = (Config { limits: patient(), ..Config::default() }, settings(folder.path()));
    change(&mut config, &mut tls, folder.path());
    config.transport = Transport::Tls(Box::new(tls));
    let server = Server::start(config).unwrap();
    let pki = Pki::open(folder.path().join("pki")).unwrap();
    Secure { address: server.local_addr(), server, pki, folder }
}

impl Secure {
    /// Returns a client without credentials.
    pub(crate) fn anonymous(&self) -> Client {
        Client {
            address: self.address,
            name: "127.0.0.1".to_owned(),
            roots: self.pki.authority_certificate().unwrap(),
            certificate: None,
            headers: Vec::new(),
        }
    }

    /// Returns a client with a certificate of this role.
    pub(crate) fn client(&self, role: Role) -> Client {
        self.anonymous().with_certificate(&self.pki, role)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Client {
    pub(crate) fn with_certificate(mut self, authority: &Pki, role: Role) -> Self {
        let files = authority.issue_client(role, role.default_user()).unwrap();
        self.certificate = Some((files.certificate, files.key));
        self
    }

    pub(crate) fn with_header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    pub(crate) fn with_token(self, token: &str) -> Self {
        self.with_header("authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn config(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.roots) {
            roots.add(certificate).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.unwrap().with_root_certificates(roots);
        match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(certificates(chain), key).unwrap()
            }
        }
    }

    /// Connects and completes the TLS handshake.
    pub(crate) fn connect(&self) -> std::io::Result<Stream> {
        self.connect_over(TcpStream::connect(self.address)?)
    }

    /// Completes the TLS handshake over a connected socket.
    pub(crate) fn connect_over(&self, socket: TcpStream) -> std::io::Result<Stream> {
        socket.set_read_timeout(Some(DEADLINE))?;
        let name = ServerName::try_from(self.name.clone()).unwrap();
        let connection = ClientConnection::new(Arc::new(self.config()), name).unwrap();
        let mut stream = StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(BufReader::new(stream))
    }

    pub(crate) fn send(&self, stream: &mut Stream, method: &str, path: &str, body: &str) {
        self.try_send(stream, method, path, body).unwrap();
    }

    fn try_send(&self, stream: &mut Stream, method: &str, path: &str, body: &str) -> std::io::Result<()> {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in &self.headers {
            head.extend([name, ": ", value, "\r\n"]);
        }
        stream.get_mut().write_all(format!("{head}\r\n{body}").as_bytes())
    }

    /// Sends one request on its own connection.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        self.ask_on(&mut self.connect().unwrap(), method, path, body)
    }

    /// Does the same as [`Self::ask`]. Returns `None` if the server ends the connection without an answer.
    pub(crate) fn try_ask(&self, method: &str, path: &str, body: &str) -> Option<Answer> {
        let mut stream = self.connect().ok()?;
        self.try_send(&mut stream, method, path, body).ok()?;
        let is_answered = stream.fill_buf().is_ok_and(|begin| !begin.is_empty());
        is_answered.then(|| read_answer(&mut stream))
    }

    pub(crate) fn ask_on(&self, stream: &mut Stream, method: &str, path: &str, body: &str) -> Answer {
        self.send(stream, method, path, body);
        read_answer(stream)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "")
    }

    pub(crate) fn create(&self, name: &str) -> Answer {
        self.ask("POST", SERVICES, &service(name))
    }

    /// Starts a watch. Returns once its head has arrived.
    pub(crate) fn watch(&self, path: &str) -> Stream {
        let mut stream = self.connect().unwrap();
        self.send(&mut stream, "GET", path, "");
        assert_eq!(read_head(&mut stream).0, 200);
        stream
    }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Asserts a Status with this code and reason; returns its message.
    pub(crate) fn refused(&self, code: u16, reason: &str) -> String {
        let status = self.json();
        assert_eq!((self.code, &status["kind"], &status["code"]), (code, &json!("Status"), &json!(code)));
        assert_eq!((&status["reason"], &status["status"]), (&json!(reason), &json!("Failure")));
        status["message"].as_str().unwrap().to_owned()
    }
}

pub(crate) fn service(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}})
        .to_string()
}

pub(crate) fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().unwrap()
}

pub(crate) fn read_head(stream: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "connection closed before the headers");
        if line == "\r\n" {
            break;
        }
        lines.push(line.trim_end().to_owned());
    }
    let code = lines[0].split(' ').nth(1).unwrap().parse().unwrap();
    let split = |line: &String| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_lowercase(), value.to_owned())
    };
    (code, lines[1..].iter().map(split).collect())
}

pub(crate) fn read_answer(stream: &mut impl BufRead) -> Answer {
    let (code, headers) = read_head(stream);
    let mut body = Vec::new();
    match headers.iter().find(|(name, _)| name == "content-length") {
        Some((_, length)) => {
            body.resize(length.parse().unwrap(), 0);
            stream.read_exact(&mut body).unwrap();
        }
        None => {
            while let Some(chunk) = read_chunk(stream) {
                body.extend(chunk);
            }
        }
    }
    Answer { code, headers, body: String::from_utf8(body).unwrap() }
}

/// Returns the next chunk of a body; `None` at its clean end.
pub(crate) fn read_chunk(stream: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut size = String::new();
    assert!(stream.read_line(&mut size).unwrap() > 0, "connection closed within a body");
    let size = usize::from_str_radix(size.trim_end(), 16).unwrap();
    let mut chunk = vec![0; size + 2];
    stream.read_exact(&mut chunk).unwrap();
    chunk.truncate(size);
    (size > 0).then_some(chunk)
}

/// Returns the next event of a watch.
pub(crate) fn next_event(stream: &mut impl BufRead) -> Value {
    let chunk = read_chunk(stream).expect("an event");
    serde_json::from_slice(&chunk).unwrap()
}

/// Waits until the condition holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < DEADLINE, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the value of a metric. The name includes its labels, if it has any.
pub(crate) fn metric(client: &Client, name: &str) -> f64 {
    try_metric(client, name).expect("an answer")
}

/// Does the same as [`metric`]. Returns `None` if the server ends the connection without an answer.
pub(crate) fn try_metric(client: &Client, name: &str) -> Option<f64> {
    let page = client.try_ask("GET", "/metrics", "")?.body;
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Some(line.unwrap_or_else(|| panic!("no {name}: {page}")).parse().unwrap())
}
