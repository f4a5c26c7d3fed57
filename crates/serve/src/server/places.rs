//! Places for long handshakes and heads of clients that have not authenticated.
//!
//! A connection first waits for one of its client's own places, then for one of the common places. So a client has at
//! most two connections in the common queue, however many connections it has. Other clients wait for these two only.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};

/// Number of places for all clients together.
pub(super) const PLACES: usize = 16;
/// Number of places for one client. With two, an unused place does not block the client's next connection.
pub(super) const PLACES_OF_ONE_CLIENT: usize = 2;

/// The places of all connections. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Places {
    pub(super) all: Arc<Semaphore>,
    clients: Arc<Mutex<HashMap<IpAddr, Own>>>,
    time: Duration,
}

/// The places of one client.
#[derive(Debug)]
struct Own {
    places: Arc<Semaphore>,
    /// Number of connections that hold a place or wait for one.
    connections: usize,
}

/// A client's place, or its wait for one. When the last of them is dropped, the client's entry in [`Places::clients`]
/// is removed.
struct Share {
    client: IpAddr,
    places: Places,
    own: Arc<Semaphore>,
}

/// A place held by a connection. Dropping it frees the place.
pub(super) struct Held {
    /// Completes when the place has been held for the maximum time.
    pub(super) end: Pin<Box<Sleep>>,
    _permits: [OwnedSemaphorePermit; 2],
    _share: Share,
}

pub(super) type Waiting = Pin<Box<dyn Future<Output = io::Result<Held>> + Send>>;

impl Places {
    /// Creates the places. Each may be held for at most `time`.
    pub(super) fn new(time: Duration) -> Self {
        Self { all: Arc::new(Semaphore::new(PLACES)), clients: Arc::default(), time }
    }

    /// Waits for a place for the client. Never fails, because the semaphores are not closed.
    pub(super) fn wait(&self, client: IpAddr) -> Waiting {
        let share = self.share(client);
        Box::pin(async move {
            let own = Arc::clone(&share.own).acquire_owned().await.map_err(io::Error::other)?;
            let all = Arc::clone(&share.places.all).acquire_owned().await.map_err(io::Error::other)?;
            let end = Box::pin(sleep(share.places.time));
            Ok(Held { end, _permits: [own, all], _share: share })
        })
    }

    fn share(&self, client: IpAddr) -> Share {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let own = clients.entry(client).or_insert_with(|| Own {
            places: Arc::new(Semaphore::new(PLACES_OF_ONE_CLIENT)),
            connections: 0,
        });
        own.connections = own.connections.saturating_add(1);
        Share { client, places: self.clone(), own: Arc::clone(&own.places) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut clients = self.places.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = clients.get_mut(&self.client) {
            own.connections = own.connections.saturating_sub(1);
            if own.connections == 0 {
                clients.remove(&self.client);
            }
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Held").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures::FutureExt as _;

    use super::*;

    fn client(number: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, number).into()
    }

    #[tokio::test]
    async fn a_client_waits_for_its_own_places_first() {
        let places = Places::new(Duration::MAX);
        let mut many: Vec<_> = (0..1000).map(|_| places.wait(client(1))).collect();
        let held: Vec<_> = many.iter_mut().filter_map(futures::FutureExt::now_or_never).collect();
        assert_eq!(
            (held.len(), places.all.available_permits()),
            (PLACES_OF_ONE_CLIENT, PLACES - PLACES_OF_ONE_CLIENT)
        );
        // All places are taken by several clients. The next client waits for one place, not behind the queue of the
        // first client.
        let others: Vec<_> = (2..9).flat_map(|number| [client(number); PLACES_OF_ONE_CLIENT]).collect();
        let mut others: Vec<_> =
            others.into_iter().map(|client| places.wait(client).now_or_never().unwrap()).collect();
        let mut next = places.wait(client(99));
        assert!((&mut next).now_or_never().is_none());
        others.pop();
        assert!(next.now_or_never().is_some());
        drop((held, many, others));
        assert!(places.clients.lock().unwrap().is_empty());
        assert_eq!(places.all.available_permits(), PLACES);
    }
}
