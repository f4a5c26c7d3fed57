//! `portolan serve` with real clients: real processes, on the embedded store and on etcd, with many clients at once,
//! and while processes are killed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod answers;
mod bad_bodies;
#[path = "../common/mod.rs"]
mod common;
mod end_to_end;
mod health_checks;
mod kube_rs;
mod model;
mod names;
mod python;
mod readiness;
mod site;
mod soak;
