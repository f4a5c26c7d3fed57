//! Tests the IPVS mode in the running kernel, each test in a network namespace of its own. They need root, iptables,
//! ipset, ipvsadm, and a kernel with IPVS: `tests/vm/run` boots one. Without IPVS in the kernel they are skipped,
//! unless `PORTOLAN_TEST_IPVS` is set: then they fail.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

#[path = "ipvs/affinity.rs"]
mod affinity;
#[path = "ipvs/connections.rs"]
mod connections;
#[path = "ipvs/draining.rs"]
mod draining;
#[path = "../../iptables/tests/iptables/example.rs"]
mod example;
#[path = "ipvs/incremental.rs"]
mod incremental;
#[path = "ipvs/listing.rs"]
mod listing;
#[path = "../../iptables/tests/iptables/load.rs"]
#[expect(
    dead_code,
    reason = "the load of the iptables mode's tests is more than an emulated machine can carry"
)]
mod load;
#[path = "ipvs/no_programs.rs"]
mod no_programs;
#[path = "ipvs/observed.rs"]
mod observed;
#[path = "ipvs/only_ours.rs"]
mod only_ours;
#[path = "ipvs/only_ours_by_variant.rs"]
mod only_ours_by_variant;
#[path = "ipvs/others.rs"]
mod others;
#[path = "ipvs/probe.rs"]
mod probe;
#[path = "ipvs/scale.rs"]
mod scale;
#[path = "ipvs/schedulers.rs"]
mod schedulers;
#[path = "ipvs/support.rs"]
mod support;
#[path = "ipvs/switch.rs"]
mod switch;
