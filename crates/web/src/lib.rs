//! The HTTP floor of the health and metrics servers and of the API server.
//!
//! Owns: listening sockets over TCP ([`listen()`]) and at paths ([`UnixSocket`]), a small HTTP/1.1 server with limits for
//! slow and hostile clients ([`Server`], [`serve`]), a small client for commands ([`ask`]), complete answers ([`answer()`]) and
//! those that follow later ([`Reply`]), gzip negotiation ([`accepts_gzip`], [`compressed`]), and the text format of metrics
//! ([`metrics`]).
//!
//! In: addresses, functions from a request to an answer, numbers. Out: answers, pages of metrics, and the error that
//! ends a server.
//!
//! Must not know: what answers and metrics are about, TLS, authentication, Kubernetes.
//!
//! The API server has connections of its own, because TLS, HTTP/2 and long answers need other limits. It shares the
//! answers, the negotiation and the text format.

mod answer;
mod client;
mod connections;
mod encoding;
mod listen;
pub mod metrics;
mod server;
mod stream;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod unix;

pub use self::{
    answer::{Answer, Handler, JSON, PLAIN, Promise, Reply, answer, not_found},
    client::{Received, ServerAddress, ask},
    connections::serve,
    encoding::{accepts_gzip, compressed},
    listen::{Wildcard, listen},
    server::{BindError, HardFail, Opened, Server},
    stream::Listener,
    unix::{UnixSocket, UnixSocketError},
};
