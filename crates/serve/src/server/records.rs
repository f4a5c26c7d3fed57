//! TLS records that have arrived, inspected before they are read.
//!
//! TLS cannot process a partial record, and needs memory to keep it. So partial records stay in the kernel's buffer.

use std::{
    io,
    task::{Context, Poll, ready},
};

use futures::FutureExt as _;
use rustix::net::{RecvFlags, recv};
use tokio::{
    io::{Interest, Ready},
    net::TcpStream,
};

/// Length of a record's head: its type, a version and its length (RFC 8446, 5.1).
pub(super) const RECORD_HEAD: usize = 5;
/// The range of record types: `change_cipher_spec`, `alert`, `handshake`, `application_data`.
const FIRST_TYPE: u8 = 20;
const LAST_TYPE: u8 = 23;
/// Maximum length of an encrypted record without its head (RFC 5246, 6.2.3; less in TLS 1.3).
const LONGEST_RECORD: usize = (1 << 14) + 2048;

/// A stream of records.
pub(super) trait Records {
    /// Returns how many bytes may be read: the next record with its head, or 0 at the end of the stream.
    ///
    /// Completes when the whole record has arrived, or its head if the record is longer than `most`. If the peer has
    /// closed the stream earlier, or the bytes are not a record, returns the number of bytes that have arrived.
    fn poll_record(&mut self, context: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>>;
}

impl Records for TcpStream {
    fn poll_record(&mut self, context: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_read_ready(context))?;
            // Checked before the bytes are inspected: after the end, no more bytes follow.
            let ready = self.ready(Interest::READABLE).now_or_never();
            let is_ended = ready.is_some_and(|ready| ready.is_ok_and(Ready::is_read_closed));
            let looked = self.try_io(Interest::READABLE, || {
                let seen = Seen::of(self)?;
                if is_ended {
                    return Ok(seen.waiting.min(seen.record().unwrap_or(seen.waiting)));
                }
                match seen.record() {
                    Some(length) if length > most || length <= seen.waiting => Ok(length),
                    _ => Err(io::ErrorKind::WouldBlock.into()),
                }
            });
            match looked {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                looked => return Poll::Ready(looked),
            }
        }
    }
}

/// The bytes that have arrived and are not read yet.
#[derive(Debug)]
pub(super) struct Seen {
    first: [u8; RECORD_HEAD],
    count: usize,
    /// Number of bytes that have arrived.
    pub(super) waiting: usize,
}

impl Seen {
    /// Inspects a stream. Sees nothing at the end of the stream.
    pub(super) fn of(stream: &TcpStream) -> io::Result<Self> {
        let mut first = [0; RECORD_HEAD];
        let (count, _) = recv(stream, &mut first, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
        let waiting = usize::try_from(rustix::io::ioctl_fionread(stream)?).unwrap_or(usize::MAX);
        Ok(Self { first, count, waiting })
    }

    /// Returns the first bytes: a record's head, or less if less has arrived.
    pub(super) fn first(&self) -> &[u8] {
        self.first.get(..self.count).unwrap_or_default()
    }

    /// Returns the length of the record, with its head; `None` until its head has arrived. For bytes that are not a
    /// record, returns the number of bytes that show it.
    fn record(&self) -> Option<usize> {
        record(self.first())
    }
}

fn record(first: &[u8]) -> Option<usize> {
    match *first {
        [FIRST_TYPE..=LAST_TYPE, _, _, high, low] => {
            let length = usize::from(u16::from_be_bytes([high, low]));
            Some(RECORD_HEAD + if length <= LONGEST_RECORD { length } else { 0 })
        }
        [] | [FIRST_TYPE..=LAST_TYPE, ..] => None,
        _ => Some(first.len()),
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        time::timeout,
    };

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn lengths() {
        for (first, expected) in [
            (&[][..], None),
            (&[22], None),
            (&[23, 3, 3, 0], None),
            (&[20, 3, 3, 0, 1], Some(6)),
            (&[23, 3, 3, 0x40, 0x11], Some(16_406)),
            (&[23, 3, 3, 0x48, 0], Some(18_437)),
            (&[23, 3, 3, 0x48, 1], Some(5)),
            (b"GET", Some(3)),
            (&[24, 3, 3, 0, 1], Some(5)),
        ] {
            assert_eq!(record(first), expected, "{first:?}");
        }
    }

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (listener.accept().await.unwrap().0, client)
    }

    async fn next(stream: &mut TcpStream, most: usize) -> usize {
        poll_fn(|context| stream.poll_record(context, most)).await.unwrap()
    }

    #[tokio::test]
    async fn all_of_a_record_is_waited_for() {
        let (mut server, mut client) = pair().await;
        for part in [&b""[..], b"\x16\x03", b"\x03\x00\x02", b"x"] {
            client.write_all(part).await.unwrap();
            assert!(timeout(SHORT, next(&mut server, 7)).await.is_err(), "{part:?}");
        }
        client.write_all(b"y\x17\x03").await.unwrap();
        assert_eq!(next(&mut server, 7).await, 7);
        server.read_exact(&mut [0; 7]).await.unwrap();
        assert!(timeout(SHORT, next(&mut server, 7)).await.is_err());
        client.write_all(b"\x03\x00\x03").await.unwrap();
        // A record longer than `most` is not waited for, because its reader needs a place first.
        assert_eq!(next(&mut server, 7).await, 8);
    }

    #[tokio::test]
    async fn the_end_is_not_waited_for() {
        let (mut server, mut client) = pair().await;
        client.write_all(b"\x15\x03\x03\x00\x00\x16\x03\x03\x00\x09more").await.unwrap();
        client.shutdown().await.unwrap();
        for length in [5, 9, 0, 0] {
            assert_eq!(next(&mut server, 4096).await, length);
            server.read_exact(&mut vec![0; length]).await.unwrap();
        }
    }
}
