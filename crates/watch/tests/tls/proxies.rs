//! The API server behind proxies.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portolan_watch::{ClientSettings, Peers, connect};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::certificates::Authority;
use crate::home::{Home, failure, get};
use crate::server::{Server, head};

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// Accepts connections and passes them to `serve`, after a TLS handshake if asked.
async fn listen<F>(tls: Option<&Authority>, serve: impl Fn(Box<dyn Io>) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = tls.map(|authority| TlsAcceptor::from(authority.server(None)));
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let stream: Box<dyn Io> = match &acceptor {
                Some(acceptor) => Box::new(acceptor.accept(socket).await.unwrap()),
                None => Box::new(socket),
            };
            tokio::spawn(serve(stream));
        }
    });
    address
}

type Log = Arc<Mutex<Vec<String>>>;

/// Records line and authorization of a CONNECT and joins the two sides.
async fn tunnel(mut client: Box<dyn Io>, log: Log) {
    let (line, headers) = head(&mut client).await.unwrap();
    let authorization = headers.iter().find(|(name, _)| name == "proxy-authorization");
    let authorization = authorization.map_or("", |(_, value)| value.as_str());
    log.lock().unwrap().push(format!("{line} {authorization}"));
    let target = line.split(' ').nth(1).unwrap().to_owned();
    let mut server = TcpStream::connect(target).await.unwrap();
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    let _ = copy_bidirectional(&mut client, &mut server).await;
}

/// SOCKS 5 (RFC 1928) with a user name (RFC 1929).
async fn socks(mut client: Box<dyn Io>, log: Log) {
    let mut greeting = [0; 2];
    client.read_exact(&mut greeting).await.unwrap();
    let mut methods = vec![0; greeting[1].into()];
    client.read_exact(&mut methods).await.unwrap();
    assert!(methods.contains(&2), "{methods:?}");
    client.write_all(&[5, 2]).await.unwrap();
    let mut user = Vec::new();
    client.read_u8().await.unwrap();
    for _ in 0..2 {
        let mut text = vec![0; client.read_u8().await.unwrap().into()];
        client.read_exact(&mut text).await.unwrap();
        user.push(String::from_utf8(text).unwrap());
    }
    client.write_all(&[1, 0]).await.unwrap();
    let mut request = [0; 10];
    client.read_exact(&mut request).await.unwrap();
    assert_eq!(request[..4], [5, 1, 0, 1], "connect to an IPv4 address");
    let address: [u8; 4] = request[4..8].try_into().unwrap();
    let target = SocketAddr::from((address, u16::from_be_bytes([request[8], request[9]])));
    log.lock().unwrap().push(format!("{target} {}", user.join(":")));
    let mut server = TcpStream::connect(target).await.unwrap();
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
    let _ = copy_bidirectional(&mut client, &mut server).await;
}

/// Waits until no address is recorded.
async fn gone(peers: &Peers) {
    let mut changes = peers.follow();
    let gone = async {
        while !peers.sockets().is_empty() {
            changes.next().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.expect("connections end with their client");
}

#[tokio::test]
async fn addresses_of_connections_are_recorded() {
    let authority = Authority::new("ca");
    let server = Server::start(authority.server(None)).await;
    let home = Home::new();
    let mut settings = home.settings(&server, &authority, "", "");
    let peers = settings.peers.clone();
    let client = connect(&settings).await.unwrap();
    assert_eq!(get(&client, "/by-address").await, 200);
    assert_eq!(peers.sockets(), [server.address].into());
    // All addresses of a name are recorded before a connection is made, also those without a connection.
    settings.master = Some(format!("https://localhost:{}", server.address.port()));
    let named = connect(&settings).await.unwrap();
    let _ = get_or_fail(&named).await;
    let found = peers.sockets();
    assert!(found.contains(&server.address), "{found:?}");
    assert!(found.iter().all(|peer| peer.ip().is_loopback() && peer.port() == server.address.port()));
    drop((client, named));
    gone(&peers).await;
    // An address that cannot be reached is recorded, too.
    settings.master = Some("https://127.0.0.1:1".to_owned());
    let unreachable = connect(&settings).await.unwrap();
    assert!(get_or_fail(&unreachable).await.is_err());
    assert_eq!(peers.sockets(), ["127.0.0.1:1".parse().unwrap()].into());
}

async fn get_or_fail(client: &portolan_watch::Client) -> Result<String, String> {
    let request = http::Request::get("/named").body(Vec::new()).unwrap();
    client.request_text(request).await.map_err(|error| error.to_string())
}

async fn through(scheme: &str, address: SocketAddr, server: &Server, authority: &Authority) {
    let home = Home::new();
    let proxy = format!(", proxy-url: '{scheme}://me:p%40ss@{address}'");
    let settings = home.settings(server, authority, "", &proxy);
    let client = connect(&settings).await.unwrap();
    assert!(settings.peers.sockets().is_empty(), "nothing was asked for yet");
    assert_eq!(get(&client, "/through").await, 200);
    // The peer is the proxy.
    assert_eq!(settings.peers.sockets(), [address].into(), "{scheme}");
    drop(client);
    gone(&settings.peers).await;
}

#[tokio::test]
async fn http_and_https_proxies() {
    let authority = Authority::new("ca");
    let server = Server::start(authority.server(None)).await;
    for (scheme, tls) in [("http", None), ("https", Some(&authority))] {
        let log = Log::default();
        let shared = Arc::clone(&log);
        let proxy = listen(tls, move |stream| tunnel(stream, Arc::clone(&shared))).await;
        through(scheme, proxy, &server, &authority).await;
        let expected = format!("CONNECT {} HTTP/1.1 Basic bWU6cEBzcw==", server.address);
        assert_eq!(*log.lock().unwrap(), [expected], "{scheme}");
    }
    assert_eq!(server.requests_for("/through").len(), 2);
}

/// Records each request and answers in place of the API server.
async fn forward(mut client: Box<dyn Io>, log: Log) {
    while let Some((line, headers)) = head(&mut client).await {
        let header = |name| headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value);
        log.lock().unwrap().push(format!("{line} {} {}", header("host"), header("proxy-authorization")));
        client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await.unwrap();
    }
}

#[tokio::test]
async fn a_plain_api_server_is_forwarded_to() {
    let authority = Authority::new("ca");
    let unused = Server::start(authority.server(None)).await;
    for (scheme, tls) in [("http", None), ("https", Some(&authority))] {
        let log = Log::default();
        let shared = Arc::clone(&log);
        let address = listen(tls, move |stream| forward(stream, Arc::clone(&shared))).await;
        let home = Home::new();
        let proxy = format!(", proxy-url: '{scheme}://me:p%40ss@{address}'");
        let master = Some("http://api.test:8080".to_owned());
        let settings = ClientSettings { master, ..home.settings(&unused, &authority, "", &proxy) };
        let client = connect(&settings).await.unwrap();
        assert_eq!((get(&client, "/a").await, get(&client, "/b?c").await), (200, 200));
        let expected = ["a", "b?c"]
            .map(|path| format!("GET http://api.test:8080/{path} HTTP/1.1 api.test:8080 Basic bWU6cEBzcw=="));
        assert_eq!(*log.lock().unwrap(), expected, "{scheme}");
    }
}

#[tokio::test]
async fn a_socks_proxy() {
    let authority = Authority::new("ca");
    let server = Server::start(authority.server(None)).await;
    let log = Log::default();
    let shared = Arc::clone(&log);
    let proxy = listen(None, move |stream| socks(stream, Arc::clone(&shared))).await;
    through("socks5", proxy, &server, &authority).await;
    assert_eq!(*log.lock().unwrap(), [format!("{} me:p@ss", server.address)]);
}

#[tokio::test]
async fn a_proxy_that_refuses_is_named() {
    let authority = Authority::new("ca");
    let server = Server::start(authority.server(None)).await;
    let proxy = listen(None, |mut stream: Box<dyn Io>| async move {
        head(&mut stream).await.unwrap();
        stream.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await.unwrap();
    });
    let proxy = format!(", proxy-url: 'http://{}'", proxy.await);
    let home = Home::new();
    let client = connect(&home.settings(&server, &authority, "", &proxy)).await.unwrap();
    let error = failure(&client).await;
    assert!(error.contains("proxy authorization required"), "{error}");
    assert!(server.requests().is_empty());
}
