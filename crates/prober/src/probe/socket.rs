//! Connections that leave no socket in the state `TIME_WAIT`, which would last for a minute: ten thousand probes every
//! five seconds would leave 120,000 of them.
//!
//! A connection that the endpoint closed first is closed with a FIN, which leaves nothing on this node. Any other is
//! closed with a reset (`SO_LINGER` of zero), when the probe has its answer. The kubelet sets one second instead
//! (`pkg/probe/dialer_others.go`); on Linux `close` then waits for the peer, which would block the thread of all probes.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::{Failure, ProbeOutcome, of_answer, of_call};

/// Connects to an endpoint.
pub(super) async fn open(address: SocketAddr) -> Result<TcpStream, ProbeOutcome> {
    let socket = new(address)?;
    begin(&socket, address)?;
    established(socket, address).await
}

/// Creates a socket for an address of this family.
pub(super) fn new(address: SocketAddr) -> Result<OwnedFd, ProbeOutcome> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(|errno| of_call(&errno.into()))
}

/// Begins a connection.
pub(super) fn begin(socket: &OwnedFd, address: SocketAddr) -> Result<(), ProbeOutcome> {
    match rustix::net::connect(socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(errno) => Err(of_call(&errno.into())),
    }
}

/// Waits until a connection that has begun is established.
pub(super) async fn established(socket: OwnedFd, address: SocketAddr) -> Result<TcpStream, ProbeOutcome> {
    let connected = async {
        let stream = TcpStream::from_std(socket.into())?;
        stream.writable().await?;
        let error = stream.take_error()?;
        Ok((stream, error))
    };
    match connected.await.map_err(|error: io::Error| of_call(&error))? {
        (stream, None) => check(stream, address),
        (_, Some(error)) => Err(of_answer(&error)),
    }
}

/// Refuses a connection of a socket to itself.
fn check(stream: TcpStream, address: SocketAddr) -> Result<TcpStream, ProbeOutcome> {
    if stream.local_addr().is_ok_and(|own| is_itself(own, address)) {
        close(stream);
        return Err(ProbeOutcome::Failed(Failure::Refused));
    }
    Ok(stream)
}

/// Returns true if a socket is connected to itself. If nothing listens at a port of this node, the kernel may choose that
/// port for the probe.
pub(super) fn is_itself(own: SocketAddr, peer: SocketAddr) -> bool {
    own == peer
}

/// Closes a connection with a reset.
pub(super) fn close(stream: TcpStream) {
    // If this fails, the socket waits for a minute, which does no harm.
    let _ = stream.set_zero_linger();
    drop(stream);
}

/// A connection that is closed as the module says when it is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// True if the endpoint has closed its side.
    is_ended: bool,
}

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> Result<Self, ProbeOutcome> {
        Ok(Self { stream: open(address).await?, is_ended: false })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.is_ended {
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (before, room) = (buf.filled().len(), buf.remaining());
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.is_ended |= room > 0 && buf.filled().len() == before;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Does nothing: a FIN before the endpoint's would leave a socket in `TIME_WAIT`.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
