//! A TCP connection that knows whether its peer is a proxy that forwards single requests.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::client::peers::Held;

/// A TCP connection. Requests to a forwarding proxy contain the whole URL (RFC 9112, 3.2.2).
pub(in crate::client) struct Stream {
    tcp: TcpStream,
    forwarding: bool,
    /// Keeps the peer's address recorded while the connection is open.
    _peer: Option<Held>,
}

impl Stream {
    /// Wraps a connection. `forwarding`: true for a proxy that forwards requests, false for the API server and
    /// tunnels.
    pub(super) fn new(tcp: TokioIo<TcpStream>, forwarding: bool, peer: Option<Held>) -> TokioIo<Self> {
        TokioIo::new(Self { tcp: tcp.into_inner(), forwarding, _peer: peer })
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        self.tcp.connected().proxy(self.forwarding)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }
}
