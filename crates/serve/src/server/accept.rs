//! Limits on open connections: for all clients together and for each client, so that no client takes them all.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::limits::Limits;
use super::requests::Requests;

/// Pause after an error of `accept`. Mostly there are too many open files, and some may be closed in the meantime.
const PAUSE: Duration = Duration::from_millis(100);

/// Counts the open connections.
#[derive(Debug, Clone)]
pub(super) struct Clients {
    room: Arc<Semaphore>,
    share: usize,
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
    requests: Arc<Requests>,
}

/// The slot of one connection. Dropping it frees the slot.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    client: IpAddr,
    clients: Clients,
    _permit: OwnedSemaphorePermit,
}

impl Clients {
    pub(super) fn new(limits: &Limits, requests: Arc<Requests>) -> Self {
        let room = Arc::new(Semaphore::new(limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
        Self { room, share: limits.connections_of_one_client, counts: Arc::default(), requests }
    }

    /// Accepts the next connection that is within the limits. Does not accept while all slots are taken.
    pub(super) async fn accept(&self, listener: &TcpListener) -> (TcpStream, ConnectionPermit) {
        loop {
            let Ok(permit) = Arc::clone(&self.room).acquire_owned().await else {
                // The semaphore is never closed.
                std::future::pending().await
            };
            match listener.accept().await {
                Ok((stream, address)) => {
                    if let Some(place) = self.admit(address, permit) {
                        return (stream, place);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn admit(&self, address: SocketAddr, permit: OwnedSemaphorePermit) -> Option<ConnectionPermit> {
        let client = client(address.ip());
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(client).or_default();
        if *count >= self.share {
            // Logs the first of every thousand refusals, so that a flood does not fill the log.
            if self.requests.connections_refused.fetch_add(1, Relaxed).is_multiple_of(1000) {
                tracing::warn!(%client, connections = *count, "connection closed: the client has too many");
            }
            return None;
        }
        *count += 1;
        self.requests.connections.fetch_add(1, Relaxed);
        Some(ConnectionPermit { client, clients: self.clone(), _permit: permit })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.clients.requests.connections.fetch_sub(1, Relaxed);
        let mut counts = self.clients.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.client) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}

/// Returns the address by which a client is counted: an IPv4 address, or the /64 of an IPv6 address, because a host
/// chooses its addresses freely within its /64.
pub(super) fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            Ipv6Addr::from_bits(address.to_bits() & (!0 << 64)).into()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients() {
        let of = |text: &str| client(text.parse().unwrap()).to_string();
        assert_eq!(of("192.0.2.1"), "192.0.2.1");
        assert_eq!(of("::ffff:192.0.2.1"), "192.0.2.1");
        assert_eq!((of("::1"), of("2001:db8:0:1:2:3:4:5")), ("::1".to_owned(), "2001:db8:0:1::".to_owned()));
    }

    #[test]
    fn a_place_is_free_again_when_dropped() {
        let limits = Limits { connections: 3, connections_of_one_client: 1, ..Limits::default() };
        let clients = Clients::new(&limits, Arc::default());
        let admit = |text: &str| {
            let permit = Arc::clone(&clients.room).try_acquire_owned().unwrap();
            clients.admit(text.parse().unwrap(), permit)
        };
        let first = admit("192.0.2.1:1000");
        assert!(first.is_some() && admit("192.0.2.1:1001").is_none() && admit("192.0.2.2:1000").is_some());
        drop(first);
        assert!(admit("192.0.2.1:1002").is_some());
        assert!(clients.counts.lock().unwrap().is_empty());
        let numbers = &clients.requests;
        assert_eq!((numbers.connections.load(Relaxed), numbers.connections_refused.load(Relaxed)), (0, 1));
        assert_eq!(clients.room.available_permits(), 3);
    }
}
