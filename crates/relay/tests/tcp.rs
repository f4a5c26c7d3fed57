//! The relay with real sockets, in network namespaces. Clients connect to a listener, whose address is the frontend.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a test program"
)]

#[path = "tcp/backoff.rs"]
mod backoff;
#[path = "tcp/failing.rs"]
mod failing;
#[path = "tcp/limits.rs"]
mod limits;
#[path = "tcp/snapshot.rs"]
mod snapshot;
#[path = "tcp/streams.rs"]
mod streams;
mod support;
