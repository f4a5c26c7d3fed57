//! The HTTP/2 settings of this server.

use hyper::server::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::connection::HEAD;

/// Maximum number of concurrent requests on one connection (upstream: `--http2-max-streams-per-connection`).
const STREAMS: u32 = 250;
/// Size of the receive windows in bytes, for each stream and for the connection.
const WINDOW: u32 = 1 << 20;
/// Maximum size of a frame in bytes. It is the smallest value that the setting may have (RFC 9113, 6.5.2).
const FRAME: u32 = 16 << 10;
/// Maximum number of bytes of an answer that are buffered for the client, for each stream.
const SEND_BUFFER: usize = 64 << 10;
/// Interval of pings on a connection without traffic, and the deadline for their reply. Go's clients ping in the same
/// way.
const PING_INTERVAL: std::time::Duration = std::time::Duration::from_secs(30);
const PING_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(15);

/// A GOAWAY frame without an error, with 0 as the last stream (RFC 9113, 6.8).
pub(super) const FAREWELL: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Returns a builder with the settings that [`greeting`] announces.
pub(super) fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).max_concurrent_streams(STREAMS).max_header_list_size(HEAD);
    builder.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW).max_frame_size(FRAME);
    builder.max_send_buf_size(SEND_BUFFER);
    builder.keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// Returns the first frame of the server, SETTINGS. It equals byte by byte what hyper writes first, so it can be sent
/// earlier.
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
