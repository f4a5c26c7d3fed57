//! One difference between the table and the kernel, in the terms of Services.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::ObservedPlace;
use crate::verdict::EndpointList;
use crate::{Protocol, ServicePortName};

/// A difference between the table and the kernel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The Service port. `None` for something that belongs to no Service port of the table, if the kernel does not hold
    /// its name.
    pub name: Option<Arc<ServicePortName>>,
    /// The protocol.
    pub protocol: Protocol,
    /// What differs.
    pub deviation: Deviation,
}

/// What differs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deviation {
    /// The kernel has nothing of the Service port.
    ServicePortMissing,
    /// The kernel has a Service port that the table does not have.
    ServicePortExtra,
    /// The kernel does not have a frontend.
    FrontendMissing(ObservedPlace),
    /// The kernel has a frontend that the Service port does not have.
    FrontendExtra(ObservedPlace),
    /// The kernel does not have an endpoint.
    EndpointMissing {
        /// The endpoint.
        endpoint: SocketAddr,
        /// Where it is missing.
        behind: Behind,
    },
    /// The kernel has an endpoint that the Service port does not have there.
    EndpointExtra {
        /// The endpoint.
        endpoint: SocketAddr,
        /// Where it is.
        behind: Behind,
    },
    /// The kernel has another affinity timeout.
    Affinity {
        /// The timeout of the table in seconds. `None` for no affinity.
        wanted: Option<u32>,
        /// The timeout in the kernel in seconds. `None` for no affinity.
        found: Option<u32>,
    },
    /// The kernel does not allow a source range.
    SourceRangeMissing(IpNet),
    /// The kernel restricts sources to a range that the Service port does not have.
    SourceRangeExtra(IpNet),
    /// The Service port has source ranges, but the kernel allows all sources.
    SourcesUnrestricted,
}

/// The place of an endpoint, as precisely as the kernel holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Behind {
    /// In one of the two lists of the Service port.
    List(EndpointList),
    /// Behind a frontend.
    Frontend(ObservedPlace),
}

impl Deviation {
    /// Returns the stable name for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::ServicePortMissing => "service-port-missing",
            Self::ServicePortExtra => "service-port-extra",
            Self::FrontendMissing(_) => "frontend-missing",
            Self::FrontendExtra(_) => "frontend-extra",
            Self::EndpointMissing { .. } => "endpoint-missing",
            Self::EndpointExtra { .. } => "endpoint-extra",
            Self::Affinity { .. } => "affinity",
            Self::SourceRangeMissing(_) => "source-range-missing",
            Self::SourceRangeExtra(_) => "source-range-extra",
            Self::SourcesUnrestricted => "sources-unrestricted",
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} ({}): {}", self.protocol, self.deviation),
            None => write!(f, "no Service ({}): {}", self.protocol, self.deviation),
        }
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServicePortMissing => f.write_str("nothing is programmed"),
            Self::ServicePortExtra => f.write_str("extra Service port"),
            Self::FrontendMissing(place) => write!(f, "{place} is not programmed"),
            Self::FrontendExtra(place) => write!(f, "extra {place}"),
            Self::EndpointMissing { endpoint, behind } => {
                write!(f, "endpoint {endpoint} is missing {behind}")
            }
            Self::EndpointExtra { endpoint, behind } => write!(f, "extra endpoint {endpoint} {behind}"),
            Self::Affinity { wanted, found } => {
                write!(f, "session affinity is {} instead of {}", Timeout(*found), Timeout(*wanted))
            }
            Self::SourceRangeMissing(range) => write!(f, "source range {range} is missing"),
            Self::SourceRangeExtra(range) => write!(f, "extra source range {range}"),
            Self::SourcesUnrestricted => f.write_str("all sources are allowed instead of the source ranges"),
        }
    }
}

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List(list) => write!(f, "in the {list} list"),
            Self::Frontend(place) => write!(f, "behind {place}"),
        }
    }
}

/// An affinity timeout in seconds.
struct Timeout(Option<u32>);

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(seconds) => write!(f, "{seconds} s"),
            None => f.write_str("none"),
        }
    }
}
