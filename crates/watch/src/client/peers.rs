//! Addresses of the client's TCP connections: those of the API server, or of a proxy before it.
//!
//! An address is in the set from before a connection to it is tried, so that rules can keep it reachable. It stays
//! while a connection to it is open, or while the last lookup of its name returned it.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tokio::sync::watch;
use tower::Service;

/// The addresses and ports to which clients connect. Clones share one set, and several clients may share it.
#[derive(Debug, Clone, Default)]
pub struct Peers(Arc<watch::Sender<BTreeMap<SocketAddr, usize>>>);

impl Peers {
    /// Returns the current addresses and ports.
    pub fn sockets(&self) -> BTreeSet<SocketAddr> {
        self.0.borrow().keys().copied().collect()
    }

    /// Returns a receiver of changes from the current set on.
    pub fn follow(&self) -> PeerChanges {
        PeerChanges(self.0.subscribe())
    }

    fn hold(&self, socket: SocketAddr) -> Held {
        self.0.send_if_modified(|held| {
            let count = held.entry(socket).or_default();
            *count = count.saturating_add(1);
            *count == 1
        });
        Held { peers: self.clone(), socket }
    }
}

/// Receives the changes of [`Peers`].
#[derive(Debug)]
pub struct PeerChanges(watch::Receiver<BTreeMap<SocketAddr, usize>>);

impl PeerChanges {
    /// Returns after the next change. Never returns once all clients and their [`Peers`] are dropped.
    pub async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// An address that stays in the set until this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    peers: Peers,
    socket: SocketAddr,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.peers.0.send_if_modified(|held| {
            let Some(count) = held.get_mut(&self.socket) else { return false };
            *count = count.saturating_sub(1);
            let gone = *count == 0;
            if gone {
                held.remove(&self.socket);
            }
            gone
        });
    }
}

/// The addresses of one client, which connects to one host and port.
#[derive(Debug)]
pub(super) struct Route {
    peers: Peers,
    port: u16,
    /// The addresses of the last lookup.
    found: Mutex<Vec<Held>>,
}

impl Route {
    pub(super) fn new(peers: Peers, port: u16) -> Self {
        Self { peers, port, found: Mutex::default() }
    }

    /// Replaces the addresses of the host.
    pub(super) fn found(&self, addresses: impl Iterator<Item = IpAddr>) {
        let new = addresses.map(|address| self.hold(SocketAddr::new(address, self.port))).collect();
        // The old addresses are dropped after the new ones are added, so that an address in both is never missing.
        drop(std::mem::replace(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner), new));
    }

    /// Holds the address and port of a connection.
    pub(super) fn hold(&self, socket: SocketAddr) -> Held {
        self.peers.hold(SocketAddr::new(socket.ip().to_canonical(), socket.port()))
    }
}

/// The system's resolver, which also stores each result in the route.
#[derive(Debug, Clone)]
pub(super) struct Resolver {
    system: GaiResolver,
    route: Arc<Route>,
}

impl Resolver {
    pub(super) fn new(route: Arc<Route>) -> Self {
        Self { system: GaiResolver::new(), route }
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.system.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (lookup, route) = (self.system.call(name), Arc::clone(&self.route));
        Box::pin(async move {
            let sockets: Vec<SocketAddr> = lookup.await?.collect();
            route.found(sockets.iter().map(SocketAddr::ip));
            Ok(sockets.into_iter())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(peers: &Peers) -> Vec<String> {
        peers.sockets().iter().map(ToString::to_string).collect()
    }

    fn find(route: &Route, addresses: &[&str]) {
        route.found(addresses.iter().map(|address| address.parse().unwrap()));
    }

    #[test]
    fn addresses_of_lookups_and_open_connections_are_recorded() {
        let peers = Peers::default();
        let route = Route::new(peers.clone(), 6443);
        assert!(peers.sockets().is_empty());
        find(&route, &["192.0.2.1", "::ffff:192.0.2.2", "2001:db8::1"]);
        assert_eq!(sockets(&peers), ["192.0.2.1:6443", "192.0.2.2:6443", "[2001:db8::1]:6443"]);
        // The name moves while a connection to the old address is open.
        let open = route.hold("192.0.2.1:6443".parse().unwrap());
        find(&route, &["192.0.2.3"]);
        assert_eq!(sockets(&peers), ["192.0.2.1:6443", "192.0.2.3:6443"]);
        drop(open);
        assert_eq!(sockets(&peers), ["192.0.2.3:6443"]);
        // Another client has its own route.
        let other = Route::new(peers.clone(), 443);
        find(&other, &["192.0.2.3"]);
        drop(route);
        assert_eq!(sockets(&peers), ["192.0.2.3:443"]);
        drop(other);
        assert!(peers.sockets().is_empty());
    }

    #[test]
    fn only_changes_are_reported() {
        let peers = Peers::default();
        let route = Route::new(peers.clone(), 6443);
        find(&route, &["192.0.2.1"]);
        let mut changes = peers.follow();
        find(&route, &["192.0.2.1"]);
        let open = route.hold("192.0.2.1:6443".parse().unwrap());
        drop(open);
        assert!(!changes.0.has_changed().unwrap(), "the same as before");
        find(&route, &["192.0.2.2"]);
        assert!(changes.0.has_changed().unwrap());
        assert_eq!(sockets(&peers), ["192.0.2.2:6443"]);
        changes.0.mark_unchanged();
    }
}
