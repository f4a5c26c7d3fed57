//! Faults that are planted in network namespaces: each is found, the printed command mends it, and `--fix` mends those that
//! are safe. Needs root, nft, iptables, ipset and iproute2, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

#[path = "faults/firewall.rs"]
mod firewall;
#[path = "faults/leftovers.rs"]
mod leftovers;
#[path = "faults/machine.rs"]
mod machine;
#[path = "faults/node.rs"]
mod node;
#[path = "faults/proxies.rs"]
mod proxies;
#[path = "faults/support.rs"]
mod support;
