//! How much clients may ask for at a time.

use std::time::Duration;

/// Bounds that keep one client, or many, from taking the server away from the others.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at a time; more wait unaccepted.
    pub connections: usize,
    /// Connections of one client address (of IPv6: of one /64) at a time; more are closed at once.
    pub connections_of_one_client: usize,
    /// Watches at a time; more are answered with 429.
    pub watches: usize,
    /// Requests at a time that only read (upstream: `--max-requests-inflight`).
    pub reading: usize,
    /// Requests at a time that write (upstream: `--max-mutating-requests-inflight`).
    pub mutating: usize,
    /// Memory that the bodies of all requests under way may take, as text and decoded; more are answered with 429.
    pub body_bytes: usize,
    /// A request other than a watch is answered with 504 after this (upstream: `--request-timeout`).
    pub request_time: Duration,
    /// The TLS handshake may take this long (Go's HTTP client gives up after the same time).
    pub handshake_time: Duration,
    /// A client that has not shown who it is may hold one of the places for long handshakes and heads for this long.
    pub place_time: Duration,
    /// The head of an HTTP/1 request may take this long, counted from the end of the one before (upstream: 32 s).
    pub header_time: Duration,
    /// A client that takes nothing of an answer for this long, while there is some for it, is disconnected.
    pub stall_time: Duration,
    /// A connection without any request is closed after this (upstream: 90 s).
    pub idle_time: Duration,
    /// After a stop `/readyz` says so for this long before the server stops listening (upstream:
    /// `--shutdown-delay-duration`).
    pub shutdown_delay: Duration,
    /// After that, answers under way may take this long.
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
