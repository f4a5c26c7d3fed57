//! The data planes: they program the forwarding table into the kernel.
//!
//! Owns the wanted state ([`table`]), the [`Dataplane`] trait, the data planes of nftables ([`nft`]), iptables
//! ([`iptables`]), IPVS ([`ipvs`]) and [`userspace`] mode, and the thread that drives them ([`engine`]). Also owns the
//! notifications of changes by other programs ([`drift`]), the clean-up of stale UDP flows ([`conntrack`]) and of what
//! kube-proxy left behind ([`leftovers`]). Changes of
//! Service ports go in, one kernel transaction comes out. It must not know the API server, the configuration file or
//! async.

pub mod addresses;
pub mod conntrack;
pub mod dataplane;
pub mod drift;
pub mod engine;
pub mod iptables;
pub mod ipvs;
mod latest;
pub mod leftovers;
mod mailbox;
pub mod nft;
mod reading;
pub mod table;
pub mod userspace;

pub use dataplane::{
    About, Claims, Collection, Commit, Dataplane, Error, Extent, Refusal, Removal, Takeover,
};
pub use table::{Changes, HealthCheckChange, HealthCheckPort, Table};
