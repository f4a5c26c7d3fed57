//! The test network for packet tests, the demo and the benchmark: network namespaces, pods and probes.
//!
//! Owns the [`World`] (a node with pods, a second node with remote pods and an outside client, each in
//! its own network namespace), the responders ([`EchoServer`]), the [`Probe`]s that find out which
//! responder a packet reaches, the background [`Traffic`] for tests of restarts, the Portolan process
//! under test ([`PortolanProcess`]), the kube-proxy that it is compared with ([`KubeProxy`]), and the
//! kube-apiserver that it follows ([`KubeApiserver`]). Topology and probes go in; namespaces, results of
//! probes and reports come out. It must not know of Services, rules or netlink: the caller decides which
//! result is expected.
//!
//! Nothing outlives the process that created it. Namespaces have no names in the file system: threads and
//! file descriptors hold them. The kernel kills a child process when the thread that started it ends, so
//! that even `kill -9` of a test leaves nothing behind.
//!
//! Network namespaces need root, in the initial user namespace or in one of the caller's own
//! (`unshare -Urn`). Without root, every entry point returns [`TestkitError::NotPermitted`], whose message
//! says what to do.

mod backlog;
mod batch;
mod echo;
mod engine;
mod error;
pub mod etcd;
mod http;
mod icmp;
mod kube_apiserver;
mod kube_proxy;
mod kubernetes;
mod legacy;
mod log;
mod namespace;
mod pauses;
mod ping;
mod plan;
mod ports;
mod probe;
mod process;
mod sctp;
mod socket;
mod traffic;
mod wait;
mod world;

pub use batch::probe_many;
pub use echo::EchoServer;
pub use error::TestkitError;
pub use http::{HttpAnswer, HttpClient, HttpLines};
pub use kube_apiserver::{ControlPlane, KubeApiserver, SigningKey};
pub use kube_proxy::KubeProxy;
pub use kubernetes::kubeconfig;
pub use legacy::assert_legacy_may_be_missing;
pub use log::Log;
pub use namespace::{Namespace, NamespaceCommand, can_create_namespaces, user_namespace_command};
pub use ping::Ping;
pub use plan::{Addresses, Site};
pub use portolan_model::{Family, Protocol};
pub use probe::{Probe, ProbeResult, Reached, is_emulated};
pub use process::{PortolanProcess, resident};
pub use socket::close;
pub use traffic::{Traffic, TrafficPlan, TrafficReport};
pub use wait::{eventually, eventually_some};
pub use world::{Node, Pod, World, WorldBuilder};
