//! The addresses of the server: listens at each of them, and says at which ones the server answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_dns::Server;
use portolan_dns::server::{Bound, Sockets};
use portolan_sock::routes;
use tokio::sync::watch;

/// Time from the failure of a socket to the next attempt to listen, and between two checks that this host has the
/// address.
const PAUSE: Duration = Duration::from_secs(1);

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
/// Instead, the kernel is asked for the route of packets to it. If it cannot be asked, such as when too many files are open,
/// nothing is known, and the address counts as present.
pub(super) fn is_local(address: SocketAddr) -> bool {
    routes::is_local(address.ip()).unwrap_or(true)
}
