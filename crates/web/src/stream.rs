//! Connections over TCP and over Unix sockets as one type, so that both are served by the same code.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// The time in ms within which a TCP client must acknowledge a response (`TCP_USER_TIMEOUT`).
const UNREAD_MS: u32 = 30_000;

/// A listening socket.
#[derive(Clone, Copy, Debug)]
pub enum Listener<'a> {
    /// A TCP socket.
    Tcp(&'a TcpListener),
    /// A Unix socket.
    Unix(&'a UnixListener),
}

impl Listener<'_> {
    pub(crate) async fn accept(self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| Stream::Tcp(stream)),
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

/// An accepted connection.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Limits the time for which answers may stay unread.
    pub(crate) fn limit_unread(&self) {
        if let Self::Tcp(stream) = self
            && let Err(error) = sockopt::set_tcp_user_timeout(stream, UNREAD_MS)
        {
            tracing::debug!(%error, "no time limit for unread answers");
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
