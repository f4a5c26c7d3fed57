//! The node around the data plane: configuration, feature gates, health, metrics, addresses, sysctls and their
//! former values, the memory limit.
//!
//! Owns the operator's configuration (`KubeProxyConfiguration` and its defaults), the pages that operators and
//! load balancers query (health, metrics), and the choice of a node's own addresses. Input: plain values, such as
//! configuration text, addresses, times and counts. Output: typed settings, HTTP responses, and lists of what could not
//! be done.
//!
//! Must not know: the meaning of Services, packet rules, netlink, or how objects are watched. What it needs from those
//! modules is passed in as numbers and names.

pub mod address;
pub mod cgroup;
pub mod config;
pub mod conntrack;
pub mod former;
pub mod gates;
pub mod health;
pub mod metrics;
mod nearest;
pub mod oom;
pub mod sysctl;
pub mod time;
