//! The node around the data plane: configuration, feature gates, health, metrics, addresses, sysctls,
//! the memory limit.
//!
//! Owns: what an operator writes (`KubeProxyConfiguration` and its defaults), what an operator and a load
//! balancer ask (health, metrics and the small HTTP servers that answer), and the rules by which a node's
//! own addresses are chosen. In flow plain values: configuration text, addresses, times and counts. Out flow
//! typed settings, HTTP answers and lists of what could not be done.
//!
//! It must not know Services' meaning, packet rules, netlink or how objects are watched. Whatever it needs
//! from those rooms is handed in as numbers and names.

pub mod address;
pub mod cgroup;
pub mod config;
pub mod conntrack;
pub mod gates;
pub mod health;
pub mod http;
pub mod metrics;
mod nearest;
pub mod oom;
pub mod sysctl;
pub mod time;
