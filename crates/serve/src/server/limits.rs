//! Limits on what clients may use.

use std::time::Duration;

/// Limits that keep one client, or many, from blocking the others.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum number of connections. Further ones wait in the kernel's accept queue.
    pub connections: usize,
    /// Maximum number of connections of one client: an IPv4 address or an IPv6 /64. Further ones are closed at once.
    pub connections_of_one_client: usize,
    /// Maximum number of concurrent watches. Further ones get 429.
    pub watches: usize,
    /// Maximum number of concurrent requests that only read (upstream: `--max-requests-inflight`).
    pub reading: usize,
    /// Maximum number of concurrent requests that write (upstream: `--max-mutating-requests-inflight`).
    pub mutating: usize,
    /// Maximum memory in bytes for the bodies of all concurrent requests, as text and decoded. Further requests get
    /// 429.
    pub body_bytes: usize,
    /// Deadline of a request other than a watch. Later it gets 504 (upstream: `--request-timeout`).
    pub request_time: Duration,
    /// Deadline of the TLS handshake. Go's HTTP client has the same one.
    pub handshake_time: Duration,
    /// Maximum time for which a client that has not authenticated may hold one of the places for long handshakes and
    /// heads. A client that was refused over HTTP/2 must read its answer in this time, too.
    pub place_time: Duration,
    /// Deadline of the head of an HTTP/1 request, counted from the end of the request before (upstream: 32 s).
    pub header_time: Duration,
    /// A client that reads nothing of an answer for this long, while data is ready for it, is disconnected.
    pub stall_time: Duration,
    /// A connection without requests is closed after this time (upstream: 90 s).
    pub idle_time: Duration,
    /// How long `/readyz` fails after a stop before the server stops listening (upstream:
    /// `--shutdown-delay-duration`).
    pub shutdown_delay: Duration,
    /// After that delay, how long the answers in progress may take.
    pub shutdown_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            connections_of_one_client: 2048,
            watches: 10_000,
            reading: 400,
            mutating: 200,
            body_bytes: 64 << 20,
            request_time: Duration::from_secs(60),
            handshake_time: Duration::from_secs(10),
            place_time: Duration::from_secs(5),
            header_time: Duration::from_secs(32),
            stall_time: Duration::from_secs(60),
            idle_time: Duration::from_secs(90),
            shutdown_delay: Duration::ZERO,
            shutdown_grace: Duration::from_secs(5),
        }
    }
}
