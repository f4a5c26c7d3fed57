//! The meaning of reads and writes of the API server's objects.
//!
//! Owns: the rules for writing each kind (defaults, validation, metadata, field owners, deletion), the allocation of
//! addresses and node ports to stored Services, selectors, the errors that clients get, and the audit of a cluster.
//!
//! In: decoded objects and patches, from HTTP requests, manifests, controllers and callers in the same process. Out:
//! transactions of the [`Store`](portolan_store::Store), and outcomes or errors for the caller.
//!
//! Must not know: HTTP, TLS, clients and what they may do, files, controllers, where the store keeps its data.
//!
//! The path of a write:
//! - [`Api`] applies the patch, sets defaults, validates the object, and plans cluster IPs and node ports. Which
//!   address a Service gets is decided by `portolan-ipam`.
//! - The plan becomes one transaction: the object, and the objects that record its addresses and ports.
//! - The store applies the whole transaction or nothing. It gives each object its revision, keeps the history, and
//!   publishes the objects once they are durable.

mod allocate;
mod api;
pub mod audit;
mod config;
mod error;
pub mod events;
mod histogram;
pub mod kinds;
pub mod load_balancer;
pub mod metadata;
mod names;
mod network;
mod open;
mod refused;
mod selector;
pub mod service_cidr;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use self::{
    allocate::{AllocationScope, AllocatorMetrics, address_draft, load_balancer_draft, port_draft},
    api::{
        Api, Blocking, Change, DeleteOptions, Effect, FieldManager, Kept, Part, Preconditions, Propagation,
        SYSTEM_NAMESPACES, Target, WriteOptions, WriteResult, resource_of,
    },
    config::{ApiConfig, ConfigError, HealthChecked, LoadBalancerRanges, ServiceRanges},
    error::{ApiError, CauseReason, FieldError},
    histogram::Histogram,
    names::{is_label_value, is_qualified_name},
    refused::Refused,
    selector::Selector,
};
pub use portolan_ipam::{NodePortRange, node_port::NodePortRangeError};
