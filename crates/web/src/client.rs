//! A small client for commands that ask a server on this host. It blocks.
//!
//! It speaks HTTP/1.0, so that answers are neither in chunks nor compressed, and the connection ends with the answer.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// How long one attempt to connect may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the server may be silent.
const SILENCE: Duration = Duration::from_secs(30);
/// Bytes of the longest accepted answer.
const MAX_ANSWER: u64 = 64 * 1024 * 1024;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// Host and port, as in a URL.
    Tcp(String),
}

impl ServerAddress {
    /// Parses `http://HOST[:PORT]`, with an optional `/` at the end. IPv6 addresses are in brackets.
    ///
    /// # Errors
    /// The text is something else. The error says what to write.
    pub fn from_url(url: &str, default_port: u16) -> Result<Self, String> {
        let host = url.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        let is_host = |host: &&str| {
            let is_part = |c: char| c.is_ascii_alphanumeric() || "-._:[]%".contains(c);
            !host.is_empty() && host.chars().all(is_part)
        };
        let Some(host) = host.filter(is_host) else {
            return Err(format!("`{url}` is not a URL of the form http://HOST:PORT"));
        };
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
            && !host.ends_with(']');
        Ok(Self::Tcp(if has_port { host.to_owned() } else { format!("{host}:{default_port}") }))
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(host) => write!(f, "http://{host}"),
        }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The status code.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// Sends one request and returns the answer. `path` may have a query. The body is sent as JSON unless it is empty.
///
/// # Errors
/// There is no server ([`io::ErrorKind::NotFound`], [`io::ErrorKind::ConnectionRefused`]), it may not be asked
/// ([`io::ErrorKind::PermissionDenied`]), or it does not answer in time ([`io::ErrorKind::WouldBlock`],
/// [`io::ErrorKind::TimedOut`]) or completely ([`io::ErrorKind::InvalidData`]).
pub fn ask(place: &ServerAddress, method: &str, path: &str, body: &[u8]) -> io::Result<Received> {
    let (host, answer) = match place {
        ServerAddress::Unix(socket) => {
            let stream = connect_unix(socket, CONNECT)?;
            stream.set_read_timeout(Some(SILENCE))?;
            stream.set_write_timeout(Some(SILENCE))?;
            ("localhost", exchange(stream, method, path, "localhost", body)?)
        }
        ServerAddress::Tcp(host) => {
            let stream = connect_tcp(host, CONNECT)?;
            stream.set_read_timeout(Some(SILENCE))?;
            stream.set_write_timeout(Some(SILENCE))?;
            (host.as_str(), exchange(stream, method, path, host, body)?)
        }
    };
    received(&answer).ok_or_else(|| {
        let text = format!("{host} has not sent a complete HTTP answer");
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

/// Connects to a Unix socket. With a full backlog, the kernel waits as long as a send may take.
fn connect_unix(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(limit))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Connects to the first address of a host that answers. Each gets this time.
fn connect_tcp(host: &str, limit: Duration) -> io::Result<TcpStream> {
    let no_address = || io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    let mut result = Err(no_address());
    for address in host.to_socket_addrs()? {
        result = TcpStream::connect_timeout(&address, limit);
        if result.is_ok() {
            break;
        }
    }
    result
}

fn exchange(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    host: &str,
    body: &[u8],
) -> io::Result<Vec<u8>> {
    let of_body = match body.len() {
        0 => String::new(),
        length => format!("Content-Type: application/json\r\nContent-Length: {length}\r\n"),
    };
    let head = format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\n{of_body}\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Parses an answer; `None` if it is not a complete one.
fn received(answer: &[u8]) -> Option<Received> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(answer.get(..end)?).ok()?;
    let body = answer.get(end.checked_add(4)?..)?.to_vec();
    let mut lines = head.split("\r\n");
    let (protocol, rest) = lines.next()?.split_once(' ')?;
    let status = rest.split(' ').next()?.parse().ok()?;
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map(|(_, value)| value.trim().parse::<usize>());
    let is_complete = length.is_none_or(|length| length == Ok(body.len()));
    (protocol.starts_with("HTTP/1.") && is_complete).then_some(Received { status, body })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn urls_are_hosts_with_a_port() {
        let table = [
            ("http://127.0.0.1:10249", Some("127.0.0.1:10249")),
            ("http://node1/", Some("node1:10249")),
            ("http://[::1]", Some("[::1]:10249")),
            ("http://[::1]:80/", Some("[::1]:80")),
            ("https://node1", None),
            ("node1:80", None),
            ("http://", None),
            ("http://node1/metrics", None),
            ("http://a\r\nb", None),
        ];
        for (url, want) in table {
            assert_eq!(
                ServerAddress::from_url(url, 10249).ok(),
                want.map(|host| ServerAddress::Tcp(host.to_owned())),
                "{url}"
            );
        }
    }

    #[test]
    fn an_answer_that_is_cut_off_is_none() {
        let whole = b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        let want = Received { status: 200, body: b"hello".to_vec() };
        assert_eq!(received(whole), Some(want.clone()));
        assert_eq!(received(&whole[..whole.len() - 1]), None);
        assert_eq!(received(b"HTTP/1.1 200 OK\r\n\r\nhello"), Some(want));
        assert_eq!(received(b"SSH-2.0-x\r\n\r\n"), None);
    }

    /// Long enough to connect on this host.
    const SHORT: Duration = Duration::from_millis(200);
    /// More connections than wait on a socket with the smallest backlog.
    const MANY: usize = 16;

    /// Connects until an attempt fails, and returns its error.
    fn failure<T>(connect: impl Fn() -> io::Result<T>) -> Option<io::ErrorKind> {
        let mut open = Vec::new();
        (0..MANY).find_map(|_| connect().map(|stream| open.push(stream)).err()).map(|error| error.kind())
    }

    #[test]
    fn a_server_that_accepts_no_connection_is_not_waited_for_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let stopped = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&stopped, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&stopped, 0).unwrap();
        assert_eq!(failure(|| connect_unix(&path, SHORT)), Some(io::ErrorKind::WouldBlock));

        let stopped = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&stopped, &std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
        rustix::net::listen(&stopped, 0).unwrap();
        let listener = std::net::TcpListener::from(stopped);
        let host = listener.local_addr().unwrap().to_string();
        assert_eq!(failure(|| connect_tcp(&host, SHORT)), Some(io::ErrorKind::TimedOut));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes: Vec<u8>, tail: Vec<u8>) {
            let _ = received(&bytes);
            let _ = received(&[b"HTTP/1.1 ", &bytes[..], b"\r\n\r\n", &tail[..]].concat());
        }
    }
}
