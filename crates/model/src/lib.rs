//! The meaning of Services, independent of the proxy mode. All code is pure.
//!
//! The crate owns the slim API objects, the [`Catalog`] that holds them, endpoint selection, and the forwarding table
//! with its changes per Service port. Objects go in one event at a time. [`Change`]s come out.
//!
//! It also owns what is read from the table: the [`oracle`] predicts where a packet goes and returns a [`verdict`] with
//! the reasons, [`Catalog::explain`] tells why an endpoint serves or not, and [`observed`] compares the table with what
//! the kernel has.
//!
//! The crate must not know I/O, clocks, async, netlink, rules or the API server.

mod capture;
pub mod catalog;
mod coalesced;
pub mod object;
pub mod observed;
pub mod oracle;
pub mod scheduler;
pub mod selection;
pub mod settings;
pub mod table;
pub mod verdict;
#[cfg(any(test, feature = "world"))]
pub mod world;

pub use capture::{Capture, RELAY_PRIORITY};
pub use catalog::{Catalog, Event};
pub use coalesced::Coalesced;
pub use portolan_net::{Family, Protocol};
pub use scheduler::IpvsScheduler;
pub use settings::{LocalDetector, NodePortAddresses, Settings};
pub use table::{Backend, Change, ExternalPolicy, Forwarding, Frontend, InternalPolicy, ServicePortName};
