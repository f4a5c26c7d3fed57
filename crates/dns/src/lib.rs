//! Names for Services: the DNS records that Kubernetes' specification of service discovery (version 1.1.0) demands, the
//! server that answers for them, and the environment variables of Services.
//!
//! Services and EndpointSlices go in ([`object`]), as JSON of API objects or as values. [`records`] computes the
//! records of one Service. [`zone`] is the index over all of them; a change costs as much as the Service that it
//! touches. [`answer`] turns the bytes of a request into the bytes of the answer. All of this is pure. [`server`] does
//! the I/O over UDP and TCP, and [`forward`] asks the servers of resolv.conf about other names. [`metrics`] counts
//! answers. [`mod@env`] is separate: the variables of a namespace's Services, as text.
//!
//! The crate must not know rules, netlink, watches, stores or which program runs it.

pub mod answer;
pub mod env;
pub mod forward;
mod label;
pub mod metrics;
pub mod object;
pub mod records;
pub mod reverse;
pub mod server;
pub mod zone;

pub use object::{ObjectName, Service, Slice};
pub use server::{Limits, Server};
pub use zone::{Settings, Zone};
