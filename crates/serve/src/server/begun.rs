//! A connection until the first request's head is complete.
//!
//! HTTP allocates more memory than the bytes it has read, and keeps it for the life of the connection. So it starts
//! only when it can answer at once.
//!
//! HTTP/2 would begin further requests before it has answered the first. It also decodes a header block before the block's
//! end has come, and a byte of the block may take a hundred bytes of memory. So HTTP/2 gets its first head alone. What
//! follows waits until the client is accepted. If the client is refused, HTTP/2 gets only the frames by which a connection
//! ends.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    time::timeout,
};

use super::frames::ShortFrames;
use super::head::FirstHead;
use super::http2;
use super::layered::{self, Layer, Layered};
use super::ration::Shown;

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

    /// Returns the stream for HTTP. To HTTP it appears as if nothing had been read or written yet. `shown` tells when HTTP/2
    /// may read more than its first head.
    pub(super) fn into_stream(self, shown: Shown) -> Layered<S, Begun> {
        let hidden = if self.is_greeted { http2::greeting().len() } else { 0 };
        let mut first = Bytes::from(self.first);
        let after = self.head.http2_head(&first).map(|(length, stream)| {
            let rest = first.split_off(length.min(first.len())).to_vec();
            AfterHead { shown, rest, frames: ShortFrames::of(stream) }
        });
        Layered::new(self.stream, Begun { first, hidden, after })
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
    /// What follows the first head of HTTP/2; `None` if all of it may be read.
    after: Option<AfterHead>,
}

/// What follows the first head of HTTP/2, while the client is not accepted.
#[derive(Debug)]
struct AfterHead {
    shown: Shown,
    /// The bytes that were read with the head.
    rest: Vec<u8>,
    frames: ShortFrames,
}

impl AfterHead {
    /// Returns the frames that HTTP gets of what a refused client sends next. None are returned at the end of the stream.
    fn poll_frames<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Vec<u8>>> {
        let mut passed = self.frames.pass(&std::mem::take(&mut self.rest));
        while passed.is_empty() {
            let mut bytes = [0; PART];
            let mut part = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut *stream).poll_read(context, &mut part))?;
            if part.filled().is_empty() {
                break;
            }
            passed = self.frames.pass(part.filled());
        }
        Poll::Ready(Ok(passed))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Layer<S> for Begun {
    fn poll_read(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.first.is_empty() {
            let Some(after) = &mut self.after else {
                return Pin::new(stream).poll_read(context, buffer);
            };
            if ready!(after.shown.poll_decision(context)) {
                self.first = Bytes::from(std::mem::take(&mut after.rest));
                self.after = None;
            } else {
                self.first = Bytes::from(ready!(after.poll_frames(stream, context))?);
                if self.first.is_empty() {
                    return Poll::Ready(Ok(()));
                }
            }
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

    use super::super::{frames::frame, head::PREFACE};
    use super::*;

    #[tokio::test]
    async fn http_reads_the_bytes_of_the_first_head_again() {
        let (near, mut far) = duplex(8192);
        let head = [b"GET / HTTP/1.1\r\na: ", &[b'7'; 3000][..], b"\r\n\r\nbody"].concat();
        far.write_all(&head).await.unwrap();
        let mut beginning = Beginning::new(near, false);
        assert!(beginning.wait(4096).await.unwrap());
        let mut begun = beginning.into_stream(Shown::default());
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
        let mut begun = beginning.into_stream(Shown::default());
        for part in [&greeting[..5], &greeting[5..], b"more"] {
            begun.write_all(part).await.unwrap();
        }
        drop(begun);
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, [&greeting[..], b"more"].concat());
    }

    #[tokio::test]
    async fn http2_gets_its_first_head_alone_until_its_client_is_known() {
        let head = [PREFACE, &frame(4, 0, 0, b""), &frame(1, 4, 1, b"one")].concat();
        let (next, ping) = (frame(1, 0, 3, b"another"), frame(6, 1, 0, b"answered"));
        for is_accepted in [true, false] {
            let (near, mut far) = duplex(8192);
            far.write_all(&[&head[..], &next].concat()).await.unwrap();
            let (mut beginning, shown) = (Beginning::new(near, true), Shown::default());
            assert!(beginning.wait(4096).await.unwrap());
            let mut begun = beginning.into_stream(shown.clone());
            let mut first = vec![0; head.len()];
            begun.read_exact(&mut first).await.unwrap();
            assert_eq!(first, head);
            assert!(shown.waits_for_more().now_or_never().is_none());
            assert!(begun.read(&mut [0; 1]).now_or_never().is_none());
            assert!(shown.waits_for_more().now_or_never().is_some());
            if is_accepted {
                shown.accept();
            } else {
                shown.refuse();
            }
            far.write_all(&[&next[..], &ping].concat()).await.unwrap();
            far.shutdown().await.unwrap();
            let mut rest = Vec::new();
            begun.read_to_end(&mut rest).await.unwrap();
            let wanted = if is_accepted { [&next[..], &next, &ping].concat() } else { ping.clone() };
            assert_eq!(rest, wanted, "{is_accepted}");
        }
    }
}
