//! Netlink sockets: send a batch, read acknowledgements, dump, subscribe.
//!
//! Bytes and requests made by `portolan-wire` flow in; frames, acknowledgements and typed errors flow out.
//! Everything is blocking or "what is there now"; a [`Socket`] gives its descriptor to whoever polls.
//! Beside it live the few other things that need `unsafe` or the kernel's thread calls: network namespaces
//! ([`namespace`]), sockets for addresses of others ([`original`]), what signals do early on ([`signals`]) and the allocator's
//! settings ([`memory`]).
//!
//! Must not know: Services, or what the messages mean.
#![allow(unsafe_code, reason = "the one room for system calls that no safe crate wraps")]

mod commit;
mod errno;
mod error;
pub mod memory;
pub mod namespace;
mod option;
pub mod original;
mod receive;
pub mod signals;
mod socket;

pub use commit::Replies;
pub use errno::Errno;
pub use error::{CommitError, Refusal, SocketError};
pub use socket::{Protocol, Socket};
