//! API server in, events out.
//!
//! Owns the connection to the API server and one reflector for each of the four collections that a node
//! needs: Services, EndpointSlices, this Node and ServiceCIDRs. Bytes flow in; [`WatchEvent`]s flow out to
//! one consumer, in the order of each collection, batched as they arrived. A reflector's decisions are a pure
//! state machine (`reflector`); `driver` does its I/O; `frame` and `list` cut bodies into objects without
//! holding them. In the other direction, [`events`] posts what an operator should see with `kubectl describe`; [`objects`] reads a collection once, for commands.
//! All requests share one way out, [`connect`]: credentials, certificates, proxies and the limit of requests.
//! The crate must not know what the objects mean, nor of rules, netlink or metrics pages.

mod backoff;
mod client;
mod driver;
pub mod events;
mod frame;
mod list;
pub mod objects;
mod reflector;
mod request;
mod status;
mod timing;
mod watcher;

pub use backoff::BackoffLimits;
pub use client::{
    ClientError, ClientSettings, CredentialError, ExecError, LimitError, PeerChanges, Peers, RequestDone,
    RequestHook, connect,
};
pub use driver::ObjectError;
pub use frame::Garbage;
pub use kube::Client;
pub use reflector::RestartReason;
pub use status::ApiStatus;
pub use timing::Timing;
pub use watcher::{Counts, KindCounts, WatchEvent, Watcher};
