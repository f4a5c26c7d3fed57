//! A server in the background, and a client that shows what is sent. For tests of this crate and of its users.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "a test stops at the first surprise"
)]

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{Server, Wildcard, listen};

/// A response as received.
pub struct Got {
    /// The status code.
    pub status: u16,
    /// Header lines without `date` and `connection`, sorted.
    pub headers: Vec<String>,
    /// The body.
    pub body: String,
}

/// Sends one request on a new connection.
pub async fn request(address: SocketAddr, method: &str, path: &str) -> io::Result<Got> {
    request_with(address, method, path, &[], "").await
}

/// Like [`request`], with headers and a body.
pub async fn request_with(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &str,
) -> io::Result<Got> {
    let (head, body) = exchange(address, method, path, headers, body).await?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
    let shown = |line: &&str| !line.starts_with("Date:") && !line.starts_with("Connection:");
    let mut headers: Vec<String> = lines.filter(shown).map(str::to_owned).collect();
    headers.sort();
    let body = String::from_utf8(body).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(Got { status: status.ok_or(io::ErrorKind::InvalidData)?, headers, body })
}

/// Returns head and body of a response, unchanged.
pub async fn exchange(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &str,
) -> io::Result<(String, Vec<u8>)> {
    let mut stream = TcpStream::connect(address).await?;
    let length = format!("Content-Length: {}", body.len());
    let mut lines =
        vec![format!("{method} {path} HTTP/1.1"), "Host: test".into(), "Connection: close".into()];
    lines.extend(headers.iter().map(|&header| header.to_owned()));
    lines.extend(Some(length).filter(|_| !body.is_empty()));
    stream.write_all(format!("{}\r\n\r\n{body}", lines.join("\r\n")).as_bytes()).await?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await?;
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    Ok((head, bytes.split_off(end + 4)))
}

/// Runs a server in the background, and waits until it listens.
pub async fn start(server: Server) -> SocketAddr {
    let mut bound = server.bound();
    tokio::spawn(server.run());
    let address = tokio::time::timeout(Duration::from_secs(60), bound.wait_for(Option::is_some)).await;
    address.expect("it listens in time").expect("it runs").expect("just checked")
}

/// Returns the address of a free loopback port, which the kernel chooses.
pub fn loopback() -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)
}

/// Returns a port that is free in both families and below the kernel's ephemeral ports, so that no other test gets it by
/// chance.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = (std::process::id() % 12_000) as u16;
    let candidates = (0..1000).map(|_| 20_000 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000);
    let any = |port| SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    let free = |port: &u16| listen(any(*port), Wildcard::BothFamilies).is_ok();
    candidates.into_iter().find(free).expect("one in a thousand is free")
}

/// Returns a loopback port that is in use as long as the listener lives.
pub fn taken() -> (std::net::TcpListener, SocketAddr) {
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), free_port());
    (std::net::TcpListener::bind(address).expect("it was free"), address)
}
