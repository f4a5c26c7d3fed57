//! The addresses of the server: listens at each of them, and says at which ones the server answers.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use portolan_dns::Server;
use portolan_dns::server::{Bound, Sockets};
use tokio::sync::watch;

/// Time from the failure of a socket to the next attempt to listen, and between two checks that this host has the
/// address.
const PAUSE: Duration = Duration::from_secs(1);

/// The kernel's IPv4 routes of the network namespace of this thread.
const LOCAL_ROUTES: &str = "/proc/thread-self/net/fib_trie";

/// The addresses at which the server answers now. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Answering(Arc<watch::Sender<Vec<SocketAddr>>>);

impl Answering {
    pub(super) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self(Arc::new(watch::Sender::new(addresses)))
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.0.subscribe()
    }

    pub(super) fn contains(&self, address: &SocketAddr) -> bool {
        self.0.borrow().contains(address)
    }

    fn set(&self, address: SocketAddr, is_answering: bool) {
        self.0.send_if_modified(|addresses| {
            let was_answering = addresses.contains(&address);
            if is_answering && !was_answering {
                addresses.push(address);
            }
            if !is_answering {
                addresses.retain(|other| *other != address);
            }
            was_answering != is_answering
        });
    }
}

/// Notes the end of a listener, however it ends.
struct Ended<'a>(&'a Answering, SocketAddr);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.set(self.1, false);
    }
}

/// Answers at one address. If a socket fails or the address is missing, listens again.
pub(super) async fn listen(
    server: Arc<Server>,
    address: SocketAddr,
    bound: Option<Bound>,
    answering: Answering,
) {
    let mut sockets = bound.map_or_else(|| Sockets::bind(address), Sockets::new);
    // An address may be missing for long. The log has one line about that.
    let mut known = None;
    loop {
        let result = match sockets {
            Ok(sockets) => {
                tracing::info!(%address, "answering DNS requests");
                known = None;
                let _ended = Ended(&answering, address);
                tokio::select! {
                    result = Arc::clone(&server).serve(sockets) => result,
                    never = check(address, &answering) => never,
                }
            }
            Err(error) => Err(error),
        };
        if let Err(error) = result
            && known != Some(error.kind())
        {
            tracing::error!(%address, %error, "DNS: cannot listen; will try again");
            known = Some(error.kind());
        }
        tokio::time::sleep(PAUSE).await;
        sockets = Sockets::bind(address);
    }
}

/// Checks again and again whether this host has the address: a virtual address may move to another host, and its sockets
/// do not fail then. Never returns.
async fn check(address: SocketAddr, answering: &Answering) -> std::io::Result<()> {
    loop {
        let is_local = is_local(address);
        if !is_local && answering.contains(&address) {
            tracing::warn!(%address, "DNS: this host does not have the address");
        }
        answering.set(address, is_local);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns true if this host has the address. That it can be bound does not say so, with `net.ipv4.ip_nonlocal_bind`.
/// Instead, the kernel is asked for the source address of packets to it, which is the same one if it is local. Nothing is
/// sent.
pub(super) fn is_local(address: SocketAddr) -> bool {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Without a socket, such as when too many files are open, nothing is known.
    let Ok(socket) = UdpSocket::bind((any, 0)) else { return true };
    match socket.connect(address).and_then(|()| socket.local_addr()) {
        // The source of packets to each address of 127.0.0.0/8 is 127.0.0.1.
        Ok(source) => source.ip() == address.ip() || address.ip().is_loopback() || is_secondary(address.ip()),
        // A filter may forbid it.
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    }
}

/// Returns true if the kernel's routes list an IPv4 address as local. The source of packets to an address is the first one of
/// its network on the interface, if there are several.
fn is_secondary(address: IpAddr) -> bool {
    let IpAddr::V4(address) = address else { return false };
    std::fs::read_to_string(LOCAL_ROUTES).is_ok_and(|routes| is_local_in(&routes, address))
}

/// Looks for `|-- 10.9.0.2` and the line `/32 host LOCAL` below it.
fn is_local_in(routes: &str, address: Ipv4Addr) -> bool {
    let mut last = None;
    routes.lines().any(|line| {
        if let Some((_, leaf)) = line.split_once("|-- ") {
            last = leaf.trim().parse().ok();
        }
        last == Some(address) && line.trim_start().starts_with("/32 host LOCAL")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_among_routes() {
        let routes = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.9.0.0\n        /24 link UNICAST\nLocal:\n     +-- 10.9.0.0/30 2 0 2\n        \
                      |-- 10.9.0.1\n           /32 host LOCAL\n        |-- 10.9.0.2\n           /32 host LOCAL\n     |-- 10.9.0.255\n        \
                      /32 link BROADCAST\n";
        let is_local = |text: &str| is_local_in(routes, text.parse().unwrap());
        assert!(is_local("10.9.0.1") && is_local("10.9.0.2"));
        assert!(!is_local("10.9.0.0") && !is_local("10.9.0.255") && !is_local("10.9.0.3"));
    }
}
