//! The data planes: they program the forwarding table into the kernel.
//!
//! Owns the [`Dataplane`] trait, the data planes of nftables ([`nft`]), iptables ([`iptables`]), IPVS ([`ipvs`]) and
//! [`userspace`] mode, and the thread that drives them ([`engine`]). Also owns
//! the clean-up of stale UDP flows ([`conntrack`]) and of what kube-proxy left behind ([`leftovers`]). Changes of
//! Service ports go in, one kernel transaction comes out. It must not know the API server, the configuration file or
//! async.

pub mod addresses;
pub mod conntrack;
pub mod dataplane;
pub mod engine;
pub mod iptables;
pub mod ipvs;
mod latest;
pub mod leftovers;
mod mailbox;
pub mod nft;
mod reading;
pub mod userspace;

pub use dataplane::{Chains, Commit, Dataplane, Error, Extent, HealthCheckPort, Refusal};
