//! Cluster IPs, addresses of load balancers and node ports: which are allocated, which may be allocated, and an audit of
//! a cluster's allocations.
//!
//! The crate owns the arithmetic of ranges and their static bands, the sets of allocated numbers, the decision which
//! families, addresses and node ports a Service gets ([`Planner`], [`load_balancer`]), the validation of ranges, and the
//! audit of a cluster ([`repair`]). Specs, ranges and objects go in as plain values. Plans, errors and findings come out. The
//! caller supplies randomness and the time. The crate must not know I/O, clocks, async, JSON, stores or watches.

pub mod bitmap;
pub mod check;
pub mod error;
pub mod families;
pub mod family;
pub mod load_balancer;
pub mod node_port;
pub mod nodes;
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
pub use nodes::Nodes;
pub use plan::{Allocations, Conflict, Holder, Holders, NoHolders, Plan, Planner};
pub use pools::{AddressError, AddressPools};
pub use random::Random;
pub use range::AddressRange;
pub use service::{Claims, IpFamilyPolicy, Protocol, ServiceKey, ServicePort, ServiceSpec, ServiceType};
