//! The userspace data plane: the kernel captures packets of Services, the relay (`portolan-relay`) carries them.
//!
//! Owns what the two have to do for one change ([`Userspace`]), how a Service port looks to the kernel (`seen`: the same,
//! with the relay's listeners as its endpoints), by which way packets get there (`kernel`), and the policy routing that one
//! of the ways needs (`routing`). Which packets are captured, dropped or refused is the business of the nftables mode
//! (`nft::Capture`) or of the iptables mode (`iptables::Redirect`). It must not know how the relay works.
//!
//! See `ARCHITECTURE.md` for the way of a packet.

mod dataplane;
mod kernel;
mod remains;
mod routing;
mod seen;

pub use dataplane::{TRANSLATED, Userspace, spawn_translated};
pub use remains::Remains;
pub use routing::{RULE_PRIORITY, TABLE};
