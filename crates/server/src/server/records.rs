//! TLS records that have come, looked at before they are read.
//!
//! TLS can do nothing with a part of a record, and takes memory for it. So the kernel keeps the parts.

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

/// The head of a record: its type, a version and its length (RFC 8446, 5.1).
pub(super) const RECORD_HEAD: usize = 5;
/// The types of records: `change_cipher_spec`, `alert`, `handshake`, `application_data`.
const FIRST_TYPE: u8 = 20;
const LAST_TYPE: u8 = 23;
/// The longest record with its encryption, without its head (RFC 5246, 6.2.3; in TLS 1.3 it is shorter).
const LONGEST_RECORD: usize = (1 << 14) + 2048;

/// A stream of records.
pub(super) trait Records {
    /// Bytes that may be read: those of the next record, with its head, or 0 at the end of the stream.
    ///
    /// Ready when all of the record has come, or its head if it is longer than `most`. Where the peer has ended the
    /// stream before, or what has come is no record, it is what has come.
    fn poll_record(&mut self, context: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>>;
}

impl Records for TcpStream {
    fn poll_record(&mut self, context: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_read_ready(context))?;
            // Asked for first: what is there after the end is all.
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

/// What has come and has not been read.
#[derive(Debug)]
pub(super) struct Seen {
    first: [u8; RECORD_HEAD],
    count: usize,
    /// How many bytes it is.
    pub(super) waiting: usize,
}

impl Seen {
    /// Nothing at the end of the stream.
    pub(super) fn of(stream: &TcpStream) -> io::Result<Self> {
        let mut first = [0; RECORD_HEAD];
        let (count, _) = recv(stream, &mut first, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
        let waiting = usize::try_from(rustix::io::ioctl_fionread(stream)?).unwrap_or(usize::MAX);
        Ok(Self { first, count, waiting })
    }

    /// As much of it as a record's head has, or less where less has come.
    pub(super) fn first(&self) -> &[u8] {
        self.first.get(..self.count).unwrap_or_default()
    }

    /// Bytes of the record, with its head, if that is there; of what is no record, those that show it.
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
        // A longer one is not: its reader has to ask for more first.
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
