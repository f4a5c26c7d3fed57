//! Reports of hand-written cases, and laws over random worlds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod cases;
mod ipvs;
mod judged;
mod kernel;
mod random;
mod reverse_path;
mod routing;
mod unanswerable;
mod world;
