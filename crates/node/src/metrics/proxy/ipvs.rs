//! Figures of the IPVS mode's data plane, read for every page.

use std::sync::Arc;

use portolan_web::metrics::{MetricKind, Page};

use crate::address::Family;
use crate::metrics::{Labels as _, Metric, Registry};

/// Returns the number of draining real servers of a family; `None` if the mode never ran.
pub(super) type Read = Arc<dyn Fn(Family) -> Option<u64> + Send + Sync>;

pub(super) fn add(registry: &Registry, read: Read) {
    registry.add(
        "portolan_ipvs_draining_real_servers",
        "Real servers that are no endpoints any more and go on with the connections that they have",
        Live { read },
    );
}

struct Live {
    read: Read,
}

impl Metric for Live {
    fn kind(&self) -> MetricKind {
        MetricKind::Gauge
    }

    fn collect(&self, name: &str, _: &str, page: &mut Page) {
        for family in Family::BOTH {
            if let Some(count) = (self.read)(family) {
                page.sample(name, &family.text(), count as f64);
            }
        }
    }
}
