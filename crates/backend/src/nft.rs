//! The nftables data plane: Services and endpoints are set elements in a fixed skeleton of chains and rules.
//!
//! See `ARCHITECTURE.md` for the layout. The planner is pure; [`Nftables`] is the edge.

mod capture;
mod changeset;
mod class;
mod content;
mod counted;
mod dataplane;
pub(crate) mod departure;
mod drift;
mod element;
mod encode;
mod expression;
mod load;
mod placement;
mod planner;
mod readback;
mod resync;
mod skeleton;
mod value;

pub use capture::{CONNECTIONS_TABLE, Capture, TABLE as CAPTURE_TABLE};
pub(crate) use capture::{Connections, MODE as CAPTURE_MODE, capture_mark};
pub use dataplane::Nftables;
pub(crate) use departure::Departure;
pub use drift::{DriftWatch, Own};
pub use skeleton::TABLE;
