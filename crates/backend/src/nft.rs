//! The nftables data plane: Services and endpoints are set elements in a fixed skeleton of chains and rules.
//!
//! See `ARCHITECTURE.md` for the layout. The planner is pure; [`Nftables`] is the edge.

mod changeset;
mod class;
mod content;
mod counted;
mod dataplane;
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

pub use dataplane::Nftables;
pub use drift::DriftWatch;
pub use skeleton::TABLE;
