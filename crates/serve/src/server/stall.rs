//! Disconnects clients that stop reading.

use std::{
    future::Future,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::AsyncWrite,
    time::{Sleep, sleep},
};

use super::layered::{self, Layer};

/// A layer whose writes fail when the peer has read nothing for `limit`. A stream with nothing to write never times
/// out.
#[derive(Debug)]
pub(super) struct StallGuard {
    limit: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl StallGuard {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, stalled: None }
    }
}

impl<S: AsyncWrite + Unpin> Layer<S> for StallGuard {
    fn poll_write(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = layered::poll_write(stream, context, slices);
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let limit = self.limit;
        let timer = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        match timer.as_mut().poll(context) {
            Poll::Ready(()) => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::super::layered::Layered;
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn a_peer_that_does_not_read_is_given_up() {
        block_on(async {
            let (near, _far) = duplex(8);
            let mut guarded = Layered::new(near, StallGuard::new(Duration::from_millis(20)));
            let error = guarded.write_all(&[0; 100]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn a_peer_that_reads_slowly_is_kept() {
        block_on(async {
            let (near, mut far) = duplex(8);
            let mut guarded = Layered::new(near, StallGuard::new(Duration::from_secs(5)));
            let writer = tokio::spawn(async move { guarded.write_all(&[7; 100]).await });
            let mut bytes = [0; 100];
            for byte in &mut bytes {
                *byte = far.read_u8().await.unwrap();
                tokio::task::yield_now().await;
            }
            writer.await.unwrap().unwrap();
            assert_eq!(bytes, [7; 100]);
        });
    }
}
