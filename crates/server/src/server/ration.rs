//! What a client may send before it has shown who it is.
//!
//! Each connection takes memory for what has come and cannot be used yet: parts of TLS messages and of heads. A few
//! KiB are each connection's own. For more it needs one of a few places, and is not read until there is one.

use std::{
    fmt,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, ReadBuf},
    sync::{OwnedSemaphorePermit, Semaphore},
};

use super::layered::Layer;

/// Bytes that a client may send for its handshake without a place. With a certificate it sends 1 to 4 KiB.
pub(super) const HANDSHAKE: usize = 4 << 10;
/// Bytes that it may send for its first request without a place.
pub(super) const FIRST_REQUEST: usize = 4 << 10;
/// Bytes that it may send with a place: a handshake as long as TLS takes it, or the longest head, in small pieces.
const LONG: usize = 96 << 10;
/// Connections at a time that may send so much.
pub(super) const PLACES: usize = 16;
/// Bytes that are read at a time of what follows a refused request.
const REST: usize = 4 << 10;

/// How far the client of a connection has shown who it is. Clones are of the same connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Shown(Arc<AtomicU8>);

const NOTHING: u8 = 0;
const REFUSED: u8 = 1;
const IDENTITY: u8 = 2;

impl Shown {
    /// A request of it had a credential that is accepted, or none is needed.
    pub(super) fn accept(&self) {
        self.0.store(IDENTITY, Relaxed);
    }

    /// It was given an answer, which is the last one. Does nothing after [`Self::accept`].
    pub(super) fn refuse(&self) {
        let _ = self.0.compare_exchange(NOTHING, REFUSED, Relaxed, Relaxed);
    }

    pub(super) fn is_accepted(&self) -> bool {
        self.0.load(Relaxed) == IDENTITY
    }
}

/// The places for long handshakes and heads, of all connections.
#[derive(Debug, Clone)]
pub(super) struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(PLACES)))
    }
}

/// A layer that reads from a client as much as it may send.
#[derive(Debug)]
pub(super) struct Ration {
    shown: Shown,
    places: Places,
    place: Place,
    left: usize,
}

enum Place {
    None,
    Waiting(Pin<Box<dyn Future<Output = io::Result<OwnedSemaphorePermit>> + Send>>),
    Held(#[expect(dead_code, reason = "free when dropped")] OwnedSemaphorePermit),
}

impl Ration {
    pub(super) fn new(places: Places, shown: Shown) -> Self {
        Self { shown, places, place: Place::None, left: HANDSHAKE }
    }

    /// The handshake is done: what it took is free again, but for what a place was needed for.
    pub(super) fn begin_first_request(&mut self) {
        if matches!(self.place, Place::None) {
            self.left = FIRST_REQUEST;
        }
    }

    /// Ready when there is something left to read.
    fn poll_place(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.left == 0 {
            match &mut self.place {
                Place::None => {
                    let places = Arc::clone(&self.places.0);
                    self.place = Place::Waiting(Box::pin(async move {
                        places.acquire_owned().await.map_err(io::Error::other)
                    }));
                }
                Place::Waiting(waiting) => {
                    let place = ready!(waiting.as_mut().poll(context))?;
                    self.place = Place::Held(place);
                    self.left = LONG;
                }
                Place::Held(_) => {
                    let what = "the client sends much and does not show who it is";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::FileTooLarge, what)));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Layer for Ration {
    fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let most = match self.shown.0.load(Relaxed) {
            NOTHING => {
                ready!(self.poll_place(context))?;
                self.left
            }
            REFUSED => REST,
            _ => {
                self.place = Place::None;
                return Pin::new(stream).poll_read(context, buffer);
            }
        };
        let most = most.min(buffer.remaining());
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
        ready!(Pin::new(stream).poll_read(context, &mut part))?;
        let count = part.filled().len();
        buffer.advance(count);
        self.left = self.left.saturating_sub(count);
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::None => "None",
            Self::Waiting(_) => "Waiting",
            Self::Held(_) => "Held",
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::super::layered::Layered;
    use super::*;

    type Rationed = Layered<DuplexStream, Ration>;

    /// A connection, and how its client sends bytes.
    async fn sent(places: &Places, shown: &Shown, count: usize) -> (Rationed, DuplexStream) {
        let (near, mut far) = duplex(1 << 20);
        far.write_all(&vec![7; count]).await.unwrap();
        (Layered::new(near, Ration::new(places.clone(), shown.clone())), far)
    }

    /// What can be read now, up to `most`, and how it ended if it did.
    fn read(stream: &mut Rationed, most: usize) -> (usize, Option<io::ErrorKind>) {
        let (mut count, mut bytes) = (0, vec![0; 16 << 10]);
        while count < most {
            match stream.read(&mut bytes).now_or_never() {
                Some(Ok(0)) | None => break,
                Some(Ok(more)) => count += more,
                Some(Err(error)) => return (count, Some(error.kind())),
            }
        }
        (count, None)
    }

    #[tokio::test]
    async fn a_client_that_is_not_known_is_read_to_a_bound() {
        let (places, shown) = (Places::default(), Shown::default());
        let (mut stream, _far) = sent(&places, &shown, 1 << 19).await;
        let too_much = Some(io::ErrorKind::FileTooLarge);
        assert_eq!(read(&mut stream, usize::MAX), (HANDSHAKE + LONG, too_much));
        drop(stream);
        assert_eq!(places.0.available_permits(), PLACES);
    }

    #[tokio::test]
    async fn only_some_may_send_much_at_a_time() {
        let (places, shown) = (Places::default(), Shown::default());
        let mut long = Vec::new();
        for _ in 0..PLACES {
            let (mut stream, far) = sent(&places, &shown, HANDSHAKE + 1).await;
            assert_eq!(read(&mut stream, usize::MAX), (HANDSHAKE + 1, None));
            long.push((stream, far));
        }
        // Others have what is their own.
        let (mut other, _far) = sent(&places, &Shown::default(), HANDSHAKE + FIRST_REQUEST + 1).await;
        assert_eq!(read(&mut other, HANDSHAKE), (HANDSHAKE, None));
        other.layer_mut().begin_first_request();
        assert_eq!(read(&mut other, usize::MAX), (FIRST_REQUEST, None));
        drop(long.pop());
        assert_eq!(read(&mut other, usize::MAX), (1, None));
    }

    #[tokio::test]
    async fn a_client_that_is_known_is_read_without_a_bound() {
        let (places, shown) = (Places::default(), Shown::default());
        let (mut stream, _far) = sent(&places, &shown, 1 << 19).await;
        assert_eq!(read(&mut stream, HANDSHAKE + 1).1, None);
        assert_eq!(places.0.available_permits(), PLACES - 1);
        shown.accept();
        shown.refuse();
        assert!(shown.is_accepted());
        let (count, error) = read(&mut stream, usize::MAX);
        assert!(error.is_none() && count > LONG, "{count} {error:?}");
        assert_eq!(places.0.available_permits(), PLACES);
    }

    #[tokio::test]
    async fn what_follows_a_refused_request_is_read_in_small_parts() {
        let (places, shown) = (Places::default(), Shown::default());
        let (mut stream, _far) = sent(&places, &shown, 1 << 18).await;
        shown.refuse();
        let mut bytes = vec![0; 16 << 10];
        assert_eq!(stream.read(&mut bytes).await.unwrap(), REST);
        assert_eq!(read(&mut stream, usize::MAX), ((1 << 18) - REST, None));
    }
}
