//! The mode that a running proxy answers.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::facts::Mode;

/// Where kube-proxy and Portolan answer with their mode if their configuration names no other `metricsBindAddress`.
/// With an IPv6 `bindAddress` it is the second one.
const METRICS: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10249),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 10249),
];
const REQUEST: &[u8] = b"GET /proxyMode HTTP/1.0\r\nHost: localhost\r\n\r\n";
/// How long the connection may take, and the answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// Largest answer that is read, in bytes.
const LARGEST: usize = 4096;

/// Returns the mode of the proxy in the network namespace of this thread. `None` if it does not say.
pub(super) fn answered() -> Option<Mode> {
    METRICS.iter().find_map(ask)
}

fn ask(at: &SocketAddr) -> Option<Mode> {
    let mut stream = TcpStream::connect_timeout(at, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(REQUEST).ok()?;
    let mut answer = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    let mut part = [0; 1024];
    while answer.len() < LARGEST && Instant::now() < deadline {
        match stream.read(&mut part).ok()? {
            0 => break,
            length => answer.extend_from_slice(part.get(..length)?),
        }
    }
    read(&String::from_utf8_lossy(&answer))
}

/// Returns the mode in an answer of HTTP.
fn read(answer: &str) -> Option<Mode> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut status = head.split(' ');
    let is_http = status.next()?.starts_with("HTTP/1.");
    (is_http && status.next()? == "200").then(|| Mode::named(body.trim())).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_proxies() {
        let answer =
            |status: &str, body: &str| format!("HTTP/1.0 {status}\r\nContent-Type: text/plain\r\n\r\n{body}");
        assert_eq!(read(&answer("200 OK", "userspace")), Some(Mode::Userspace));
        assert_eq!(read(&answer("200 OK", "iptables\n")), Some(Mode::Iptables));
        assert_eq!(read(&answer("404 Not Found", "iptables")), None);
        assert_eq!(read(&answer("200 OK", "kernelspace")), None);
        assert_eq!(read("SSH-2.0-OpenSSH_9.2\r\n"), None);
        assert_eq!(read(""), None);
    }
}
