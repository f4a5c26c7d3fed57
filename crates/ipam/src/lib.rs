//! Cluster IPs and node ports: who may have which, and what is wrong with those given out.
//!
//! Owns the arithmetic of ranges and their static bands, the sets of what is taken, the decision which families,
//! addresses and node ports a Service gets ([`Planner`]), the checks of ranges, and the audit of a cluster
//! ([`repair`]). Specs, ranges and objects flow in as plain values; plans, errors and findings flow out. Randomness
//! and the time are given by the caller. It must not know of I/O, clocks, async, JSON, stores or watches.

pub mod bitmap;
pub mod check;
pub mod error;
pub mod families;
pub mod family;
pub mod node_port;
pub mod plan;
pub mod pool;
pub mod pools;
pub mod random;
pub mod range;
pub mod record;
pub mod repair;
pub mod service;
pub mod service_cidr;
pub mod update;

pub use error::{FieldError, Refusal};
pub use family::{Families, Family};
pub use node_port::{NodePortRange, NodePorts};
pub use plan::{Allocations, Conflict, Holder, Holders, NoHolders, Plan, Planner};
pub use pools::{AddressError, AddressPools};
pub use random::Random;
pub use range::AddressRange;
pub use service::{Claims, IpFamilyPolicy, Protocol, ServiceKey, ServicePort, ServiceSpec, ServiceType};
