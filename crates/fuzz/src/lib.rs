//! What reads outside data, with any input: one function for each fuzz target.
//!
//! In: the bytes that a fuzzer chose. Out: nothing, or a panic that says what was violated. `fuzz/` runs each function with
//! libFuzzer. `tests/corpora.rs` runs it with the inputs that libFuzzer found, so that `make test` does it, too.
//!
//! ```text
//!  choices ─┬─ worlds: objects ── the code that writes them ──> messages, rules, manifests, requests ──┐
//!           └─ script ──────────────────────────────────────────────── edits ──────────────────────────┴──> reader
//! ```
//!
//! Random bytes fail at the first check of a reader. So an input may also be a list of choices (`script`): a random world, what
//! Portolan, kube-proxy or a client writes for it, and some edits of that (`edits`). Tests check that each reader understands
//! what is written without edits.
//!
//! Must not know: which fuzzer there is, and how inputs are stored.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a violation ends the run"
)]

mod annotations;
mod configuration;
mod dns;
mod edits;
mod firewall;
mod manifests;
mod netlink;
mod objects;
mod observed;
mod patch;
mod protobuf;
mod removal;
mod requests;
mod script;
mod snapshot;
mod store_file;
mod stored;
mod watches;
mod worlds;

/// A function that takes any bytes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name of the fuzz target and of its corpus.
    pub name: &'static str,
    run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 25] = [
    Target { name: "acknowledgement", run: netlink::acknowledgement },
    Target { name: "annotations", run: annotations::run },
    Target { name: "configuration", run: configuration::run },
    Target { name: "conntrack", run: netlink::conntrack },
    Target { name: "dns", run: dns::run },
    Target { name: "firewall", run: firewall::run },
    Target { name: "generic", run: netlink::generic },
    Target { name: "ipset", run: netlink::ipset },
    Target { name: "manifests", run: manifests::run },
    Target { name: "nfacct", run: netlink::nfacct },
    Target { name: "nftables", run: netlink::nftables },
    Target { name: "objects", run: objects::run },
    Target { name: "observed_iptables", run: observed::iptables },
    Target { name: "observed_ipvs", run: observed::ipvs },
    Target { name: "observed_nftables", run: observed::nftables },
    Target { name: "patch", run: patch::run },
    Target { name: "protobuf", run: protobuf::run },
    Target { name: "removal", run: removal::run },
    Target { name: "requests", run: requests::run },
    Target { name: "route", run: netlink::route },
    Target { name: "saved_elements", run: observed::saved_elements },
    Target { name: "snapshot", run: snapshot::run },
    Target { name: "store_file", run: store_file::run },
    Target { name: "stored", run: stored::run },
    Target { name: "watches", run: watches::run },
];

impl Target {
    /// Runs the function.
    pub fn run(&self, bytes: &[u8]) {
        (self.run)(bytes);
    }
}

/// Runs the target of this name.
///
/// # Panics
/// If there is no such target, or if the input violates what the target promises.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target of this name");
    target.run(bytes);
}
