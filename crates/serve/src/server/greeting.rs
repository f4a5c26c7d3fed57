//! The wait for the first bytes of a client, without reading them.
//!
//! TLS allocates memory with its first attempt to read. So the handshake starts when its first record is complete.
//! Until then the kernel keeps the received bytes.

use std::io;

use tokio::{io::Interest, net::TcpStream};

use super::records::{RECORD_HEAD, Seen};

/// The type of handshake records (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;
/// Maximum length of a record without encryption.
const LONGEST_RECORD: u16 = 1 << 14;

/// Waits until the first bytes can be judged: a whole record, or something that is not TLS.
pub(super) async fn come(stream: &TcpStream, has_tls: bool) -> io::Result<()> {
    loop {
        let ready = stream.ready(Interest::READABLE).await?;
        // The peer has closed its side, so no more bytes will arrive.
        if ready.is_read_closed() {
            return Ok(());
        }
        let looked = stream.try_io(Interest::READABLE, || {
            let seen = Seen::of(stream)?;
            let head = seen.first();
            let is_enough = head.is_empty() || !has_tls || is_record(head, seen.waiting);
            if is_enough { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
        });
        match looked {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            looked => return looked,
        }
    }
}

/// Returns true if a whole record has arrived, or something that cannot start a handshake. `waiting` includes the
/// head.
fn is_record(head: &[u8], waiting: usize) -> bool {
    match *head {
        [HANDSHAKE, _, _, high, low] => {
            let length = u16::from_be_bytes([high, low]);
            length > LONGEST_RECORD || waiting >= usize::from(length) + RECORD_HEAD
        }
        [kind, ..] => kind != HANDSHAKE,
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{io::AsyncWriteExt as _, net::TcpListener};

    use super::*;

    #[test]
    fn records() {
        for (head, waiting, expected) in [
            (&[][..], 0, false),
            (&[22], 1, false),
            (&[22, 3, 1, 0], 4, false),
            (&[22, 3, 1, 0, 9], 5, false),
            (&[22, 3, 1, 0, 9], 13, false),
            (&[22, 3, 1, 0, 9], 14, true),
            (&[22, 3, 1, 0x40, 0], 16_388, false),
            (&[22, 3, 1, 0x40, 0], 16_389, true),
            (&[22, 3, 1, 0x40, 1], 5, true),
            (b"G", 1, true),
            (b"GET /", 100, true),
        ] {
            assert_eq!(is_record(head, waiting), expected, "{head:?} {waiting}");
        }
    }

    #[tokio::test]
    async fn the_record_is_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        for part in [&b""[..], b"\x16\x03", b"\x01\x00\x04", b"\x01\x00\x00"] {
            client.write_all(part).await.unwrap();
            let come = tokio::time::timeout(Duration::from_millis(20), come(&server, true)).await;
            assert!(come.is_err(), "{part:?}");
        }
        client.write_all(b"\x00").await.unwrap();
        come(&server, true).await.unwrap();
        // A client that closes before its record is complete is not waited for.
        let mut client = TcpStream::connect(address).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        client.write_all(b"\x16\x03").await.unwrap();
        client.shutdown().await.unwrap();
        come(&server, true).await.unwrap();
    }
}
