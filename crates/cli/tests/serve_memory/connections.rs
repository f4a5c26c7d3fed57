use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use portolan_testkit::PortolanProcess;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::client::WantsClientCert;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use rustls::version::{TLS12, TLS13};
use rustls::{ALL_VERSIONS, ConfigBuilder};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};
use tempfile::{TempDir, tempdir};

use crate::site::{PATIENCE, Site, server, until};

const ADDRESS: &str = "127.0.0.1:6443";
/// The port and the state as in `/proc/net/tcp`.
const PORT: &str = "192B";
const ESTABLISHED: &str = "01";
/// Maximum memory of one connection without credentials, in bytes.
const MOST: u64 = 16 << 10;
/// Additional memory of a connection whose first TLS message is longer than 1 KB, until the end of its handshake.
const GREETED: u64 = 4 << 10;
/// Number of concurrent connections of one client that may send a long handshake or head, and the additional memory
/// of each.
const LONG: usize = 2;
const MORE: u64 = 128 << 10;
/// With fewer connections than this, the memory of one cannot be measured.
const FEWEST: usize = 30;
/// Bytes that each client may send in its handshake and again after it, or slightly fewer.
const FIRST: usize = 3800;
/// Bytes of each fragment of a handshake message, including the record header.
const FRAGMENT: usize = 300;
/// HTTP/2: the client's preface, empty SETTINGS, and HEADERS of a GET of /api.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
const HEADERS: &[u8] =
    &[0, 0, 11, 1, 5, 0, 0, 0, 1, 0x82, 0x87, 0x44, 4, b'/', b'a', b'p', b'i', 0x41, 1, b'x'];
/// The constant part of a GOAWAY frame without error (RFC 9113, 6.8).
const GOAWAY: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0];

/// A server with TLS, and what a client needs to trust it.
struct Secure {
    site: Site,
    server: PortolanProcess,
    config: ClientConfig,
    /// Number of open files of the server without clients.
    idle: usize,
    folder: TempDir,
}

impl Secure {
    fn start() -> Self {
        let (site, folder) = (Site::new(), tempdir().unwrap());
        let data = folder.path().to_str().unwrap();
        let arguments = ["serve", "--in-memory", "--data-dir", data, "--listen", ADDRESS];
        let mut server =
            PortolanProcess::start(&site.namespace, server::program().as_ref(), &arguments).unwrap();
        server.wait_for_output(PATIENCE, "tls=true").unwrap();
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
        let config = config(&folder.path().join("pki/ca.crt"), ALL_VERSIONS);
        let idle = files(&server);
        Self { site, server, config, idle, folder }
    }

    /// Creates a client without a certificate.
    fn client(&self, protocol: &[u8]) -> ClientConnection {
        let mut config = self.config.clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        ClientConnection::new(Arc::new(config), ServerName::try_from("127.0.0.1").unwrap()).unwrap()
    }

    /// Opens a connection and completes the handshake without a certificate.
    fn secured(&self, protocol: &[u8]) -> StreamOwned<ClientConnection, TcpStream> {
        let mut stream = StreamOwned::new(self.client(protocol), connect());
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).unwrap();
        }
        stream.flush().unwrap();
        stream
    }

    /// Returns a client configuration that sends a long chain of certificates in small fragments.
    fn certifying(&self, versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
        let pki = self.folder.path().join("pki");
        // Any certificate will do, because the server does not see the end of the chain.
        let own = CertificateDer::from_pem_file(pki.join("server.crt")).unwrap();
        let key = PrivateKeyDer::from_pem_file(pki.join("server.key")).unwrap();
        let builder = builder(&pki.join("ca.crt"), versions);
        let mut config = builder.with_client_auth_cert(vec![own; 16], key).unwrap();
        config.max_fragment_size = Some(FRAGMENT);
        Arc::new(config)
    }

    /// Does the same as `secured` and sends these bytes.
    fn said(&self, protocol: &[u8], bytes: &[u8]) -> StreamOwned<ClientConnection, TcpStream> {
        let mut stream = self.secured(protocol);
        stream.write_all(bytes).unwrap();
        stream.flush().unwrap();
        stream
    }

    /// Opens connections, waits until `settled`, and asserts that they take at most their limit plus `more`, and that
    /// the memory is freed when they end.
    ///
    /// The server closes each connection after some time. If the machine cannot open so many within that time, half
    /// as many are opened.
    fn hold_until<T: Send>(
        &self,
        what: &str,
        count: usize,
        more: u64,
        open: impl Fn() -> T + Sync,
        settled: impl Fn(usize) -> bool,
    ) {
        // The first connections of a kind allocate memory that stays.
        drop(self.open(20, &open));
        until("the first are closed", || files(&self.server) <= self.idle);
        let mut count = count;
        loop {
            let before = self.server.resident().unwrap();
            let held = self.open(count, &open);
            let mut during = None;
            until(what, || {
                if files(&self.server) >= self.idle + count && settled(count) {
                    during = Some(self.server.resident().unwrap());
                }
                // A connection that was closed may have been measured after its memory was freed.
                self.established() < count || during.is_some()
            });
            let all_are_open = self.established() == count;
            drop(held);
            if let Some(during) = during.filter(|_| all_are_open) {
                let taken = during.saturating_sub(before);
                println!(
                    "{what}: {} bytes each, {before} before, {during} with {count}",
                    taken / count as u64
                );
                assert!(taken <= count as u64 * MOST + more, "{what}: {taken} bytes with {count}");
                return self.given_back(what, count, before);
            }
            self.given_back(what, count, before);
            println!("{what}: some of {count} were ended before all were open");
            count /= 2;
            assert!(count >= FEWEST, "{what}: the server ends connections early");
        }
    }

    /// Opens connections in the server's namespace.
    fn open<T: Send>(&self, count: usize, open: &(impl Fn() -> T + Sync)) -> Vec<T> {
        self.site.namespace.run(|| (0..count).map(|_| open()).collect()).unwrap()
    }

    /// Does the same for connections of which the server reads everything, and each has the same limit.
    fn hold<T: Send>(&self, what: &str, count: usize, open: impl Fn() -> T + Sync) {
        self.hold_until(what, count, 0, open, |_| self.unread() == 0);
    }

    /// Does the same for connections from which the server stops reading.
    fn hold_unread<T: Send>(&self, what: &str, count: usize, open: impl Fn() -> T + Sync) {
        self.hold_until(what, count, 0, open, |count| self.unread() == count);
    }

    /// Does the same for connections of which the server reads only [`LONG`].
    fn hold_long<T: Send>(&self, what: &str, count: usize, open: impl Fn() -> T + Sync) {
        self.hold_until(what, count, LONG as u64 * MORE, open, |count| self.unread() == count - LONG);
    }

    /// Asserts that the server closes connections that their clients keep open.
    fn refused<T: Send>(&self, what: &str, count: usize, open: impl Fn() -> T + Sync) {
        drop(self.open(20, &open));
        until("the first are closed", || files(&self.server) <= self.idle);
        let before = self.server.resident().unwrap();
        let held = self.open(count, &open);
        self.given_back(what, count, before);
        drop(held);
    }

    fn given_back(&self, what: &str, count: usize, before: u64) {
        until("all are closed", || files(&self.server) <= self.idle);
        let kept = || self.server.resident().unwrap().saturating_sub(before);
        until("the memory is given back", || kept() <= count as u64 * MOST / 4);
        println!("{what}: {} bytes kept", kept());
    }

    /// Returns the number of connections with bytes that the server has not read.
    fn unread(&self) -> usize {
        self.sockets().into_iter().filter(|unread| *unread > 0).count()
    }

    /// Returns the number of connections that neither side has closed.
    fn established(&self) -> usize {
        self.sockets().len()
    }

    /// Returns the unread bytes of each connection that neither side has closed.
    fn sockets(&self) -> Vec<u64> {
        // The kernel lists the sockets of a process's network namespace (proc(5), `/proc/net/tcp`).
        let sockets = fs::read_to_string(format!("/proc/{}/net/tcp", self.server.id())).unwrap();
        let unread = |line: &str| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let (port, queues) = (fields[1].split_once(':').unwrap().1, fields[4].split_once(':').unwrap());
            let is_open = port == PORT && fields[3] == ESTABLISHED;
            is_open.then(|| u64::from_str_radix(queues.1, 16).unwrap())
        };
        sockets.lines().skip(1).filter_map(unread).collect()
    }
}

/// Opens a connection in the network namespace of the thread.
fn connect() -> TcpStream {
    let stream = TcpStream::connect(ADDRESS).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Returns records of one type as a single record.
fn joined(records: &[u8]) -> Vec<u8> {
    let (mut rest, mut content) = (records, Vec::new());
    while let [_, _, _, high, low, after @ ..] = rest {
        let (part, next) = after.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        content.extend_from_slice(part);
        rest = next;
    }
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    [&records[..3], &length, &content].concat()
}

/// Opens a connection, sends the greeting in one record, and then the beginning of a handshake message in fragments.
fn fragmented(config: &Arc<ClientConfig>) -> TcpStream {
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let (mut stream, mut client) = (connect(), ClientConnection::new(Arc::clone(config), name).unwrap());
    let mut greeting = Vec::new();
    client.write_tls(&mut greeting).unwrap();
    let greeting = joined(&greeting);
    stream.write_all(&greeting).unwrap();
    let mut answer = Vec::new();
    while answer.len() < FIRST {
        client.read_tls(&mut stream).unwrap();
        client.process_new_packets().unwrap();
        while client.wants_write() {
            client.write_tls(&mut answer).unwrap();
        }
    }
    // As many whole records as may be sent. The first may be change_cipher_spec.
    let record = |at: usize| at + 5 + usize::from(u16::from_be_bytes([answer[at + 3], answer[at + 4]]));
    let ends = std::iter::successors(Some(0), |at| Some(record(*at)));
    let end = ends.take_while(|end| greeting.len() + end <= FIRST).last().unwrap();
    stream.write_all(&answer[..end]).unwrap();
    stream
}

/// Returns an HTTP/2 frame (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [.., high, low] = payload.len().to_be_bytes();
    [&[0, high, low, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Returns the types of these HTTP/2 frames.
fn kinds(mut bytes: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    while let [high, middle, low, kind, _, _, _, _, _, rest @ ..] = bytes {
        kinds.push(*kind);
        let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
        bytes = rest.get(length..).unwrap_or_default();
    }
    kinds
}

/// Returns the number of open files of a process. Each connection is one.
fn files(server: &PortolanProcess) -> usize {
    fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap().count()
}

fn config(authority: &Path, versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
    builder(authority, versions).with_no_client_auth()
}

fn builder(
    authority: &Path,
    versions: &[&'static SupportedProtocolVersion],
) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    builder.with_root_certificates(roots)
}

#[test]
fn connections_without_credentials_take_little_and_give_it_back() {
    let secure = Secure::start();
    secure.hold("silent", 1000, connect);
    // An incomplete record stays in the kernel.
    secure.hold_unread("half a greeting", 1000, || {
        let mut stream = connect();
        stream.write_all(b"\x16\x03\x01").unwrap();
        stream
    });
    secure.hold_unread("a record that does not end", 300, || {
        let mut stream = connect();
        stream.write_all(b"\x16\x03\x01\x40\x00\x01\x00\xff\xff").unwrap();
        stream.write_all(&[0; 10_000]).unwrap();
        stream
    });
    secure.hold("a greeting that does not end", 300, || {
        let mut stream = connect();
        let [high, low] = u16::try_from(FIRST).unwrap().to_be_bytes();
        stream.write_all(&[0x16, 3, 1, high, low, 1, 0, 0xff, 0xff]).unwrap();
        stream.write_all(&[0; FIRST - 4]).unwrap();
        stream
    });
    let greeted = |rest: &[u8]| {
        let (mut stream, mut conn) = (connect(), secure.client(b"h2"));
        conn.write_tls(&mut stream).unwrap();
        stream.write_all(rest).unwrap();
        stream
    };
    secure.hold("half a handshake", 300, || greeted(b""));
    let part = |announced: usize, sent: usize| {
        let [high, low] = u16::try_from(announced).unwrap().to_be_bytes();
        [&[0x17, 3, 3, high, low][..], &vec![0; sent]].concat()
    };
    let (short, long) = (part(FIRST - 500, FIRST - 1000), part(1 << 14, FIRST - 1000));
    secure.hold_unread("a part of a record in the handshake", 300, || greeted(&short));
    secure.hold_long("a part of a long record in the handshake", 300, || greeted(&long));
    for (what, version) in [("TLS 1.3", &TLS13), ("TLS 1.2", &TLS12)] {
        let config = secure.certifying(&[version]);
        let part = format!("parts of a message in the handshake, {what}");
        secure.hold(&part, 300, || fragmented(&config));
        let mut config = ClientConfig::clone(&config);
        config.alpn_protocols = [vec![b"h2".to_vec()], vec![vec![b'x'; 250]; 5]].concat();
        let (config, part) = (Arc::new(config), format!("{part}, after a long greeting"));
        secure.hold_until(&part, 300, 300 * GREETED, || fragmented(&config), |_| secure.unread() == 0);
    }
    secure.hold("silent after the handshake", 300, || secure.secured(b"http/1.1"));
    secure.hold("silent after the handshake, HTTP/2", 300, || secure.secured(b"h2"));
    let secured = |rest: &[u8]| {
        let mut stream = secure.secured(b"http/1.1");
        stream.sock.write_all(rest).unwrap();
        stream
    };
    let (short, long) = (part(FIRST, FIRST - 1), part(1 << 14, FIRST));
    secure.hold_unread("a part of a record", 300, || secured(&short));
    secure.hold_long("a part of a long record", 300, || secured(&long));
}

#[test]
fn unfinished_heads_take_little_memory() {
    let secure = Secure::start();
    let begin = "GET /api HTTP/1.1\r\nhost: localhost\r\nx-a: ";
    secure.hold("a head begun", 300, || secure.said(b"http/1.1", begin.as_bytes()));
    let long = format!("{begin}{}", "x".repeat(FIRST));
    secure.hold("a head of 4 KB", 300, || secure.said(b"http/1.1", long.as_bytes()));
    secure.hold("the preface", 300, || secure.said(b"h2", PREFACE));
    let settled = [PREFACE, SETTINGS].concat();
    secure.hold("the preface and SETTINGS", 300, || secure.said(b"h2", &settled));
    let block = |length: usize| {
        let frames = (0_usize..).step_by(1000).take_while(|sent| *sent < length).enumerate();
        let frames = frames.map(|(number, _)| {
            // HEADERS, then CONTINUATION frames, none of which is the last.
            let kind = if number == 0 { 1 } else { 9 };
            [&[0, 3, 0xe8, kind, 0, 0, 0, 0, 1][..], &[0x82; 1000]].concat()
        });
        [settled.clone(), frames.flatten().collect()].concat()
    };
    let (short, most) = (block(1000), block(FIRST - 1000));
    secure.hold("a header block begun", 300, || secure.said(b"h2", &short));
    secure.hold("a header block of 4 KB", 300, || secure.said(b"h2", &most));
    // Only few connections at a time are read up to the limit of a head.
    let longest = format!("{begin}{}", "x".repeat(60 << 10));
    secure.hold_long("a head of 60 KB", 300, || secure.said(b"http/1.1", longest.as_bytes()));
    let longest = block(60 << 10);
    secure.hold_long("a header block of 60 KB", 300, || secure.said(b"h2", &longest));
}

#[test]
fn connections_without_credentials_end_with_the_first_response() {
    let secure = Secure::start();
    for (path, code) in [("/api", "401"), ("/livez", "200"), ("/version", "200")] {
        for credential in ["", "authorization: Bearer wrong\r\n"] {
            let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{credential}\r\n");
            secure.refused(&format!("{path} with {credential:?}"), 100, || {
                let mut stream = secure.said(b"http/1.1", request.as_bytes());
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                let (head, _) = answer.split_once("\r\n\r\n").unwrap();
                assert!(head.starts_with(&format!("HTTP/1.1 {code}")), "{head}");
                assert!(head.contains("connection: close"), "{head}");
                stream
            });
        }
    }
    let request = [PREFACE, SETTINGS, HEADERS].concat();
    secure.refused("HTTP/2", 100, || {
        let mut stream = secure.said(b"h2", &request);
        let mut answer = Vec::new();
        // A client that does not respond gets no close_notify.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.windows(9).any(|bytes| bytes == GOAWAY), "{answer:x?}");
        assert!(String::from_utf8_lossy(&answer).contains("\"code\":401"), "{answer:x?}");
        stream
    });
}

#[test]
fn a_head_that_http2_refuses_ends_the_connection_before_another_one_is_read() {
    const RST_STREAM: u8 = 3;
    const PING: u8 = 6;
    const END_OF_CONNECTION: u8 = 7;
    let secure = Secure::start();
    // A field that only HTTP/1 has: HTTP/2 resets the stream, and the connection could go on.
    let malformed = frame(1, 5, 1, &[&HEADERS[9..], b"\x00\x0aconnection\x01x"].concat());
    // Without its end. Each byte would become a field, with a hundred bytes of memory.
    let another = frame(1, 1, 3, &[0x90; 1500]);
    let heads = [PREFACE, SETTINGS, &malformed, &another].concat();
    secure.refused("a head that HTTP/2 refuses, and another one begun", 100, || {
        let mut stream = secure.said(b"h2", &heads);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let kinds = kinds(&answer);
        let end =
            kinds.iter().position(|kind| *kind == END_OF_CONNECTION).unwrap_or_else(|| panic!("{kinds:?}"));
        // A server that had kept the connection would have pinged its client first.
        assert!(kinds[..end].contains(&RST_STREAM) && !kinds[..end].contains(&PING), "{kinds:?}");
        stream
    });
}
