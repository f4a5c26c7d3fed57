//! Follows the API server: requests go out, events come in.
//!
//! This crate owns the connection to the API server and one reflector for each of the four collections that a node
//! needs: Services, EndpointSlices, its own Node and ServiceCIDRs. Response bodies come in. [`WatchEvent`]s go out
//! to one consumer, in the order of each collection, batched as they arrived. [`events`] posts Kubernetes Events
//! for `kubectl describe`. [`node`] writes to this node's Node. [`objects`] reads a whole collection once, and asks for permissions, for commands. All requests go through the
//! client that [`connect`] makes: credentials, certificates, proxies and the rate limit. The crate must not know
//! what the objects mean, nor anything of rules, netlink or metrics pages.
//!
//! ```text
//!  answers ──> driver ──objects, ends, times──> reflector ──query, delay──> driver ──events──> consumer
//!               I/O                               pure                       I/O
//! ```
//!
//! The reflector's decisions are a pure state machine (`reflector`); its time and random numbers are arguments. The
//! `driver` does its I/O. `frame`, `message` and `list` cut bodies into objects without holding whole bodies.
//!
//! # How long a request waits
//!
//! - A server in trouble (429, or 5xx that does not come from a load balancer) is asked with client-go's back-off.
//! - An absent server (nothing listens, no route, or a load balancer answers for it) is asked about every second.
//! - After any other failure the server is asked every few seconds.
//! - A watch that worked is reopened at once. A watch worked if it was open for at least 1 s, unless an `ERROR`
//!   event ended it before anything came.
//! - A watch that is cut sooner waits. One request per watch that worked is exempt from its wait: a list after a
//!   lost resource version or after missing bookmarks, or the reopening of a short watch in which something came.
//!
//! The delays and their reasons are in [`BackoffLimits`].
//!
//! # Which answers are accepted
//!
//! - Only objects of the requested kind are accepted, and only a list of that kind that is complete to its end.
//! - An empty list where more than one Service or EndpointSlice is known needs a second empty list that begins
//!   [`Timing::empty_list_hold`] later. A watcher that replaces another one starts with its object counts.
//! - A watch is trusted while events or bookmarks come and resource versions do not decrease. Its silence is summed
//!   over all its answers. If it is silent for [`Timing::bookmark_silence`] or a version goes back, a list replaces
//!   it.
//! - Objects that a new list lacks are removed when that list is complete, never before.

mod backoff;
mod client;
mod content_type;
mod counts;
mod driver;
pub mod events;
mod frame;
mod list;
mod message;
pub mod node;
pub mod objects;
mod reflector;
mod request;
mod status;
mod timing;
mod watch_event;
mod watcher;

pub use backoff::BackoffLimits;
pub use client::{
    ClientError, ClientSettings, CredentialError, ExecError, LimitError, LocalServer, PeerChanges, Peers,
    RequestDone, RequestHook, connect, server_url,
};
pub use counts::{Counts, KindCounts};
pub use frame::InvalidBody;
pub use kube::Client;
pub use reflector::RestartReason;
pub use status::ApiStatus;
pub use timing::Timing;
pub use watch_event::{ObjectError, WatchEvent};
pub use watcher::Watcher;
