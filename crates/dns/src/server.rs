//! The server: sockets, connections and their limits.
//!
//! All work of a server is in the future that [`Server::serve`] returns; when it is dropped, so are all connections and
//! waiting requests. The zone is behind a lock that is held for the lookup and encoding of one answer, or for one
//! change, so a change is answered as soon as it is made.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, UdpSocket};

use crate::answer::{Transport, Verdict, respond};
use crate::forward::{ForwardError, Forwarder, PORT};
use crate::metrics::Metrics;
use crate::zone::Zone;

mod tcp;
#[cfg(test)]
mod tests;
mod turns;
mod udp;

use turns::Turns;

/// Attempts to find a port that is free for both transports.
const BIND_TRIES: usize = 20;

/// Limits of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of TCP connections. If there is one more, the oldest one is closed.
    pub connections: usize,
    /// Time after which a connection is closed if no whole request has arrived, and for sending one answer.
    pub idle: Duration,
    /// Maximum number of requests of one connection that wait for other servers. The connection is not read while
    /// there are so many.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 256, idle: Duration::from_secs(10), waiting: 16 }
    }
}

/// The sockets of one address, bound outside of a tokio runtime.
#[derive(Debug)]
pub struct Bound {
    udp: std::net::UdpSocket,
    tcp: std::net::TcpListener,
}

impl Bound {
    /// Binds both transports to one address and port. Port 0 selects a port that is free for both.
    pub fn new(address: SocketAddr) -> io::Result<Self> {
        let mut tries = if address.port() == 0 { BIND_TRIES } else { 1 };
        loop {
            let tcp = std::net::TcpListener::bind(address)?;
            match std::net::UdpSocket::bind(tcp.local_addr()?) {
                Ok(udp) => return Ok(Self { udp, tcp }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries > 1 => {
                    tries = tries.saturating_sub(1);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// The sockets of one address.
#[derive(Debug)]
pub struct Sockets {
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
}

impl Sockets {
    /// Binds both transports to one address and port. Port 0 selects a port that is free for both. Must be called in a
    /// tokio runtime with I/O.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::new(Bound::new(address)?)
    }

    /// Makes sockets of the current tokio runtime, which must have I/O.
    pub fn new(bound: Bound) -> io::Result<Self> {
        let Bound { udp, tcp } = bound;
        udp.set_nonblocking(true)?;
        tcp.set_nonblocking(true)?;
        Ok(Self { udp: Arc::new(UdpSocket::from_std(udp)?), tcp: TcpListener::from_std(tcp)? })
    }

    /// Returns the address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// A server.
#[derive(Debug)]
pub struct Server {
    zone: Arc<RwLock<Zone>>,
    forwarder: OnceLock<Forwarder>,
    limits: Limits,
    metrics: Metrics,
    turns: Turns,
}

/// What is left to do for a request after the zone was asked.
enum Rest {
    /// Nothing: the answer is in the buffer, or there is none.
    Done,
    /// Other servers must be asked. This makes the answer.
    Waiting(Verdict),
}

impl Server {
    /// Makes a server for a zone. `forwarder` is asked about other names; without one they are refused.
    pub fn new(zone: Arc<RwLock<Zone>>, forwarder: Option<Forwarder>, limits: Limits) -> Self {
        // Servers of one cluster, and each run, begin elsewhere.
        let turns = Turns::new(rand::random());
        let forwarder = forwarder.map(OnceLock::from).unwrap_or_default();
        Self { zone, forwarder, limits, metrics: Metrics::default(), turns }
    }

    /// Asks `forwarder` about other names from now on, if the server has none.
    pub fn forward_to(&self, forwarder: Forwarder) {
        // It fails if there is one.
        let _ = self.forwarder.set(forwarder);
    }

    /// Returns the counters.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Answers requests that arrive at `sockets`. Returns only if a socket fails for good. Must run in a tokio runtime
    /// with I/O and time.
    pub async fn serve(self: Arc<Self>, sockets: Sockets) -> io::Result<()> {
        let Sockets { udp, tcp } = sockets;
        tokio::try_join!(udp::serve(&self, udp), tcp::serve(&self, tcp)).map(|((), ())| ())
    }

    /// Answers from the zone. `out` has the answer, or is empty.
    fn ask_zone(&self, request: &[u8], transport: Transport, out: &mut Vec<u8>) -> Rest {
        let start = Instant::now();
        let turn = self.turns.next();
        let verdict = {
            let zone = self.zone.read().unwrap_or_else(PoisonError::into_inner);
            respond(&zone, request, transport, self.forwarder.get().is_some(), turn, out)
        };
        match verdict {
            Verdict::Ignored => {
                self.metrics.dropped.fetch_add(1, Relaxed);
                Rest::Done
            }
            Verdict::Answered(summary) => {
                self.metrics.took(start.elapsed());
                self.metrics.answered(transport, summary);
                Rest::Done
            }
            verdict => Rest::Waiting(verdict),
        }
    }

    /// Asks other servers and returns the answer for the client.
    async fn ask_others(&self, request: &[u8], transport: Transport, verdict: Verdict) -> Vec<u8> {
        let mut out = Vec::new();
        let own = self.own_addresses();
        let summary = match verdict {
            Verdict::Forward(forward) => {
                let answer = self.ask(|forwarder| forwarder.ask(request, transport, &own)).await;
                forward.finish(answer.as_deref(), &mut out)
            }
            Verdict::Chase(chase) => {
                let request = chase.request().unwrap_or_default();
                let answer = self.ask(|forwarder| forwarder.ask_whole(&request, &own)).await;
                chase.finish(answer.as_deref(), &mut out)
            }
            Verdict::Ignored | Verdict::Answered(_) => return out,
        };
        self.metrics.answered(transport, summary);
        out
    }

    /// Returns the addresses through which this server is reached as a Service, which may change at any time.
    fn own_addresses(&self) -> Vec<SocketAddr> {
        let zone = self.zone.read().unwrap_or_else(PoisonError::into_inner);
        zone.server_addresses().iter().map(|ip| SocketAddr::new(*ip, PORT)).collect()
    }

    async fn ask<'a, Asking>(&'a self, asking: impl FnOnce(&'a Forwarder) -> Asking) -> Option<Vec<u8>>
    where
        Asking: Future<Output = Result<Vec<u8>, ForwardError>>,
    {
        self.metrics.forwarded.fetch_add(1, Relaxed);
        let answer = asking(self.forwarder.get()?).await;
        if answer.is_err() {
            self.metrics.forward_failed.fetch_add(1, Relaxed);
        }
        answer.ok()
    }
}
