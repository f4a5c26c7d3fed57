//! What besides the settings of every mode decides about this one.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use portolan_model::IpvsScheduler;
use portolan_wire::ipvs::Timeouts;

/// Fixed between two comparisons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How an endpoint is chosen where the Service does not say it (`ipvs.scheduler`).
    pub scheduler: IpvsScheduler,
    /// Virtual servers of others, by address: not removed, even where they look like ours (`ipvs.excludeCIDRs`).
    pub exclude: Vec<IpNet>,
    /// How long the kernel remembers connections when nothing comes (`ipvs.tcpTimeout` and its likes); 0 leaves a
    /// timeout as it is.
    pub timeouts: Timeouts,
    /// How long an endpoint that is no more may go on with the connections that it has.
    pub drain: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            scheduler: IpvsScheduler::Rr,
            exclude: Vec::new(),
            timeouts: Timeouts::default(),
            drain: Duration::from_secs(3600),
        }
    }
}

impl Options {
    /// Whether a virtual server at this address is somebody else's, whatever it looks like.
    pub(super) fn excludes(&self, address: IpAddr) -> bool {
        self.exclude.iter().any(|cidr| cidr.contains(&address))
    }
}
