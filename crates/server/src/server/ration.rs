//! What a client may send before it has shown who it is.
//!
//! Each connection takes memory for what has come and cannot be used yet: parts of TLS messages and of heads. A few
//! KiB are each connection's own. For more it needs one of a few places, and is not read until there is one. Of what is
//! its own, whole TLS records are read.

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
use super::records::Records;

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
    /// Bytes that the client may send.
    left: usize,
    /// Bytes of a record that is being read.
    record: usize,
}

enum Place {
    None,
    Waiting(Pin<Box<dyn Future<Output = io::Result<OwnedSemaphorePermit>> + Send>>),
    Held(#[expect(dead_code, reason = "free when dropped")] OwnedSemaphorePermit),
}

impl Ration {
    pub(super) fn new(places: Places, shown: Shown) -> Self {
        Self { shown, places, place: Place::None, left: HANDSHAKE, record: 0 }
    }

    /// The handshake is done: what it took is free again, but for what a place was needed for.
    pub(super) fn begin_first_request(&mut self) {
        if !matches!(self.place, Place::Held(_)) {
            (self.place, self.left) = (Place::None, FIRST_REQUEST);
        }
    }

    /// Ready when bytes of a record may be read, with how many; 0 at the end of the stream.
    fn poll_most(&mut self, stream: &mut impl Records, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut record = self.record;
        if record == 0 {
            // With a place there is memory for parts.
            let most = if matches!(self.place, Place::Held(_)) { 0 } else { self.left };
            record = ready!(stream.poll_record(context, most))?;
        }
        if record > self.left {
            ready!(self.poll_place(context))?;
        }
        self.record = record;
        Poll::Ready(Ok(record.min(self.left)))
    }

    /// Ready when the connection has a place, and something left to read with it.
    fn poll_place(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
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
                Place::Held(_) if self.left > 0 => return Poll::Ready(Ok(())),
                Place::Held(_) => {
                    let what = "the client sends much and does not show who it is";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::FileTooLarge, what)));
                }
            }
        }
    }
}

impl<S: AsyncRead + Records + Unpin> Layer<S> for Ration {
    fn poll_read(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let most = match self.shown.0.load(Relaxed) {
            NOTHING => ready!(self.poll_most(stream, context))?,
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
        self.record = self.record.saturating_sub(count);
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
    use std::time::Duration;

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
        task::JoinHandle,
        time::timeout,
    };

    use super::super::layered::Layered;
    use super::*;

    type Rationed = Layered<TcpStream, Ration>;

    /// What has to come comes in this time.
    const PATIENCE: Duration = Duration::from_secs(60);
    /// What must not come is waited for so long.
    const SHORT: Duration = Duration::from_millis(20);
    /// A record with its head. Many of them are as much as may be sent.
    const RECORD: usize = 512;
    const MUCH: usize = 1 << 19;

    /// Bytes of records, the last of which may be a part of one.
    fn records(count: usize) -> Vec<u8> {
        let record = [&[23, 3, 3, 1, 0xfb][..], &[7; RECORD - 5]].concat();
        record.into_iter().cycle().take(count).collect()
    }

    /// A connection, and its client when it has sent so much.
    async fn sent(places: &Places, shown: &Shown, count: usize) -> (Rationed, JoinHandle<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (near, _) = listener.accept().await.unwrap();
        let far = tokio::spawn(async move {
            client.write_all(&records(count)).await.unwrap();
            client
        });
        (Layered::new(near, Ration::new(places.clone(), shown.clone())), far)
    }

    /// Reads so much, and returns the most that came at a time.
    async fn read(stream: &mut Rationed, count: usize) -> usize {
        let (mut left, mut most, mut bytes) = (count, 0, vec![0; 16 << 10]);
        while left > 0 {
            let part = bytes.len().min(left);
            let part = timeout(PATIENCE, stream.read(&mut bytes[..part])).await.unwrap().unwrap();
            assert_ne!(part, 0);
            (left, most) = (left - part, most.max(part));
        }
        most
    }

    async fn assert_nothing(stream: &mut Rationed) {
        assert!(timeout(SHORT, stream.read(&mut [0; 1])).await.is_err());
    }

    #[tokio::test]
    async fn a_client_that_is_not_known_is_read_to_a_bound() {
        let (places, shown) = (Places::default(), Shown::default());
        let (mut stream, _far) = sent(&places, &shown, MUCH).await;
        read(&mut stream, HANDSHAKE + LONG).await;
        let error = timeout(PATIENCE, stream.read(&mut [0; 1])).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        drop(stream);
        assert_eq!(places.0.available_permits(), PLACES);
    }

    #[tokio::test]
    async fn only_some_may_send_much_at_a_time() {
        let (places, shown) = (Places::default(), Shown::default());
        let mut long = Vec::new();
        for _ in 0..PLACES {
            let (mut stream, far) = sent(&places, &shown, HANDSHAKE + RECORD).await;
            read(&mut stream, HANDSHAKE + RECORD).await;
            long.push((stream, far));
        }
        // Others have what is their own.
        let (mut other, _far) = sent(&places, &Shown::default(), HANDSHAKE + FIRST_REQUEST + RECORD).await;
        read(&mut other, HANDSHAKE).await;
        assert_nothing(&mut other).await;
        other.layer_mut().begin_first_request();
        read(&mut other, FIRST_REQUEST).await;
        assert_nothing(&mut other).await;
        drop(long.pop());
        read(&mut other, RECORD).await;
    }

    #[tokio::test]
    async fn whole_records_are_read() {
        let (places, shown) = (Places::default(), Shown::default());
        let (mut stream, far) = sent(&places, &shown, RECORD * 3 + 100).await;
        assert_eq!(read(&mut stream, RECORD * 3).await, RECORD);
        assert_nothing(&mut stream).await;
        let mut far = far.await.unwrap();
        far.write_all(&records(RECORD)[100..]).await.unwrap();
        assert_eq!(read(&mut stream, RECORD).await, RECORD);
        assert_eq!(places.0.available_permits(), PLACES);
        // A longer one needs a place, with which it is read as it comes.
        far.write_all(&[23, 3, 3, 0x40, 0, 7]).await.unwrap();
        read(&mut stream, 6).await;
        assert_eq!(places.0.available_permits(), PLACES - 1);
        far.write_all(&[7; 9]).await.unwrap();
        read(&mut stream, 9).await;
    }

    #[tokio::test]
    async fn a_record_that_does_not_end_is_read_at_the_end() {
        let (mut stream, far) = sent(&Places::default(), &Shown::default(), RECORD + 100).await;
        far.await.unwrap().shutdown().await.unwrap();
        let mut all = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut all)).await.unwrap().unwrap();
        assert_eq!(all, records(RECORD + 100));
    }

    #[tokio::test]
    async fn a_client_that_is_known_is_read_without_a_bound() {
        let (places, shown) = (Places::default(), Shown::default());
        let (mut stream, _far) = sent(&places, &shown, MUCH + 1).await;
        read(&mut stream, HANDSHAKE + 1).await;
        assert_eq!(places.0.available_permits(), PLACES - 1);
        shown.accept();
        shown.refuse();
        assert!(shown.is_accepted());
        read(&mut stream, MUCH - HANDSHAKE).await;
        assert_eq!(places.0.available_permits(), PLACES);
    }

    #[tokio::test]
    async fn what_follows_a_refused_request_is_read_in_small_parts() {
        let (places, shown) = (Places::default(), Shown::default());
        let (mut stream, _far) = sent(&places, &shown, MUCH).await;
        shown.refuse();
        assert!(read(&mut stream, MUCH).await <= REST);
    }
}
