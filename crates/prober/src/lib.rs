//! Active health checks of endpoints. Annotations of a Service say how its endpoints are checked; the prober probes
//! each endpoint from this node and writes the result to the `conditions` of the EndpointSlices. It writes only slices
//! that people or manifests made: the slices of a controller have the conditions of that controller.
//!
//! The pure modules know neither I/O nor a clock; the time is an argument, as a [`Duration`](std::time::Duration) since
//! any fixed moment:
//! - [`annotations`]: annotations of a Service in, its health check and complaints out.
//! - [`check`]: the state of one endpoint. Results of probes in, changes of the state out.
//! - [`plan`]: Services, EndpointSlices and results in; endpoints to probe, patches of slices and Events out.
//! - [`schedule`]: when each endpoint is probed, evenly over the interval.
//! - [`lease`]: which of several servers probes.
//!
//! [`probe`] connects to endpoints. [`prober`] joins all of it in one task. [`metrics`] counts what it does.
//!
//! The crate must not know how objects are stored or watched, nor the rules of a data plane: objects come in through a
//! channel, and writes and Events leave through the traits in [`client`].

pub mod annotations;
pub mod check;
pub mod client;
mod error;
pub mod lease;
pub mod metrics;
pub mod object;
pub mod plan;
pub mod probe;
pub mod prober;
pub mod schedule;
#[cfg(test)]
mod testing;

pub use annotations::HealthCheck;
pub use client::{Events, LeaseClient, Writer};
pub use error::WriteError;
pub use metrics::Metrics;
pub use object::{EndpointSlice, Input, Service};
pub use plan::{Report, awaiting};
pub use prober::{Prober, ProberOptions};
