//! A small HTTP client inside a namespace.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use portolan_testkit::Namespace;

/// Deadline of a connection: on the way to an address that does not exist yet, tests wait for it.
const CONNECTED_WITHIN: Duration = Duration::from_secs(5);
/// Deadline of each part of a response: most of it is reserve for a busy machine.
const WITHIN: Duration = Duration::from_secs(60);

/// An HTTP response.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Status line and headers, in lower case.
    pub head: String,
    /// The body.
    pub body: String,
}

/// Sends a GET request from inside a namespace. Returns `None` if there is no response.
pub fn get(namespace: &Namespace, at: SocketAddr, path: &str) -> Option<Answer> {
    namespace.run(|| get_here(at, path)).unwrap()
}

fn get_here(at: SocketAddr, path: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect_timeout(&at, CONNECTED_WITHIN).ok()?;
    stream.set_read_timeout(Some(WITHIN)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head: head.to_lowercase(), body: body.to_owned() })
}
