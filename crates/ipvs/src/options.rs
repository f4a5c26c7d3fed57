//! The options of this mode.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use portolan_model::IpvsScheduler;
use portolan_wire::ipvs::Timeouts;

/// Options that stay the same between two comparisons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpvsOptions {
    /// The scheduler for Services that do not specify one (`ipvs.scheduler`).
    pub scheduler: IpvsScheduler,
    /// Networks in which other programs have virtual servers. These are not removed, even if they look like ours
    /// (`ipvs.excludeCIDRs`).
    pub exclude: Vec<IpNet>,
    /// The kernel's timeouts of idle connections (`ipvs.tcpTimeout`, `ipvs.tcpFinTimeout`, `ipvs.udpTimeout`); 0
    /// leaves a timeout as it is.
    pub timeouts: Timeouts,
    /// How long connections to a removed endpoint may go on.
    pub drain: Duration,
}

impl Default for IpvsOptions {
    fn default() -> Self {
        Self {
            scheduler: IpvsScheduler::Rr,
            exclude: Vec::new(),
            timeouts: Timeouts::default(),
            drain: Duration::from_secs(3600),
        }
    }
}

impl IpvsOptions {
    /// Returns true if virtual servers at this address belong to other programs, unless they are noted as ours.
    pub(super) fn excludes(&self, address: IpAddr) -> bool {
        self.exclude.iter().any(|cidr| cidr.contains(&address))
    }
}
