//! Namespaces, pods, probes: the world that packet tests, the demo and the benchmark run in.
//!
//! Owns the [`World`] (a node with pods, a second node with remote pods and an outside client, each in
//! its own network namespace), the responders ([`EchoServer`]) and the [`Probe`]s that find out where a
//! packet ends up, the steady [`Traffic`] for tests of restarts, and the life of a Portolan process under
//! test ([`PortolanProcess`]). Topology and probes flow in; namespaces, observed fates and reports flow
//! out. It must not know of Services, rules or netlink: what *should* happen is the caller's business.
//!
//! Nothing outlives the process that made it. Namespaces have no names in the file system: they are held
//! by threads and file descriptors, and child processes are killed by the kernel when the thread that
//! started them ends, so that even `kill -9` of a test leaves nothing behind.
//!
//! Network namespaces need root, in the initial user namespace or in one of the caller's own
//! (`unshare -Urn`); without it every entry point returns [`TestkitError::NotPermitted`], which says what
//! to do.

mod echo;
mod engine;
mod error;
mod http;
mod icmp;
mod namespace;
mod plan;
mod probe;
mod process;
mod sctp;
mod socket;
mod traffic;
mod wait;
mod world;

pub use echo::EchoServer;
pub use error::TestkitError;
pub use http::{HttpAnswer, HttpClient, HttpLines};
pub use namespace::{Namespace, NamespaceCommand, can_create_namespaces, user_namespace_command};
pub use plan::{Addresses, Site};
pub use portolan_model::{Family, Protocol};
pub use probe::{Probe, ProbeResult, Reached, is_emulated, probe_many};
pub use process::PortolanProcess;
pub use traffic::{Traffic, TrafficPlan, TrafficReport};
pub use wait::{eventually, eventually_some};
pub use world::{Node, Pod, World, WorldBuilder};
