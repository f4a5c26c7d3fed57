//! Requests in UDP datagrams.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::task::JoinSet;

use super::{Rest, Server};
use crate::answer::{MAX_UDP, Transport};

/// Maximum number of datagrams that one wake-up reads, so that connections and waiting requests get their turn.
const BATCH: usize = 64;
/// Time to wait after a read that failed, so that a permanent failure does not use the processor.
const PAUSE: Duration = Duration::from_millis(10);
/// Largest request that is read; of a longer one the rest is lost and it is malformed. A request is a question of at
/// most 271 bytes and its options.
const MAX_REQUEST: usize = 4096;

/// Answers datagrams until the socket fails.
pub(super) async fn serve(server: &Arc<Server>, socket: Arc<UdpSocket>) -> io::Result<()> {
    let mut request = vec![0; MAX_REQUEST];
    let mut answer = Vec::with_capacity(MAX_UDP.into());
    let mut waiting = JoinSet::new();
    loop {
        socket.readable().await?;
        for _ in 0..BATCH {
            let (length, client) = match socket.try_recv_from(&mut request) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    tracing::debug!(%error, "a datagram cannot be read");
                    tokio::time::sleep(PAUSE).await;
                    break;
                }
            };
            let bytes = request.get(..length).unwrap_or_default();
            match server.ask_zone(bytes, Transport::Udp, &mut answer) {
                Rest::Done if answer.is_empty() => {}
                Rest::Done => {
                    // A full socket buffer loses the answer, as the network could; the client asks again.
                    if socket.try_send_to(&answer, client).is_err() {
                        server.metrics.dropped.fetch_add(1, Relaxed);
                    }
                }
                Rest::Waiting(verdict) => {
                    let (server, socket, bytes) = (Arc::clone(server), Arc::clone(&socket), bytes.to_vec());
                    waiting.spawn(async move {
                        let answer = server.ask_others(&bytes, Transport::Udp, verdict).await;
                        if answer.is_empty() || socket.send_to(&answer, client).await.is_err() {
                            server.metrics.dropped.fetch_add(1, Relaxed);
                        }
                    });
                }
            }
        }
        while waiting.try_join_next().is_some() {}
    }
}
