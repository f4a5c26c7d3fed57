//! The annotations of a Service that say how its endpoints are checked. Annotations in; a health check and complaints
//! out. `docs/health-checks.md` has the same table as [`TABLE`].

mod duration;
mod parse;
mod statuses;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use self::parse::{Complaint, Parsed, Wish, parse};
pub use self::statuses::Statuses;

/// Beginning of the names of all annotations.
pub const PREFIX: &str = "portolan.dev/health-check";

/// A row of the table of annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Annotation {
    /// Name.
    pub name: &'static str,
    /// Values that are accepted.
    pub values: &'static str,
    /// Value if the annotation is absent.
    pub default: &'static str,
    /// Meaning.
    pub meaning: &'static str,
}

/// All annotations.
pub const TABLE: [Annotation; 10] =
    [CHECK, PORT, HOST, STATUSES, INTERVAL, TIMEOUT, RISE, FALL, SLOW_START, FAIL_OPEN];

pub(crate) const CHECK: Annotation = Annotation {
    name: "portolan.dev/health-check",
    values: "tcp, http PATH or https PATH",
    default: "endpoints are not checked",
    meaning: "what a probe does: connect, or also send a GET request for the path",
};
const PORT: Annotation = Annotation {
    name: "portolan.dev/health-check-port",
    values: "the name of a port of the slice, or a number from 1 to 65535",
    default: "the first TCP port of the slice",
    meaning: "the port of the endpoint to which a probe connects",
};
const HOST: Annotation = Annotation {
    name: "portolan.dev/health-check-host",
    values: "a host name",
    default: "the address of the endpoint",
    meaning: "the Host of the request, and the server name of TLS",
};
const STATUSES: Annotation = Annotation {
    name: "portolan.dev/health-check-statuses",
    values: "statuses and ranges from 100 to 599, with commas: 200,204,300-399",
    default: "200-399",
    meaning: "the HTTP statuses that pass",
};
const INTERVAL: Annotation = Annotation {
    name: "portolan.dev/health-check-interval",
    values: "a duration from 1s to 1h",
    default: "5s",
    meaning: "the time from one probe of an endpoint to the next",
};
const TIMEOUT: Annotation = Annotation {
    name: "portolan.dev/health-check-timeout",
    values: "a duration from 10ms to the interval",
    default: "1s",
    meaning: "the time after which a probe has failed",
};
const RISE: Annotation = Annotation {
    name: "portolan.dev/health-check-rise",
    values: "a number from 1 to 100",
    default: "2",
    meaning: "how many probes in a row must pass before a failing endpoint is healthy",
};
const FALL: Annotation = Annotation {
    name: "portolan.dev/health-check-fall",
    values: "a number from 1 to 100",
    default: "3",
    meaning: "how many probes in a row must fail before a healthy endpoint is failing",
};
const SLOW_START: Annotation = Annotation {
    name: "portolan.dev/health-check-slow-start",
    values: "a duration from 0s to 1h",
    default: "0s",
    meaning: "how long a new or recovered endpoint must stay healthy before it is ready, while other endpoints are",
};
const FAIL_OPEN: Annotation = Annotation {
    name: "portolan.dev/health-check-fail-open",
    values: "never, or a percentage from 0% to 99%",
    default: "never",
    meaning: "if at most this share of the endpoints is healthy, all of them are ready",
};

/// How the endpoints of a Service are checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// What a probe does.
    pub probe: Probe,
    /// The port to which a probe connects.
    pub port: PortChoice,
    /// When probes are sent, and how many in a row decide.
    pub timing: Timing,
    /// Percentage of healthy endpoints at which, and below which, all endpoints are ready. `None`: never.
    pub fail_open: Option<u8>,
}

/// What a probe does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// It connects.
    Tcp,
    /// It connects and sends a GET request.
    Http(HttpProbe),
}

/// The request of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpProbe {
    /// True if the request is sent over TLS.
    pub tls: bool,
    /// Path with an optional query.
    pub path: http::uri::PathAndQuery,
    /// Host of the request. `None`: the address of the endpoint.
    pub host: Option<String>,
    /// Statuses that pass.
    pub statuses: Statuses,
}

/// Which port of an endpoint is probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortChoice {
    /// The first TCP port of the slice.
    First,
    /// The port of the slice with this name.
    Name(String),
    /// This port, also if the slice does not have it.
    Number(u16),
}

/// When probes are sent, and how many in a row decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// From one probe to the next.
    pub interval: Duration,
    /// When a probe has failed. At most the interval, so that an endpoint has one probe under way.
    pub timeout: Duration,
    /// Passes in a row that a failing endpoint needs.
    pub rise: u32,
    /// Failures in a row that a healthy endpoint needs.
    pub fall: u32,
    /// How long an endpoint must stay healthy before it is ready. Zero: it is ready at once.
    pub slow_start: Duration,
}

impl Default for Timing {
    /// The counts of `HAProxy`, and an interval and timeout between those of `HAProxy` and of the kubelet.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(1),
            rise: 2,
            fall: 3,
            slow_start: Duration::ZERO,
        }
    }
}
