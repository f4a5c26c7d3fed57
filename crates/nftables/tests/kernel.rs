//! The nftables data plane against the running kernel, each test in a network namespace of its own. Needs root
//! and nft, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

#[path = "kernel/contention.rs"]
mod contention;
#[path = "kernel/counters.rs"]
mod counters;
#[path = "kernel/edits.rs"]
mod edits;
#[path = "kernel/faults.rs"]
mod faults;
#[path = "kernel/limits.rs"]
mod limits;
#[path = "kernel/listing.rs"]
mod listing;
#[cfg(feature = "fuzzing")]
#[path = "kernel/listings.rs"]
mod listings;
#[path = "kernel/observe.rs"]
mod observe;
#[path = "kernel/preview.rs"]
mod preview;
#[path = "kernel/priority.rs"]
mod priority;
#[path = "kernel/restart.rs"]
mod restart;
#[path = "kernel/support.rs"]
mod support;
#[path = "kernel/table.rs"]
mod table;
#[path = "kernel/transactions.rs"]
mod transactions;
#[path = "kernel/upstream.rs"]
mod upstream;
