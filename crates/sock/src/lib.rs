//! Netlink sockets: send a batch, read acknowledgements, dump, subscribe.
//!
//! Bytes and requests built by `portolan-wire` go in. Frames, acknowledgements and typed errors come out. Calls
//! either block or read only what is queued. A [`Socket`] exposes its descriptor for polling. The crate also holds
//! the few other functions that need `unsafe` or system calls on threads: network namespaces ([`namespace`]), sockets
//! for addresses of other hosts ([`original`]), several datagrams a call ([`datagrams`]), early signal handling
//! ([`signals`]) and settings of the allocator ([`memory`]).
//!
//! Must not know Services or the meaning of the messages.
#![allow(unsafe_code, reason = "the one room for system calls that no safe crate wraps")]

pub mod addresses;
mod commit;
pub mod datagrams;
mod errno;
mod error;
pub mod memory;
pub mod namespace;
mod option;
pub mod original;
mod reading;
mod receive;
pub mod routes;
pub mod signals;
mod socket;

pub use commit::Replies;
pub use errno::Errno;
pub use error::{CommitError, Refusal, SocketError};
pub use reading::{ATTEMPTS, retry_on_change};
pub use socket::{Protocol, Socket};
