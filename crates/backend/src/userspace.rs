//! The userspace data plane: the kernel captures packets of Services, the relay (`portolan-relay`) carries them.
//!
//! Owns what the two have to do for one change ([`Userspace`]), how a Service port looks to the kernel (`seen`: the same,
//! with the relay's listeners as its endpoints), and the policy routing that delivers what is captured (`routing`). Which
//! packets are captured, dropped or refused is the nftables mode's business (`nft::Capture`). It must not know how the
//! relay works.
//!
//! See `ARCHITECTURE.md` for the way of a packet.

mod dataplane;
mod remains;
mod routing;
mod seen;

pub use dataplane::Userspace;
pub use remains::Remains;
pub use routing::{RULE_PRIORITY, TABLE};
