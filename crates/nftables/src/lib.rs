//! The nftables data plane: Services and endpoints are set elements, chains and rules are a fixed skeleton.
//!
//! Changes of Service ports go in, one netlink transaction comes out. The planner is pure; [`Nftables`] owns the
//! socket. It must not know where the changes come from.
//!
//! # Layout
//!
//! Each of the families ip and ip6 has one table, `portolan`. Its chains and rules do not grow with the number of
//! Services. A packet takes two lookups:
//!
//! ```text
//! services    address . protocol . port ─┐
//! node-ports            protocol . port ─┴─> value: id of the Service port (upper 18 bits), class (lower 14 bits)
//! classes     class ───────────────────────> chain of the class, such as internal-3
//!                                              └─goto─> chain of its endpoints, such as endpoints-3
//! endpoints   id . random index ───────────> dnat to address . port
//! ```
//!
//! A class is everything about a Service port that must be a constant in a rule: the kind of traffic, the number of
//! cluster and of local endpoints (the modulus of `numgen`), and the affinity timeout. Local endpoints are in the
//! same map as cluster endpoints, from index 65536 on.
//!
//! Endpoints are elements, not chains, because the kernel never validates the table again for an element with plain
//! data. So the cost of a change does not depend on the number of Services.
//!
//! # The packet priority carries the value
//!
//! The first rule stores the value in the packet's priority, and the second reads it. The priority is set back to 0
//! at the next hook of a translated packet, before the packet can leave. One rule with two chained lookups would need
//! no storage, but nft 1.0.6 aborts when it lists such a rule. The packet mark is not used because other programs use
//! it. The cost: the first packet of a flow to a Service loses the priority that it had.
//!
//! # What is there only when it is needed
//!
//! The check of `loadBalancerSourceRanges` has base chains of its own, which every packet of the node meets. They exist
//! while a Service port has source ranges: the transaction that writes the first ranges creates them, and a collection
//! removes them after the last ranges are gone. The map of session affinity is created and removed in the same way.
//!
//! # Rejecting
//!
//! The checks lead to one chain, `reject-chain`. TCP gets a reset, everything else an ICMP port unreachable. TCP gets
//! no ICMP error because a client on this node holds its socket during `connect()`: the error would take effect only
//! when the SYN is repeated.
//!
//! # Session affinity
//!
//! The map `affinity` (id . client) holds the slot of the client's endpoint. Slots are stable while endpoints come
//! and go; indexes are not. If the endpoint of a slot is gone, the lookup in `affinity-endpoints` (or
//! `affinity-local-endpoints`) fails. Rules then delete the binding and create a new one.
//!
//! # Counters
//!
//! If the settings ask for counters, every Service port has slots, as with session affinity. The element of a slot counts
//! what went to its endpoint, and it stays while other endpoints come and go; the element of an index would not. The set
//! `service-counters` counts for each id, also what went to endpoints that are gone. Elements of refused frontends count,
//! too, and `source-range-drops` counts for each load-balancer IP. Rules that only count are rules of their own: a missing
//! element stops no packet. Counters are part of elements, so nothing else is written for them and a restart keeps them.
//!
//! # Transactions
//!
//! The first load is written in pieces of some thousand Service ports, so that neither memory nor the time under the
//! kernel's lock grows with the cluster. The base chains come last: without them the table does nothing, so
//! everything takes effect at once. Every later change is one transaction, and so is the result of every comparison. What
//! a packet may meet in between has transactions of its own (module `order`): new chains, the ends of refusals, source ranges and
//! endpoints that move.
//! Only if the send buffer cannot grow (in a user namespace) is a large transaction split.
//!
//! The kernel notifies us of changes by other programs ([`DriftWatch`](portolan_engine::drift::DriftWatch)). The subscription starts after the first
//! load, because a notification for each of our own elements would slow the load down. The engine notices what happens before. Any subscriber on this
//! machine, in any network namespace, has that effect.
//!
//! A class chain without Services is collected later, in two transactions a second apart: kernels before 6.2 keep a
//! chain referenced for a moment after the element that points to it is deleted.
//!
//! # Reading back
//!
//! [`read`] and [`read_capture`] return what the kernel has in the terms of Services, without the wanted table.
//! [`read_kube_proxy`] does the same for the table of kube-proxy's nftables mode.
//! [`Nftables::preview`] returns what the next comparison would write, as lines.
//!
//! A comparison of a large table takes a second. Between its requests it writes the changes that arrive
//! (module `early`). At a start, the table is read while the API server lists the objects ([`Reading`]). If nothing was committed
//! since the last run ended, the elements of large sets come from a file ([`SavedElements`]).

mod chain;
mod changeset;
mod class;
mod connections;
mod content;
mod counted;
mod dataplane;
mod departure;
mod drift;
mod early;
mod element;
mod encode;
mod expression;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod layout;
mod load;
#[cfg(any(test, feature = "fuzzing"))]
mod memory;
mod observe;
mod order;
#[cfg(test)]
mod path;
mod placement;
mod planner;
mod preview;
mod readback;
mod reading;
mod refusal;
mod resync;
mod skeleton;
mod value;

pub use connections::{Connections, TABLE as CONNECTIONS_TABLE};
pub use dataplane::Nftables;
pub use departure::{TableRemoval, remove as remove_table};
pub use layout::{CAPTURE_MODE, CAPTURE_TABLE, Listeners, TABLE, capture_mark};
pub use observe::{read, read_capture, read_kube_proxy};
pub use preview::preview_of_all;
pub use readback::SavedElements;
pub use reading::Reading;
