//! Packet tests: send real packets through the kernel and compare the results with the oracle.
//!
//! Owns: the [`Cluster`] (a world of namespaces whose node runs the data plane of a [`Mode`], fed by a Catalog), the
//! [`Sender`]s in it, the comparison of the results, and a short notation for rows of decision tables
//! ([`Cluster::check`]).
//!
//! In: objects and attempts. Out: the results that differ from the oracle's.
//!
//! Must not know: how the data plane works, that is, no sets and no chains.
//!
//! Every test runs in every mode that the kernel supports ([`in_every_mode`]). Each test has its own namespaces, so
//! tests can run side by side. The namespaces end with the process.
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
pub use probing::{Attempt, ProbedAttempt};
pub use scenario::{At, attempts_of};
pub use sender::{Sender, SenderLocation};
