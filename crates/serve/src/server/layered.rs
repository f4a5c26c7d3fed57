//! Streams with a layer that changes how bytes are read or written.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How the bytes of a stream are read and written. By default they pass through unchanged.
pub(super) trait Layer<S>: Unpin {
    /// Reads from the stream below.
    fn poll_read(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>>
    where
        S: AsyncRead + Unpin,
    {
        Pin::new(stream).poll_read(context, buffer)
    }

    /// Writes to the stream below. Returns the number of bytes written.
    fn poll_write(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>>
    where
        S: AsyncWrite + Unpin,
    {
        poll_write(stream, context, slices)
    }
}

/// A stream with a layer over it.
#[derive(Debug)]
pub(super) struct Layered<S, L> {
    stream: S,
    layer: L,
}

impl<S, L> Layered<S, L> {
    pub(super) fn new(stream: S, layer: L) -> Self {
        Self { stream, layer }
    }

    pub(super) fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    pub(super) fn layer_mut(&mut self) -> &mut L {
        &mut self.layer
    }
}

/// Writes to a stream. Writes a single slice without vectored I/O, which not every stream supports.
pub(super) fn poll_write<S: AsyncWrite + Unpin>(
    stream: &mut S,
    context: &mut Context<'_>,
    slices: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    match slices {
        [slice] => Pin::new(stream).poll_write(context, slice),
        slices => Pin::new(stream).poll_write_vectored(context, slices),
    }
}

impl<S: AsyncRead + Unpin, L: Layer<S>> AsyncRead for Layered<S, L> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, layer } = self.get_mut();
        layer.poll_read(stream, context, buffer)
    }
}

impl<S: AsyncWrite + Unpin, L: Layer<S>> AsyncWrite for Layered<S, L> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { stream, layer } = self.get_mut();
        layer.poll_write(stream, context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
