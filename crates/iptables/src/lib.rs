//! The iptables data plane: the Services of one family as chains and rules of iptables.
//!
//! The module owns the rules of the mode ([`Planner`], all pure: the forwarding table goes in, the text for
//! `iptables-restore` comes out) and the programs ([`Programs`] finds and runs them). [`Iptables`] connects the two
//! with the kernel. The module must not know where changes come from, nor when a commit is due.
//!
//! # Rules
//!
//! The rules are kube-proxy's: the names of chains with their hashes, the comments, the verdicts, and the order
//! within a chain. In chains that Services share, the order of Services is free, because no packet matches two
//! frontends.
//!
//! ```text
//! PREROUTING, OUTPUT ─> KUBE-SERVICES ─> [KUBE-FW ─>] KUBE-EXT ─> KUBE-SVC or KUBE-SVL ─> KUBE-SEP (DNAT)
//!                            └─last─> KUBE-NODEPORTS ─┘
//! ```
//!
//! `dispatch`, `chains` and `fixed` make the rules from one Service port, the settings and the features of the node.
//! The text of rules in the kernel is not stored: the former rules of a Service port are made again from its old
//! `Forwarding`.
//!
//! ```text
//! forwarding table ──> Planner ──text──> iptables-restore ──> kernel
//!                       pure    <────hashes──── iptables-save (at a full load only)
//! ```
//!
//! # Partial restore and full load
//!
//! - A partial restore writes a change. It contains the chains of Service ports whose rules differ. In shared chains
//!   it changes single rules: it removes a rule by its text, and adds one at the head of `KUBE-SERVICES` in the nat
//!   table (whose last rule stays last) or at the end of another chain. From 100 removed rules on, it writes the
//!   shared chains of the table as a whole. If a rule to be removed is missing, another program has changed the
//!   rules: the restore fails, and a full load follows.
//! - A full load reads a save and writes every chain that is missing or differs. It runs at the start, after a
//!   failure, for new settings, and after a change by another program. It takes over kube-proxy's rules in the same
//!   way. To compare chains, `saved` rewrites rules as `iptables-save` prints them and hashes them, chain by chain.
//!   Where a version of iptables prints a rule in another way, the chain is written again, with no other effect.
//!
//! # Order of writes
//!
//! One run of iptables-restore serves one family, and each table in its input is a transaction. A packet to a Service
//! must meet a refusal in the filter table or a translation in the nat table. A packet that meets neither leaves the node
//! as it is, and connection tracking keeps it so: the client waits until it gives up. So a change and a full load have
//! this order:
//!
//! 1. the rules that are added to the filter table;
//! 2. the nat table;
//! 3. the rules that are removed from the filter table.
//!
//! A step without rules is left out. A change without a rule of the nat table writes the filter table at once.
//!
//! A full load adds to the shared chains of the filter table the rules that they lack, and writes those chains anew after
//! the nat table that have too many. Over rules of the IPVS mode, `KUBE-PROXY-FIREWALL` is written after the nat table
//! only: packets of that mode still have the Service's address, and would be dropped. The same transaction removes the rules
//! by which all packets enter this chain in that mode. Its connections go on, and only new ones are checked.
//!
//! In the nat table, a full load writes the chains of Services first, and last the shared chains, the jumps from the
//! kernel's own chains and the removal of stale chains in one transaction. The front end of nftables gets the chains of
//! Services in pieces, because its time grows with the square of the rules in a transaction. The older iptables gets them at
//! once, because it copies the whole table for each transaction. So:
//!
//! - At every moment each chain has either its old or its new content, and no rule leads to an incomplete chain. A
//!   shared chain of the filter table may have both.
//! - At every moment each packet of a Service is refused, dropped or translated, if it is so before and after.
//! - A chain is removed in the transaction that removes the last rule that leads to it, or in a later one.
//! - New Services take effect at once.
//! - A restore that fails between two tables leaves a refusal too many, but none too few. The full load that follows reads
//!   what is there.
//!
//! A chain that is replaced with the same rules loses its counters and nothing else: clients stay with their
//! endpoints.
//!
//! # Lock, counters, and changes by other programs
//!
//! - The programs of the older iptables hold a lock while they write. `lock` waits for it before each restore, at
//!   most five seconds, so that the wait can be measured. The program then waits for it, too.
//! - A full load creates the nfacct counters. It tries once whether rules can refer to them.
//! - Where iptables is a front end of nftables, the kernel notifies of changes and names the process that made each.
//!   The data plane recognizes the processes that it has run ([`Writers`]). The older iptables has no notifications:
//!   the data plane checks periodically for the canaries, the jumps, and rules of each shared chain.
//!
//! # Reading back
//!
//! `observe` reads the rules of a save in the terms of the forwarding table, one line at a time. [`read`] works without a
//! running agent, and also for the rules of kube-proxy. [`preview()`] returns what the next full load would write.
//!
//! # Features that a node may lack
//!
//! Session affinity and SCTP need a module of the kernel each, without which every restore with such a rule fails.
//! `features` tries one rule before Services need it. Where it is refused, Services have no session affinity, or
//! no rules for SCTP, and these Service ports are reported.
//!
//! # Removal
//!
//! With the front end of nftables, a removal runs over netlink: `iptables-restore` would list the rules of every
//! chain. First it removes the rules by which packets enter this mode's chains, in one transaction, and then the chains,
//! in parts. The older iptables copies the table for each transaction, so all goes in one restore, in a thread of its
//! own (`removal_thread`). Before another data plane compares, the thread has ended its restore, or writes none. A chain
//! that rules of other programs lead to stays.
//!
//! # Memory
//!
//! The memory of kernel and programs follows from the numbers of frontends and endpoints ([`Memory`]). The agent
//! counts these with each change and compares the estimate with the limit of its cgroup, so that it can report a
//! limit that is too low before it loads rules.
//!
//! # Differences from kube-proxy
//!
//! - TCP is refused with a reset.
//! - This node's packets to its own node ports without endpoints are refused in OUTPUT, by a rule that leads from `KUBE-SERVICES`
//!   to `KUBE-EXTERNAL-SERVICES` in the filter table.
//! - Rules name endpoints in comments only in a cluster of up to 1000 endpoints. A full load decides that, and counts
//!   the endpoints in use.
//! - Source ranges are aggregated and sorted.

mod chains;
mod counters;
mod dataplane;
mod dispatch;
mod features;
mod fixed;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
#[cfg(any(test, feature = "fuzzing"))]
mod interpreter;
mod lock;
mod memory;
mod meter;
mod name;
pub mod netlink;
mod observe;
mod options;
mod planner;
mod present;
mod preview;
mod probe;
mod program;
mod removal;
mod removal_thread;
mod rule;
mod saved;
mod service;
#[cfg(test)]
mod walk;
mod writers;

pub use counters::{Counted, counted, counter_names, remove_counters};
pub use dataplane::Iptables;
pub use memory::{Memory, Size};
pub use meter::{Measures, Meter, Rules};
pub use observe::{Reading, UnknownRule, UnknownRules, read};
pub use options::{IptablesOptions, Redirect};
pub use planner::{Pieces, Planner};
pub use present::Present;
pub use present::is_own;
pub use preview::{preview, preview_of_all};
pub use program::{Error, Programs, Variant};
pub use rule::Candidate;
pub use writers::Writers;
