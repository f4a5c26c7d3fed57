//! The userspace data plane: rules in the kernel capture the packets of Services, and the relay (`portolan-relay`)
//! carries their payload to endpoints.
//!
//! Owns what kernel and relay must do for one change ([`Userspace`]), the view of a Service port that the kernel's rules
//! implement (`seen`), what kernel and relay have in the terms of Services (`observe`), the two ways of capture (`kernel`), and the policy routing that one of them needs (`routing`).
//! Which packets are captured, dropped or refused is decided by the nftables mode (`portolan_nftables::Listeners`) or the iptables mode
//! (`portolan_iptables::Redirect`). This module must not know how the relay works.
//!
//! # From the forwarding table to the kernel
//!
//! ```text
//! forwarding table --+--> Forwardings with the relay's     --> nftables planner --> table portolan-userspace
//!                    |    listeners as their endpoints      or iptables planner --> chains KUBE-...
//!                    +--> relay: frontends, endpoints, affinity
//! ```
//!
//! Each of the two sets of endpoints of a Service port (the cluster's, this node's) becomes one listener. A change of
//! endpoints writes no rule as long as the set stays non-empty. The destination identifies the Service port, and the
//! listener identifies the set of endpoints. So there are two listeners for each family and protocol, however many
//! Services there are.
//!
//! # Capture by `tproxy`
//!
//! ```text
//! PREROUTING --> portolan-userspace: services --> class --tproxy, mark--> ip rule, local route --> listener --+
//! OUTPUT --mark--> loopback --> PREROUTING                                                                  relay --> endpoint
//! PREROUTING, OUTPUT --> portolan-relay: connections of the relay --mark--> their sockets ------------------+
//! ```
//!
//! - **Rules.** The sets, ids, classes and checks are those of the nftables mode; only the last step differs. These
//!   rules alone decide what is dropped, refused or short-circuited; the relay does not check it again.
//! - **Listeners** are on the loopback addresses. `tproxy` leaves the destination of the packet as it is.
//! - **The mark** is bit 12, or bit 6 if `masqueradeBit` is 12. The policy rule at priority 500 ([`RULE_PRIORITY`]) sends
//!   marked packets to table 28783 ([`TABLE`]), whose only route delivers them to this node. `tproxy` works in PREROUTING
//!   only, so packets that this node sends are marked in OUTPUT and come back through the loopback interface.
//! - **Other modes.** The capture chains run at priority -98, after destination NAT (-100), and skip connections that
//!   another mode translates. So each connection belongs to one mode while one takes over from the other. An empty chain
//!   of type nat keeps the kernel translating connections that another mode has begun.
//! - **The table `portolan-relay`** runs at priority -99. It brings packets of the relay's connections to their sockets
//!   after their Service, or all capture rules, have been removed. It gives established ones the packet priority
//!   (`SO_PRIORITY`) of the relay's own packets. The first rule of the capture chains accepts packets with this priority,
//!   and the second one in PREROUTING accepts TCP packets in the reply direction.
//! - **Crash.** If no listener is open, the rule after `tproxy` refuses the packet (TCP: with a reset).
//!
//! # Capture by redirect
//!
//! This way is used if the kernel has no `tproxy`, or if the configuration asks for it. The rules are those of the
//! iptables mode, but each set of endpoints is one chain (`KUBE-SEP-`) that translates to a listener at the node's
//! address. If that address is not known, the chain uses `REDIRECT`, and the kernel chooses the address. Rules of the
//! iptables mode and these replace each other chain by chain.
//!
//! - **Destinations.** For connections, the kernel returns the original destination (`SO_ORIGINAL_DST`). For datagrams,
//!   conntrack is queried over netlink by the tuple of the replies, which leave through the listener.
//! - **No policy routing**, and no table `portolan-relay`: the kernel goes on translating existing connections when the
//!   rules are gone.
//! - **The relay's own packets** carry mark 0x4, and return from the chain.
//! - **The client's address** cannot be kept.
//! - **Reading back** (`observe`): frontends and source ranges are those of the rules, endpoints and session affinity those of
//!   the relay's table.
//!
//! # Takeover by another mode
//!
//! For a captured UDP flow, conntrack stores that it is not translated, and keeps that as long as datagrams arrive. So
//! the flows are deleted from conntrack while they are still captured, repeatedly until none is left. The next datagram
//! of each is then the first one of a new flow, which the other mode translates; none is lost. Then the capture rules are
//! removed, and last, when the relay has no connections or its time to drain is over, the policy routing and the table
//! `portolan-relay`.

mod dataplane;
mod kernel;
mod observe;
mod remains;
mod routing;
mod seen;

pub use dataplane::{Rules, Userspace, spawn_translated};
pub use observe::{read, read_redirect};
pub use remains::Remains;
pub use routing::{RULE_PRIORITY, Routing, RuleWatch, TABLE, find as find_routing};
