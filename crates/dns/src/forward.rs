//! Asks other servers about names that are not the cluster's.
//!
//! Each request has its own socket, so its source port is chosen by the kernel at random, and a random id. Only an
//! answer with this id and this question, from the server that was asked, is taken. If a server does not answer in
//! time, or answers that it cannot help, the next one is asked; later requests begin with the server that helped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use crate::answer::{Transport, answers_it};

mod resolv_conf;
#[cfg(test)]
mod tests;

pub use resolv_conf::ResolvConf;

/// Port of DNS servers.
pub const PORT: u16 = 53;
/// Time that one server has for its answer.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of requests that wait for other servers.
pub const MAX_WAITING: usize = 512;
/// Largest datagram that is read; a longer one is taken as truncated. Clients ask for 4096 bytes at most in practice.
const MAX_DATAGRAM: usize = 4096;
/// Response codes with which a server says that it cannot help: SERVFAIL, NOTIMP and REFUSED.
const NO_HELP: [u8; 3] = [2, 4, 5];
/// TC in the third byte of a message.
const TRUNCATED: u8 = 0x02;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// [`MAX_WAITING`] requests wait already.
    #[error("too many requests wait for other servers")]
    Busy,
    /// No server answered.
    #[error("no server answers")]
    Unanswered,
}

/// The other servers.
#[derive(Debug)]
pub struct Forwarder {
    servers: Box<[SocketAddr]>,
    patience: Duration,
    waiting: Semaphore,
    /// Number of the server that helped last.
    preferred: AtomicUsize,
}

impl Forwarder {
    /// Makes a forwarder to `servers`, each of which has `patience` for its answer.
    pub fn new(servers: impl IntoIterator<Item = SocketAddr>, patience: Duration) -> Self {
        Self {
            servers: servers.into_iter().collect(),
            patience,
            waiting: Semaphore::new(MAX_WAITING),
            preferred: AtomicUsize::new(0),
        }
    }

    /// Returns the servers.
    pub fn servers(&self) -> &[SocketAddr] {
        &self.servers
    }

    /// Asks the servers besides `own`, and returns the answer of the first one that helps, with a random id. If none helps,
    /// returns the last answer that says so. `own` are the addresses of the server that asks: it must not ask itself.
    pub async fn ask(
        &self,
        request: &[u8],
        transport: Transport,
        own: &[SocketAddr],
    ) -> Result<Vec<u8>, ForwardError> {
        let Ok(_place) = self.waiting.try_acquire() else { return Err(ForwardError::Busy) };
        let first = self.preferred.load(Relaxed);
        let mut unhelpful = None;
        for step in 0..self.servers.len() {
            let index = first.wrapping_add(step).checked_rem(self.servers.len()).unwrap_or_default();
            let Some(server) = self.servers.get(index) else { break };
            if own.contains(server) {
                continue;
            }
            let mut request = request.to_vec();
            if let Some(id) = request.first_chunk_mut() {
                *id = rand::random::<u16>().to_be_bytes();
            }
            let answer = match transport {
                Transport::Udp => tokio::time::timeout(self.patience, ask_udp(*server, &request)).await,
                Transport::Tcp => tokio::time::timeout(self.patience, ask_tcp(*server, &request)).await,
            };
            match answer {
                Ok(Ok(answer)) if helps(&answer) => {
                    self.preferred.store(index, Relaxed);
                    return Ok(answer);
                }
                Ok(Ok(answer)) => unhelpful = Some(answer),
                Ok(Err(error)) => tracing::debug!(%server, %error, "a DNS server cannot be asked"),
                Err(_) => tracing::debug!(%server, "a DNS server does not answer"),
            }
        }
        unhelpful.ok_or(ForwardError::Unanswered)
    }

    /// Asks over UDP, and over TCP if the answer does not fit into a datagram.
    pub async fn ask_whole(&self, request: &[u8], own: &[SocketAddr]) -> Result<Vec<u8>, ForwardError> {
        let answer = self.ask(request, Transport::Udp, own).await?;
        if answer.get(2).is_some_and(|flags| flags & TRUNCATED != 0) {
            return self.ask(request, Transport::Tcp, own).await.or(Ok(answer));
        }
        Ok(answer)
    }
}

fn helps(answer: &[u8]) -> bool {
    answer.get(3).is_some_and(|flags| !NO_HELP.contains(&(flags & 0x0f)))
}

async fn ask_udp(server: SocketAddr, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    // The kernel then passes on datagrams of this server only.
    socket.connect(server).await?;
    socket.send(request).await?;
    let mut answer = vec![0; MAX_DATAGRAM];
    loop {
        let length = socket.recv(&mut answer).await?;
        let Some(received) = answer.get(..length) else { continue };
        if !answers_it(request, received) {
            continue;
        }
        if length == MAX_DATAGRAM
            && let Some(flags) = answer.get_mut(2)
        {
            *flags |= TRUNCATED;
        }
        answer.truncate(length);
        return Ok(answer);
    }
}

async fn ask_tcp(server: SocketAddr, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let length = u16::try_from(request.len()).map_err(std::io::Error::other)?;
    let mut stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    stream.write_all(&[&length.to_be_bytes(), request].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; length.into()];
    stream.read_exact(&mut answer).await?;
    if answers_it(request, &answer) {
        Ok(answer)
    } else {
        Err(std::io::Error::other("the answer is of another request"))
    }
}
