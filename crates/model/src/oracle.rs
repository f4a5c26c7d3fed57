//! Predicts where a packet goes: the reference with which the kernel's behaviour is compared.
//!
//! The forwarding table of one family, the settings and this node's addresses go in. The [`Verdict`] on a packet comes
//! out: its handling and the reasons. The code is written for readability, not for speed, and is independent of the
//! encoders of rules: it looks up the table step by step, in the order in which a packet is processed. It must not
//! know rules, sets or hooks.
//!
//! The semantics are those of nftables mode. Source ranges are checked first, for all sources. Node ports are not
//! available on loopback. A wrong port of a cluster IP is rejected and an unused address of a service CIDR is
//! dropped, but only if the packet would be forwarded or was sent from this node. The differences of other modes are
//! given as [`ModeDifferences`].

mod case;
mod delivery;
mod differences;
mod packet;

use std::net::IpAddr;

pub use differences::ModeDifferences;
pub use packet::{FlowState, Origin, Packet, Translation};

use crate::Settings;
use crate::table::Entry;
use crate::verdict::{Fate, Verdict};
use case::Case;

/// The state that determines the handling of packets.
#[derive(Debug, Clone, Copy)]
pub struct Oracle<'a> {
    /// The settings of the family.
    pub settings: &'a Settings,
    /// All addresses of this node's interfaces. Loopback addresses count as local even if they are not listed.
    pub local_addresses: &'a [IpAddr],
    /// The forwarding table of the family. No two entries have the same frontend.
    pub table: &'a [Entry],
    /// The differences of the mode from nftables mode.
    pub differences: &'a ModeDifferences,
    /// The health-check node ports of Services of the family. Servers of this node listen there, with TCP.
    pub health_check_ports: &'a [u16],
}

impl Oracle<'_> {
    /// Returns the handling of a packet. Packets of the other family are `NotOurs`.
    pub fn fate(&self, packet: &Packet<'_>) -> Fate {
        self.verdict(packet).fate
    }

    /// Returns the handling of a packet with the Service port that decides it and the reasons.
    pub fn verdict(&self, packet: &Packet<'_>) -> Verdict {
        Case::new(*self, packet).decide()
    }

    fn is_local_address(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.local_addresses.contains(&address)
    }

    /// Returns true if the source is an address of this node. A process of this node has no other one. In IPVS mode it can be an
    /// address of Services, which is not listed.
    fn has_local_source(&self, packet: &Packet<'_>) -> bool {
        packet.origin == Origin::Node || self.is_local_address(packet.source)
    }
}

#[cfg(test)]
mod tests;
