//! Where our connections go: what stands on the other end of TCP, which is the API server or a proxy before it.
//!
//! An address counts from before a connection to it is tried, so that it can be kept reachable, and for as long as
//! a connection to it is open or its name was last found to have it.

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

/// The addresses and ports that clients connect to. Clones see the same; several clients may share one.
#[derive(Debug, Clone, Default)]
pub struct Peers(Arc<watch::Sender<BTreeMap<SocketAddr, usize>>>);

impl Peers {
    /// What they are now.
    pub fn sockets(&self) -> BTreeSet<SocketAddr> {
        self.0.borrow().keys().copied().collect()
    }

    /// Tells when they become different from what they are now.
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

/// Changes of [`Peers`].
#[derive(Debug)]
pub struct PeerChanges(watch::Receiver<BTreeMap<SocketAddr, usize>>);

impl PeerChanges {
    /// Returns after the next change; never, once all clients and their [`Peers`] are gone.
    pub async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// An address that counts until this is dropped.
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

/// The way of one client, which connects to one host and port.
#[derive(Debug)]
pub(super) struct Route {
    peers: Peers,
    port: u16,
    /// What the host was last found to be.
    found: Mutex<Vec<Held>>,
}

impl Route {
    pub(super) fn new(peers: Peers, port: u16) -> Self {
        Self { peers, port, found: Mutex::default() }
    }

    /// The host is at these addresses.
    pub(super) fn found(&self, addresses: impl Iterator<Item = IpAddr>) {
        let new = addresses.map(|address| self.hold(SocketAddr::new(address, self.port))).collect();
        // The old ones go after the new ones have come: what is in both stays all the time.
        drop(std::mem::replace(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner), new));
    }

    /// A connection to this address and port.
    pub(super) fn hold(&self, socket: SocketAddr) -> Held {
        self.peers.hold(SocketAddr::new(socket.ip().to_canonical(), socket.port()))
    }
}

/// The system's resolver, whose answers are noted.
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
    fn what_is_found_and_what_is_open_counts() {
        let peers = Peers::default();
        let route = Route::new(peers.clone(), 6443);
        assert!(peers.sockets().is_empty());
        find(&route, &["192.0.2.1", "::ffff:192.0.2.2", "2001:db8::1"]);
        assert_eq!(sockets(&peers), ["192.0.2.1:6443", "192.0.2.2:6443", "[2001:db8::1]:6443"]);
        // The name moves; a connection to the old address is still open.
        let open = route.hold("192.0.2.1:6443".parse().unwrap());
        find(&route, &["192.0.2.3"]);
        assert_eq!(sockets(&peers), ["192.0.2.1:6443", "192.0.2.3:6443"]);
        drop(open);
        assert_eq!(sockets(&peers), ["192.0.2.3:6443"]);
        // Another client has a way of its own.
        let other = Route::new(peers.clone(), 443);
        find(&other, &["192.0.2.3"]);
        drop(route);
        assert_eq!(sockets(&peers), ["192.0.2.3:443"]);
        drop(other);
        assert!(peers.sockets().is_empty());
    }

    #[test]
    fn only_changes_are_told() {
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
