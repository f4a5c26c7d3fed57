//! What this server says of itself in HTTP/2.

use hyper::server::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::connection::HEAD;

/// Requests at a time on one connection (upstream: `--http2-max-streams-per-connection`).
const STREAMS: u32 = 250;
/// Bytes that a client may send without being read, for each stream and for all together.
const WINDOW: u32 = 1 << 20;
/// Bytes of a frame (RFC 9113, 6.5.2: the least that may be said).
const FRAME: u32 = 16 << 10;
/// Bytes of an answer that wait for the client, for each stream.
const SEND_BUFFER: usize = 64 << 10;
/// A connection on which nothing comes is tried this often, and given up without an answer (Go's clients do the same
/// from their side).
const PING_INTERVAL: std::time::Duration = std::time::Duration::from_secs(30);
const PING_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(15);

/// GOAWAY without an error, after no stream (RFC 9113, 6.8).
pub(super) const FAREWELL: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Serves as [`greeting`] says.
pub(super) fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).max_concurrent_streams(STREAMS).max_header_list_size(HEAD);
    builder.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW).max_frame_size(FRAME);
    builder.max_send_buf_size(SEND_BUFFER);
    builder.keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// The first frame of the server, SETTINGS: byte by byte what hyper writes first, so that it can be sent earlier.
pub(super) fn greeting() -> Vec<u8> {
    // MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE (RFC 9113, 6.5.2).
    let settings = [(3_u16, STREAMS), (4, WINDOW), (5, FRAME), (6, HEAD)];
    let mut frame = vec![0, 0, 24, 4, 0, 0, 0, 0, 0];
    for (setting, value) in settings {
        frame.extend(setting.to_be_bytes());
        frame.extend(value.to_be_bytes());
    }
    frame
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::Empty;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn the_greeting_is_what_hyper_writes_first() {
        let (near, mut far) = duplex(4096);
        let service =
            service_fn(async |_| Ok::<_, Infallible>(http::Response::new(Empty::<bytes::Bytes>::new())));
        let connection = builder().serve_connection(TokioIo::new(near), service);
        let mut said = vec![0; greeting().len()];
        tokio::select! {
            _ = connection => panic!("the connection ended"),
            read = far.read_exact(&mut said) => { read.unwrap(); }
        }
        assert_eq!(said, greeting());
    }
}
