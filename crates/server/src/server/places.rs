//! The places for long handshakes and heads.
//!
//! A client waits for one of its own places first, then for one of all. So it has as many in the queue of all as it may
//! hold, however many connections it has, and another client waits for these alone.

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

/// Places of all clients together.
pub(super) const PLACES: usize = 16;
/// Places of one client: one that does not use its place does not keep its next connection waiting.
pub(super) const PLACES_OF_ONE_CLIENT: usize = 2;

/// The places of all connections. Clones are of the same ones.
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
    /// Connections that hold one or wait for one.
    connections: usize,
}

/// A place, or the wait for one, of a client; its part of [`Places::clients`] is gone with the last of them.
struct Share {
    client: IpAddr,
    places: Places,
    own: Arc<Semaphore>,
}

/// A place of a connection; free again when dropped.
pub(super) struct Held {
    /// Ready when it has been held for as long as a place may be.
    pub(super) end: Pin<Box<Sleep>>,
    _permits: [OwnedSemaphorePermit; 2],
    _share: Share,
}

pub(super) type Waiting = Pin<Box<dyn Future<Output = io::Result<Held>> + Send>>;

impl Places {
    /// Each of them is held for at most `time`.
    pub(super) fn new(time: Duration) -> Self {
        Self { all: Arc::new(Semaphore::new(PLACES)), clients: Arc::default(), time }
    }

    /// Ready when the client has a place. An error does not come: the semaphores are not closed.
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
        // All places are taken by some clients: the next one waits for one place, not for the queue of the first.
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
