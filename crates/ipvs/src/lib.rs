//! The IPVS data plane: the frontends of one family as virtual servers of the kernel, with endpoints as real servers.
//!
//! The module owns what the forwarding table requires (`desired` and below it, all pure), how that differs from the
//! kernel's state (`difference`), and the sockets and programs that read and write it ([`Ipvs`]). It must not know
//! where changes come from, nor when a commit is due.
//!
//! # Objects
//!
//! Objects and their names are kube-proxy's: the network device `kube-ipvs0` with the addresses of Services, a
//! virtual server for each frontend with one real server for each endpoint, ipsets, and a few iptables rules. All but
//! the rules are written over netlink.
//!
//! ```text
//! forwarding table ──> Desired ──Difference──> netlink, in order ──> kernel
//!                       pure        pure    <────reading────────────
//! ```
//!
//! - `desired` and `frontend` compute the objects that each Service port needs, and count how many need the same one.
//!   They refer to the `Forwarding`s and do not copy endpoints. A change returns the former state of the objects that
//!   it touches.
//! - `difference` computes the messages that turn one state into another. The same function serves a change (from the
//!   former state of the touched objects) and a comparison (from the state that was read). A change takes a handful
//!   of messages, whatever the size of the cluster; one call sends many messages.
//! - `rules` refer to the sets and do not depend on Services, nor on which sets are empty. They are written once, and
//!   read at comparisons only. Packets of this node itself are checked in the mangle table, before IPVS translates
//!   them.
//!
//! # Order of writes
//!
//! First come the members of sets, then rules, virtual servers with their real servers, and last the addresses that
//! bring packets to them. Removals go in the reverse order. If the iptables mode was active before, its
//! `KUBE-SERVICES` chain is rewritten after the addresses, so that packets reach endpoints by one mode or the other
//! at every moment.
//!
//! # Refused TCP
//!
//! IPVS refuses connections with ICMP errors only. So TCP to a frontend without endpoints is in the set
//! `PORTOLAN-REJECT`, and a rule resets it before IPVS gets it. Packets of this node reach IPVS before the filter
//! table, the only one that may refuse. So a rule redirects their first packets to port 1 of loopback, past IPVS,
//! and another rule resets them in OUTPUT, before connection tracking keeps an entry. Connections that drain keep their virtual server.
//!
//! # Counts of refused packets
//!
//! The ipsets of refused frontends have the extension `counters`: each member counts the packets for which a rule found
//! it. A rule matches such a set last, so that it counts only what it refuses, and each packet once. Two sets only
//! count: `PORTOLAN-COUNT-REJECT` what IPVS itself refuses, in rules without a target, and `PORTOLAN-SOURCE-RANGES` what no
//! source range allows.
//!
//! # Comparisons and refusals
//!
//! IPVS does not notify programs of changes. So everything is compared every `syncPeriod`, and at once when the
//! kernel refuses a change. If the kernel refuses something again at the comparison, such as an endpoint at a
//! broadcast address, it is reported with the Service ports that need it, and everything else is written. If a set is
//! full, the Service ports that need a member that did not fit are left out as a whole.
//!
//! # Owners of virtual servers
//!
//! These virtual servers are ours; all others stay:
//!
//! - those that the forwarding table needs;
//! - those at an address of `kube-ipvs0`;
//! - those in the set `PORTOLAN-VIRTUAL-SERVERS`: node ports, and addresses that another interface has. The set is
//!   written before them and survives a restart of the agent.
//!
//! Where kube-proxy was active before, that set is missing. Its node ports are recognized by its own sets of ports
//! and an address of this node. They are the first members of the set, which gets its name when it has them. In `excludeCIDRs` only the set `PORTOLAN-VIRTUAL-SERVERS` decides, so it names all of
//! ours there. A virtual server there that it does not name stays, and a Service does not get a virtual server at
//! that address and port.
//!
//! # Draining and retirement
//!
//! - An endpoint that is removed gets weight 0. Its real server goes when its connections have ended or its deadline
//!   has passed. After a restart it is found by its weight, and its deadline by its upper threshold, which has no
//!   meaning at weight 0. UDP endpoints go at once, because a flow has no end. IPVS drops the
//!   flow's packets until its entry in conntrack is deleted, and then gives it another endpoint.
//!   At once go also endpoints with the scheduler `dh`, which would choose them for new connections.
//! - A data plane that another mode replaces removes its rules when the packets in transit have passed, and each
//!   virtual server when it has no connections left. Until the last address is removed from the device, two chains
//!   have rules for packets to and from these addresses (`rules::guard`). The same happens to what an earlier run
//!   left, recognized by the set `PORTOLAN-VIRTUAL-SERVERS`. Virtual servers of kube-proxy go at once. The device
//!   stays until neither family has that set, because virtual servers are looked for only where the device exists.
//! - The agent may have lost the permission to run programs of iptables since that run. It still removes everything that is
//!   removed over netlink, and the rules where iptables is a front end of nftables (`kernel::rules`). The two chains need the
//!   programs and are left out. Rules of the older iptables stay; sets that they refer to stay without members.
//!
//! `leftovers` decides whose the objects of this mode are when kube-proxy may be active.
//!
//! # Reading in terms of Services
//!
//! [`read()`] describes what the kernel has, whether this mode or kube-proxy's IPVS mode wrote it, as a
//! [`portolan_model::observed::Observed`]. Module `read` fetches rows, and module `observe` translates them. Neither
//! needs the forwarding table. [`Ipvs::preview`] returns what the next comparison would write, as lines.

mod dataplane;
mod desired;
mod device;
mod difference;
mod draining;
mod error;
mod frontend;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod kernel;
#[cfg(test)]
mod memory;
mod meter;
mod module;
mod observe;
mod options;
mod owners;
mod preview;
mod probe;
mod read;
mod refusal;
mod rules;
mod set;
mod settings;
mod trial;
mod words;

pub use dataplane::Ipvs;
pub use device::{DEVICE, device};
pub use error::Error;
pub use frontend::Key;
pub use kernel::{Kernel, count_virtual_servers, is_left};
pub use meter::Meter;
pub use options::IpvsOptions;
pub use owners::Owners;
pub use portolan_wire::ipvs::Timeouts;
pub use preview::preview_of_all;
pub use probe::available;
pub use read::{Known, read};
pub use rules::{Jump, is_kept_while_draining, own_jumps, uses};
pub use settings::{CONNTRACK_SETTING, KernelVersion, kernel_default, kernel_settings};
pub use trial::try_rules;
