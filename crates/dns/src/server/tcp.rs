//! Requests over TCP connections, several of which a client may send before the first answer.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use super::{Rest, Server};
use crate::answer::Transport;

/// Time to wait after a connection could not be accepted, for example because there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Largest request that is read. A connection with a longer one is closed: its client is no resolver.
const MAX_REQUEST: usize = 4096;
/// Bytes of the length before each message.
const PREFIX: usize = 2;

/// Accepts connections until the listener fails. If there are too many, the oldest one is closed.
pub(super) async fn serve(server: &Arc<Server>, listener: TcpListener) -> io::Result<()> {
    let mut tasks = JoinSet::new();
    let mut order = VecDeque::<AbortHandle>::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    order.retain(|task| !task.is_finished());
                    while order.len() >= server.limits.connections.max(1) {
                        let Some(oldest) = order.pop_front() else { break };
                        oldest.abort();
                        server.metrics.connections_closed.fetch_add(1, Relaxed);
                    }
                    order.push_back(tasks.spawn(connection(Open::new(server), stream)));
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection cannot be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// Counts a connection while it is open.
struct Open(Arc<Server>);

impl Open {
    fn new(server: &Arc<Server>) -> Self {
        server.metrics.connections.fetch_add(1, Relaxed);
        Self(Arc::clone(server))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.metrics.connections.fetch_sub(1, Relaxed);
    }
}

async fn connection(open: Open, stream: TcpStream) {
    let server = &open.0;
    // Answers are small, and a client that sends one request at a time waits for each.
    let _ = stream.set_nodelay(true);
    let (input, output) = stream.into_split();
    if let Err(error) = exchange(server, Requests::new(input), output).await {
        tracing::debug!(%error, "a DNS connection ends");
    }
}

/// Answers the requests of a connection. Answers of the zone do not wait for those of other servers.
async fn exchange(
    server: &Arc<Server>,
    mut requests: Requests,
    mut output: OwnedWriteHalf,
) -> io::Result<()> {
    let idle = server.limits.idle;
    let mut waiting = JoinSet::<Vec<u8>>::new();
    let mut answer = Vec::new();
    let mut deadline = Instant::now() + idle;
    let mut ended = false;
    loop {
        tokio::select! {
            request = requests.next(), if !ended && waiting.len() < server.limits.waiting.max(1) => {
                deadline = Instant::now() + idle;
                match request? {
                    None => ended = true,
                    Some(request) => match server.ask_zone(&request, Transport::Tcp, &mut answer) {
                        Rest::Done => send(&mut output, &answer, idle).await?,
                        Rest::Waiting(verdict) => {
                            let server = Arc::clone(server);
                            waiting.spawn(async move {
                                server.ask_others(&request, Transport::Tcp, verdict).await
                            });
                        }
                    },
                }
            }
            Some(answer) = waiting.join_next() => {
                send(&mut output, &answer.unwrap_or_default(), idle).await?;
                deadline = Instant::now() + idle;
            }
            () = sleep_until(deadline), if waiting.is_empty() => return Ok(()),
        }
        if ended && waiting.is_empty() {
            return Ok(());
        }
    }
}

/// Sends an answer. A message without content, which is no answer, is left out.
async fn send(output: &mut OwnedWriteHalf, answer: &[u8], idle: Duration) -> io::Result<()> {
    let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
    if length == 0 {
        return Ok(());
    }
    let frame = [&length.to_be_bytes(), answer].concat();
    timeout(idle, output.write_all(&frame)).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// The requests that arrive on a connection.
struct Requests {
    input: OwnedReadHalf,
    /// What has arrived and is no whole request.
    buffer: Vec<u8>,
}

impl Requests {
    fn new(input: OwnedReadHalf) -> Self {
        Self { input, buffer: Vec::new() }
    }

    /// Returns the next request, or `None` at the end. If the future is dropped, nothing is lost.
    async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(request) = self.take()? {
                return Ok(Some(request));
            }
            if self.input.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Takes the first request out of the buffer, if it has arrived as a whole.
    fn take(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(prefix) = self.buffer.first_chunk() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes(*prefix));
        if length > MAX_REQUEST {
            return Err(io::Error::other("the request is too long"));
        }
        let end = length.saturating_add(PREFIX);
        let Some(request) = self.buffer.get(PREFIX..end) else { return Ok(None) };
        let request = request.to_vec();
        self.buffer.drain(..end);
        Ok(Some(request))
    }
}
