//! The data planes: what the forwarding table means becomes what the kernel does.
//!
//! Owns the [`Dataplane`] trait, the data planes of nftables ([`nft`]), iptables ([`iptables`]) and IPVS ([`ipvs`]), one
//! that does nothing ([`none`]), and the clean-up of stale UDP flows ([`conntrack`]) and of what kube-proxy left behind
//! ([`leftovers`]). Changes flow in, one kernel transaction flows out. It must not know where the objects came from: no
//! API server, no configuration file, no async.

pub mod addresses;
pub mod conntrack;
pub mod dataplane;
pub mod engine;
pub mod iptables;
pub mod ipvs;
pub mod leftovers;
pub mod nft;
pub mod none;
mod reading;
pub mod userspace;

pub use dataplane::{Chains, Commit, Dataplane, Error, Extent, HealthCheckPort, Refusal};
