//! The time since each watch last received something, read for every page.

use std::sync::Arc;
use std::time::Duration;

use portolan_web::metrics::{MetricKind, Page};

use crate::metrics::{Labels as _, Metric, Registry, Resource};

/// Returns the time since a resource was last known to match the API server; `None` before its first list.
pub(super) type Read = Arc<dyn Fn(Resource) -> Option<Duration> + Send + Sync>;

pub(super) fn add(registry: &Registry, read: Read) {
    registry.add(
        "portolan_watch_age_seconds",
        "Seconds since the last whole list, event or bookmark of a watch",
        Ages { read },
    );
}

struct Ages {
    read: Read,
}

impl Metric for Ages {
    fn kind(&self) -> MetricKind {
        MetricKind::Gauge
    }

    fn collect(&self, name: &str, _: &str, page: &mut Page) {
        for resource in Resource::ALL {
            if let Some(age) = (self.read)(resource) {
                page.sample(name, &resource.text(), age.as_secs_f64());
            }
        }
    }
}
