//! Limits what a client may send before it has authenticated.
//!
//! Each connection needs memory for bytes that have arrived and cannot be processed yet: partial TLS messages and
//! heads. A few KiB are available to each connection. For more, a connection needs one of a few places
//! ([`super::places`]), and it is not read until it has one. Without a place, only whole TLS records are read.

use std::{
    fmt,
    future::Future as _,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{
            AtomicU8,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    task::{Context, Poll, ready},
};

use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::Notify;

use super::layered::Layer;
use super::places::{Held, Places, Waiting};
use super::records::Records;

/// Bytes that a client may send for its handshake without a place. A handshake with a client certificate takes 1 to 4
/// KiB.
pub(super) const HANDSHAKE: usize = 4 << 10;
/// Bytes that a client may send for its first request without a place.
pub(super) const FIRST_REQUEST: usize = 4 << 10;
/// Bytes that a client may send with a place. Enough for the longest handshake that TLS accepts, or for the longest
/// head in small records.
const LONG: usize = 96 << 10;
/// Bytes that are read at a time after a refused request.
const REST: usize = 4 << 10;

/// Whether the client of a connection has authenticated. Clones belong to the same connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Shown(Arc<State>);

#[derive(Debug, Default)]
struct State {
    step: AtomicU8,
    /// The task that reads the connection. A change of `step` wakes it, because it may then read more.
    reader: AtomicWaker,
    /// Notified when HTTP/2 waits for more than its first head before the step has changed.
    waits: Notify,
}

const NOTHING: u8 = 0;
const REFUSED: u8 = 1;
const IDENTITY: u8 = 2;

impl Shown {
    /// Notes that a request had an accepted credential, or that none is needed. A read that waits for a place
    /// continues without one.
    pub(super) fn accept(&self) {
        self.0.step.store(IDENTITY, Release);
        self.0.reader.wake();
    }

    /// Notes that the client was answered without an accepted credential. That answer is the last one. Has no effect
    /// after [`Self::accept`].
    pub(super) fn refuse(&self) {
        let _ = self.0.step.compare_exchange(NOTHING, REFUSED, Release, Relaxed);
        self.0.reader.wake();
    }

    pub(super) fn is_accepted(&self) -> bool {
        self.0.step.load(Acquire) == IDENTITY
    }

    /// Completes when the client has been accepted (true) or refused (false). Until then notes that HTTP/2 waits for more
    /// than its first head.
    pub(super) fn poll_decision(&self, context: &Context<'_>) -> Poll<bool> {
        match self.poll_step(context) {
            NOTHING => {
                self.0.waits.notify_one();
                Poll::Pending
            }
            step => Poll::Ready(step == IDENTITY),
        }
    }

    /// Completes when HTTP/2 has waited for more than its first head before the client was accepted or refused.
    pub(super) async fn waits_for_more(&self) {
        self.0.waits.notified().await;
    }

    /// Returns the step. The reader is polled again when the step changes.
    fn poll_step(&self, context: &Context<'_>) -> u8 {
        let step = self.0.step.load(Acquire);
        if step != NOTHING {
            return step;
        }
        self.0.reader.register(context.waker());
        // The step may have changed before the waker was registered.
        self.0.step.load(Acquire)
    }
}

/// A layer that reads no more from a client than it may send.
#[derive(Debug)]
pub(super) struct UnauthenticatedLimit {
    shown: Shown,
    places: Places,
    client: IpAddr,
    place: PlaceState,
    /// Number of bytes that the client may still send.
    left: usize,
    /// Number of bytes of the current record that are not read yet.
    record: usize,
}

enum PlaceState {
    None,
    Waiting(Waiting),
    Held(Held),
}

impl UnauthenticatedLimit {
    /// `client` is the address by which the client is counted ([`super::accept::client`]).
    pub(super) fn new(places: Places, client: IpAddr, shown: Shown) -> Self {
        Self { shown, places, client, place: PlaceState::None, left: HANDSHAKE, record: 0 }
    }

    /// Ends the handshake and starts the allowance for the first request. A connection that holds a place keeps it,
    /// with what is left of its allowance.
    pub(super) fn begin_first_request(&mut self) {
        if !matches!(self.place, PlaceState::Held(_)) {
            (self.place, self.left) = (PlaceState::None, FIRST_REQUEST);
        }
    }

    /// Returns how many bytes of the current record may be read; 0 at the end of the stream. Pending until some may
    /// be read.
    fn poll_most(&mut self, stream: &mut impl Records, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut record = self.record;
        if record == 0 {
            // With a place there is memory for partial records.
            let most = if matches!(self.place, PlaceState::Held(_)) { 0 } else { self.left };
            record = ready!(stream.poll_record(context, most))?;
        }
        if record > self.left {
            ready!(self.poll_place(context))?;
        }
        self.record = record;
        Poll::Ready(Ok(record.min(self.left)))
    }

    /// Returns an error if the connection has held its place for too long. Otherwise makes the task wake up at that
    /// time.
    fn check_time(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let PlaceState::Held(held) = &mut self.place else { return Ok(()) };
        if held.end.as_mut().poll(context).is_pending() {
            return Ok(());
        }
        let what = "the client takes long to send much and does not show who it is";
        Err(io::Error::new(io::ErrorKind::TimedOut, what))
    }

    /// Completes when the connection has a place and may still send bytes with it.
    fn poll_place(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.place {
                PlaceState::None => {
                    self.place = PlaceState::Waiting(self.places.wait(self.client));
                }
                PlaceState::Waiting(waiting) => {
                    let place = ready!(waiting.as_mut().poll(context))?;
                    self.place = PlaceState::Held(place);
                    self.left = LONG;
                    self.check_time(context)?;
                }
                PlaceState::Held(_) if self.left > 0 => return Poll::Ready(Ok(())),
                PlaceState::Held(_) => {
                    let what = "the client sends much and does not show who it is";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::FileTooLarge, what)));
                }
            }
        }
    }
}

impl<S: AsyncRead + Records + Unpin> Layer<S> for UnauthenticatedLimit {
    fn poll_read(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let step = self.shown.poll_step(context);
        if step == IDENTITY {
            self.place = PlaceState::None;
            return Pin::new(stream).poll_read(context, buffer);
        }
        self.check_time(context)?;
        let most = if step == NOTHING { ready!(self.poll_most(stream, context))? } else { REST };
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

impl fmt::Debug for PlaceState {
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
    use std::{net::Ipv4Addr, time::Duration};

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
        task::JoinHandle,
        time::timeout,
    };

    use super::super::layered::Layered;
    use super::super::places::{PLACES, PLACES_OF_ONE_CLIENT};
    use super::*;

    type Rationed = Layered<TcpStream, UnauthenticatedLimit>;

    /// Deadline for what must arrive.
    const PATIENCE: Duration = Duration::from_secs(60);
    /// How long the tests wait for what must not arrive.
    const SHORT: Duration = Duration::from_millis(20);
    /// Length of a record with its head. It divides the allowances, so they are used up by whole records.
    const RECORD: usize = 512;
    const MUCH: usize = 1 << 19;

    /// Places with no limit on the time for which they are held.
    fn places() -> Places {
        Places::new(Duration::MAX)
    }

    fn client(number: usize) -> IpAddr {
        Ipv4Addr::from_bits(0xc000_0200 + u32::try_from(number).unwrap()).into()
    }

    /// Returns `count` bytes of records. The last record may be partial.
    fn records(count: usize) -> Vec<u8> {
        let record = [&[23, 3, 3, 1, 0xfb][..], &[7; RECORD - 5]].concat();
        record.into_iter().cycle().take(count).collect()
    }

    /// Returns a connection, and its client when it has sent `count` bytes.
    async fn sent(places: &Places, shown: &Shown, count: usize) -> (Rationed, JoinHandle<TcpStream>) {
        sent_by(client(0), places, shown, count).await
    }

    async fn sent_by(
        address: IpAddr,
        places: &Places,
        shown: &Shown,
        count: usize,
    ) -> (Rationed, JoinHandle<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (near, _) = listener.accept().await.unwrap();
        let far = tokio::spawn(async move {
            client.write_all(&records(count)).await.unwrap();
            client
        });
        (Layered::new(near, UnauthenticatedLimit::new(places.clone(), address, shown.clone())), far)
    }

    /// Reads `count` bytes. Returns the most bytes that a single read returned.
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
        let (places, shown) = (places(), Shown::default());
        let (mut stream, _far) = sent(&places, &shown, MUCH).await;
        read(&mut stream, HANDSHAKE + LONG).await;
        let error = timeout(PATIENCE, stream.read(&mut [0; 1])).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        drop(stream);
        assert_eq!(places.all.available_permits(), PLACES);
    }

    #[tokio::test]
    async fn long_handshakes_need_one_of_the_places() {
        let (places, shown) = (places(), Shown::default());
        let mut long = Vec::new();
        for number in 0..PLACES {
            let address = client(number / PLACES_OF_ONE_CLIENT);
            let (mut stream, far) = sent_by(address, &places, &shown, HANDSHAKE + RECORD).await;
            read(&mut stream, HANDSHAKE + RECORD).await;
            long.push((stream, far));
        }
        // Other clients can use their own allowance.
        let much = HANDSHAKE + FIRST_REQUEST + RECORD;
        let (mut other, _far) = sent_by(client(99), &places, &Shown::default(), much).await;
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
        let (places, shown) = (places(), Shown::default());
        let (mut stream, far) = sent(&places, &shown, RECORD * 3 + 100).await;
        assert_eq!(read(&mut stream, RECORD * 3).await, RECORD);
        assert_nothing(&mut stream).await;
        let mut far = far.await.unwrap();
        far.write_all(&records(RECORD)[100..]).await.unwrap();
        assert_eq!(read(&mut stream, RECORD).await, RECORD);
        assert_eq!(places.all.available_permits(), PLACES);
        // A longer record needs a place. With a place it is read as it arrives.
        far.write_all(&[23, 3, 3, 0x40, 0, 7]).await.unwrap();
        read(&mut stream, 6).await;
        assert_eq!(places.all.available_permits(), PLACES - 1);
        far.write_all(&[7; 9]).await.unwrap();
        read(&mut stream, 9).await;
    }

    #[tokio::test]
    async fn a_record_that_does_not_end_is_read_at_the_end() {
        let (mut stream, far) = sent(&places(), &Shown::default(), RECORD + 100).await;
        far.await.unwrap().shutdown().await.unwrap();
        let mut all = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut all)).await.unwrap().unwrap();
        assert_eq!(all, records(RECORD + 100));
    }

    #[tokio::test]
    async fn a_client_that_is_known_is_read_without_a_bound() {
        let (places, shown) = (places(), Shown::default());
        let (mut stream, _far) = sent(&places, &shown, MUCH + 1).await;
        read(&mut stream, HANDSHAKE + 1).await;
        assert_eq!(places.all.available_permits(), PLACES - 1);
        shown.accept();
        shown.refuse();
        assert!(shown.is_accepted());
        read(&mut stream, MUCH - HANDSHAKE).await;
        assert_eq!(places.all.available_permits(), PLACES);
    }

    #[tokio::test]
    async fn what_follows_a_refused_request_is_read_in_small_parts() {
        let (places, shown) = (places(), Shown::default());
        let (mut stream, _far) = sent(&places, &shown, MUCH).await;
        shown.refuse();
        assert!(read(&mut stream, MUCH).await <= REST);
    }

    #[tokio::test]
    async fn one_client_does_not_hold_the_places_of_others() {
        let (places, shown) = (places(), Shown::default());
        let mut flood = Vec::new();
        for number in 0..PLACES {
            let (mut stream, far) = sent(&places, &shown, HANDSHAKE + RECORD).await;
            read(&mut stream, HANDSHAKE).await;
            if number < PLACES_OF_ONE_CLIENT {
                read(&mut stream, RECORD).await;
            } else {
                assert_nothing(&mut stream).await;
            }
            flood.push((stream, far));
        }
        let (mut other, _far) = sent_by(client(1), &places, &shown, HANDSHAKE + LONG).await;
        read(&mut other, HANDSHAKE + LONG).await;
    }

    #[tokio::test]
    async fn a_place_is_held_for_a_time() {
        let places = Places::new(PATIENCE * 10);
        let mut all = Vec::new();
        for _ in 0..=PLACES_OF_ONE_CLIENT {
            let (mut stream, far) = sent(&places, &Shown::default(), HANDSHAKE + RECORD).await;
            read(&mut stream, HANDSHAKE).await;
            all.push((stream, far.await.unwrap()));
        }
        let (mut last, _far) = all.pop().unwrap();
        for (stream, _) in &mut all {
            read(stream, RECORD).await;
        }
        assert_nothing(&mut last).await;
        // From here on, time advances whenever all tasks wait.
        tokio::time::pause();
        for (mut stream, _far) in all {
            let error = timeout(PATIENCE * 20, stream.read(&mut [0; 1])).await.unwrap().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
        timeout(PATIENCE, last.read_exact(&mut [0; RECORD])).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_read_that_waits_for_a_place_goes_on_when_its_client_is_known() {
        let (places, shown) = (places(), Shown::default());
        let mut taken = Vec::new();
        for number in 0..PLACES {
            taken.push(places.wait(client(number / PLACES_OF_ONE_CLIENT)).await.unwrap());
        }
        let (mut stream, _far) = sent_by(client(99), &places, &shown, HANDSHAKE + RECORD).await;
        read(&mut stream, HANDSHAKE).await;
        assert_nothing(&mut stream).await;
        // Without a timeout, because its end would poll the read, too.
        let waiting = tokio::spawn(async move { stream.read_exact(&mut [0; RECORD]).await.unwrap() });
        // The read is polled and waits for a place.
        tokio::task::yield_now().await;
        shown.accept();
        timeout(PATIENCE, waiting).await.unwrap().unwrap();
        assert_eq!(places.all.available_permits(), 0);
    }
}
