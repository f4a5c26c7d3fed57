//! A connection until the first request's head is complete.
//!
//! HTTP allocates more memory than the bytes it has read, and keeps it for the life of the connection. So it starts
//! only when it can answer at once.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    time::timeout,
};

use super::head::FirstHead;
use super::http2;
use super::layered::{self, Layer, Layered};

/// Bytes that are read at a time. Most heads are shorter.
const PART: usize = 1 << 10;
/// Deadline for sending GOAWAY and closing the connection.
const FAREWELL: Duration = Duration::from_millis(200);

/// A connection whose first request has not arrived.
#[derive(Debug)]
pub(super) struct Beginning<S> {
    stream: S,
    is_http2: bool,
    head: FirstHead,
    first: Vec<u8>,
    /// True if the server's first frame has been sent. A client may wait for that frame.
    is_greeted: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Beginning<S> {
    pub(super) fn new(stream: S, is_http2: bool) -> Self {
        let head = FirstHead::new(is_http2);
        Self { stream, is_http2, head, first: Vec::new(), is_greeted: false }
    }

    /// Waits until the head is complete, or longer than `most` bytes, which HTTP refuses. Returns false if the peer
    /// closes the connection before that.
    pub(super) async fn wait(&mut self, most: usize) -> io::Result<bool> {
        while !self.head.is_complete(&self.first) && self.first.len() <= most {
            // Grows by one part. A vector would double its capacity.
            self.first.reserve_exact(PART);
            if self.stream.read_buf(&mut self.first).await? == 0 {
                return Ok(false);
            }
            if self.is_http2 && !self.is_greeted {
                self.is_greeted = true;
                self.stream.write_all(&http2::greeting()).await?;
                self.stream.flush().await?;
            }
        }
        Ok(true)
    }

    /// Returns the stream for HTTP. To HTTP it appears as if nothing had been read or written yet.
    pub(super) fn into_stream(self) -> Layered<S, Begun> {
        let hidden = if self.is_greeted { http2::greeting().len() } else { 0 };
        Layered::new(self.stream, Begun { first: Bytes::from(self.first), hidden })
    }

    /// Closes the connection. An HTTP/2 client gets a GOAWAY which says that none of its requests was processed, so
    /// it may repeat one that it has sent.
    pub(super) async fn close(mut self) {
        let _ = timeout(FAREWELL, async {
            if self.is_greeted {
                self.stream.write_all(&http2::FAREWELL).await?;
            }
            self.stream.shutdown().await
        })
        .await;
    }
}

/// A layer that replays the bytes that were read, and drops the bytes that were already written.
#[derive(Debug)]
pub(super) struct Begun {
    first: Bytes,
    /// Number of bytes that HTTP writes first and that have already been sent.
    hidden: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Layer<S> for Begun {
    fn poll_read(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(stream).poll_read(context, buffer);
        }
        let count = self.first.len().min(buffer.remaining());
        buffer.put_slice(self.first.get(..count).unwrap_or_default());
        self.first.advance(count);
        if self.first.is_empty() {
            self.first = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.hidden == 0 {
            return layered::poll_write(stream, context, slices);
        }
        let count =
            slices.iter().fold(0_usize, |sum, slice| sum.saturating_add(slice.len())).min(self.hidden);
        self.hidden -= count;
        Poll::Ready(Ok(count))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::io::duplex;

    use super::*;

    #[tokio::test]
    async fn http_reads_the_bytes_of_the_first_head_again() {
        let (near, mut far) = duplex(8192);
        let head = [b"GET / HTTP/1.1\r\na: ", &[b'7'; 3000][..], b"\r\n\r\nbody"].concat();
        far.write_all(&head).await.unwrap();
        let mut beginning = Beginning::new(near, false);
        assert!(beginning.wait(4096).await.unwrap());
        let mut begun = beginning.into_stream();
        far.write_all(b"end").await.unwrap();
        far.shutdown().await.unwrap();
        let mut all = Vec::new();
        begun.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, [&head[..], b"end"].concat());
        begun.write_all(b"answer").await.unwrap();
        let mut answer = [0; 6];
        far.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"answer");
    }

    #[tokio::test]
    async fn a_connection_may_end_or_go_on_without_end() {
        let (near, far) = duplex(64);
        drop(far);
        assert!(!Beginning::new(near, false).wait(4096).await.unwrap());
        let (near, mut far) = duplex(8192);
        far.write_all(&[b'x'; 5000]).await.unwrap();
        let mut beginning = Beginning::new(near, false);
        assert!(beginning.wait(4096).await.unwrap());
        assert!((4097..=5000).contains(&beginning.first.len()), "{}", beginning.first.len());
    }

    #[tokio::test]
    async fn http2_gets_one_settings_frame_and_a_goaway_at_the_end() {
        let (near, mut far) = duplex(8192);
        far.write_all(b"PRI").await.unwrap();
        let mut beginning = Beginning::new(near, true);
        // Sends the greeting and waits for more bytes.
        assert!(beginning.wait(4096).now_or_never().is_none());
        let greeting = http2::greeting();
        let mut said = vec![0; greeting.len()];
        far.read_exact(&mut said).await.unwrap();
        assert_eq!(said, greeting);
        beginning.close().await;
        let mut last = Vec::new();
        far.read_to_end(&mut last).await.unwrap();
        assert_eq!(last, http2::FAREWELL);

        let (near, mut far) = duplex(8192);
        far.write_all(b"GET").await.unwrap();
        let mut beginning = Beginning::new(near, true);
        assert!(beginning.wait(4096).await.unwrap());
        let mut begun = beginning.into_stream();
        for part in [&greeting[..5], &greeting[5..], b"more"] {
            begun.write_all(part).await.unwrap();
        }
        drop(begun);
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, [&greeting[..], b"more"].concat());
    }
}
