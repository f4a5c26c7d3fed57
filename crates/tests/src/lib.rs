//! Packet tests: real packets through the kernel, and the oracle's word on each of them.
//!
//! Owns the [`Cluster`] (a world of namespaces whose node runs the data plane of a [`Mode`], fed by a Catalog), the
//! [`Sender`]s in it, the judgement of what became of their packets, and a short notation for rows of
//! decision tables ([`Cluster::check`]). Objects and attempts flow in; what did not go as the oracle says
//! flows out. It must not know how the data plane does it: no sets, no chains. Every
//! test runs in every mode that the kernel has ([`in_every_mode`]).
//!
//! Everything is in namespaces of its own, so tests run side by side, and it all ends with the process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "helpers of tests: what fails here fails the test"
)]

mod cluster;
mod mode;
mod objects;
mod probing;
mod scenario;
mod sender;

pub use cluster::{
    CLUSTER_CIDRS, Cluster, NODE_NAME, PODS, REMOTE_NODE_NAME, REMOTE_PODS, SERVICE_CIDRS, TARGET_PORTS,
};
pub use mode::{Mode, ModeOptions};
pub use objects::{Endpoint, Service, service, slices};
pub use probing::{Attempt, Outcome};
pub use scenario::{At, attempts_of};
pub use sender::{Place, Sender};
