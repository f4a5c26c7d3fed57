//! Carries connections and datagrams to backends from user space, and tries the next backend when one fails.
//!
//! Changes of the forwarding table flow in through a [`Handle`]; captured connections and datagrams flow in through the
//! listeners, which something else (rules of the kernel) feeds. The original destination names the frontend (where it
//! was translated, somebody is asked for it: [`Translations`]); which of the two listeners of a family got the packet says whether the cluster's or this node's endpoints serve it: all of that
//! was decided before it came here.
//!
//! Apart from I/O are the parts that decide: who is next ([`rotation`], [`attempts`]), who stays where ([`affinity`]), who
//! is let in ([`share`]), when it is too late ([`deadlines`]), and the table they work on ([`table`]). One thread does all
//! of the I/O with one epoll instance: a Service costs no thread, and no lock is in the path of a byte.
//!
//! Must not know: rules, netlink, how packets are captured, the API server.

pub mod affinity;
pub mod attempts;
pub mod deadlines;
pub mod flows;
pub mod options;
pub mod rotation;
pub mod share;
pub mod table;

mod destination;
mod handle;
mod listener;
mod poll;
mod relay;
mod slots;
mod stream;
mod udp;

pub use destination::Translations;
pub use handle::{Capturing, Handle, spawn, spawn_with};
pub use listener::{Error, LISTENERS, OWN_PRIORITY};
pub use options::{Arrival, Counters, Options, Ports, raise_descriptors};
pub use table::Scope;
