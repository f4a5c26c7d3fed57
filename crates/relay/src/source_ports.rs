//! Backends to which no source port of this host is free.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::log_limit::LogLimit;

/// How long no connection is tried after no port was free. To find that out, the kernel looks at every port, which takes
/// milliseconds.
const RETRY: Duration = Duration::from_secs(1);

/// A backend, and the source address if it is not one of this host.
type Way = (SocketAddr, Option<IpAddr>);

#[derive(Debug, Default)]
pub(crate) struct SourcePorts {
    /// When to try again.
    exhausted: HashMap<Way, Instant>,
    log_limit: LogLimit,
}

impl SourcePorts {
    /// Returns true if no port was free a moment ago.
    pub(crate) fn are_exhausted(&self, way: Way, now: Instant) -> bool {
        self.exhausted.get(&way).is_some_and(|&until| now < until)
    }

    /// Records that no port is free. Returns true if it is to be logged.
    pub(crate) fn set_exhausted(&mut self, way: Way, now: Instant) -> bool {
        self.exhausted.retain(|_, until| now < *until);
        self.exhausted.insert(way, now + RETRY);
        self.log_limit.is_due(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_limit::INTERVAL;

    #[test]
    fn a_backend_is_tried_again_after_a_second_and_logged_every_half_minute() {
        let mut ports = SourcePorts::default();
        let now = Instant::now();
        let [one, other]: [Way; 2] = ["10.0.0.1:80", "10.0.0.2:80"].map(|text| (text.parse().unwrap(), None));
        assert!(ports.set_exhausted(one, now));
        assert!(ports.are_exhausted(one, now) && !ports.are_exhausted(other, now));
        let of_client = (one.0, Some(IpAddr::from([10, 0, 1, 1])));
        assert!(!ports.are_exhausted(of_client, now), "each source address has its own ports");
        assert!(!ports.are_exhausted(one, now + RETRY));
        assert!(!ports.set_exhausted(other, now + RETRY));
        assert_eq!(ports.exhausted.len(), 1, "what is over is forgotten");
        assert!(ports.set_exhausted(other, now + INTERVAL));
    }
}
