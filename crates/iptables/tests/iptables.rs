//! Tests the rules of the iptables mode in the running kernel, with both variants of the iptables programs, each test
//! in a network namespace of its own. They need root and iptables, and fail without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

#[path = "iptables/drift.rs"]
mod drift;
#[path = "iptables/example.rs"]
mod example;
#[path = "iptables/faults.rs"]
mod faults;
#[path = "iptables/features.rs"]
mod features;
#[path = "iptables/kernel.rs"]
mod kernel;
#[path = "iptables/load.rs"]
mod load;
#[path = "iptables/memory.rs"]
mod memory;
#[path = "iptables/observe.rs"]
mod observe;
#[path = "iptables/preview.rs"]
mod preview;
#[path = "iptables/refusals.rs"]
mod refusals;
#[path = "iptables/suspension.rs"]
mod suspension;
#[path = "iptables/takeover.rs"]
mod takeover;
#[path = "iptables/unprinted.rs"]
mod unprinted;
#[path = "iptables/wrapped.rs"]
mod wrapped;
