//! The meaning of Services, independent of the proxy mode. All code is pure.
//!
//! The crate owns the slim API objects, the [`Catalog`] that holds them, endpoint selection, the forwarding table
//! with its changes per Service port, and the [`oracle`] that predicts where a packet goes. Objects go in one event
//! at a time. [`Change`]s come out. The crate must not know I/O, clocks, async, netlink, rules or the API server.

mod capture;
pub mod catalog;
mod coalesced;
pub mod family;
pub mod object;
pub mod oracle;
pub mod scheduler;
pub mod selection;
pub mod settings;
pub mod table;
#[cfg(any(test, feature = "world"))]
pub mod world;

pub use capture::Capture;
pub use catalog::{Catalog, Event};
pub use coalesced::Coalesced;
pub use family::{Family, Protocol};
pub use scheduler::IpvsScheduler;
pub use settings::{LocalDetector, NodePortAddresses, Settings};
pub use table::{Backend, Change, ExternalPolicy, Forwarding, Frontend, InternalPolicy, ServicePortName};
