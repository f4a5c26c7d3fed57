//! A stream whose first bytes have been read already.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Bytes that are read to see that the peer says something. What HTTP reads with is larger.
const FIRST: usize = 512;

/// See the module.
#[derive(Debug)]
pub(super) struct Begun<S> {
    first: Bytes,
    stream: S,
}

impl<S: AsyncRead + Unpin> Begun<S> {
    /// Waits for the first bytes; `None` if the peer ends the stream without any.
    pub(super) async fn wait(mut stream: S) -> io::Result<Option<Self>> {
        let mut buffer = [0; FIRST];
        let count = stream.read(&mut buffer).await?;
        let first = Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default());
        Ok((count > 0).then_some(Self { first, stream }))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let count = self.first.len().min(buffer.remaining());
        buffer.put_slice(self.first.get(..count).unwrap_or_default());
        self.first.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn nothing_is_lost_of_what_was_read_first() {
        let (near, mut far) = duplex(4096);
        far.write_all(&[7; 1000]).await.unwrap();
        let mut begun = Begun::wait(near).await.unwrap().unwrap();
        far.write_all(b"end").await.unwrap();
        drop(far);
        let mut all = Vec::new();
        begun.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, [&[7; 1000][..], b"end"].concat());
        let (near, far) = duplex(64);
        drop(far);
        assert!(Begun::wait(near).await.unwrap().is_none());
    }
}
