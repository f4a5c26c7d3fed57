//! The facts about a node and its cluster, as plain values. [`crate::gather`] fills in those of the node. The command fills in
//! those that only the API server knows, and those of modes.

mod cluster;
mod link;
mod object;

use std::collections::BTreeMap;
use std::fmt;

pub use cluster::{Api, Cluster, Denied, ServiceFacts};
pub use link::{Link, Role};
pub use object::{Lack, Object, Part};

use portolan_model::Family;
pub use portolan_node::config::Mode;

use crate::rules::Ruleset;

/// All facts. A fact that could not be read is absent, and [`Facts::unread`] has the reason.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Version of the kernel.
    pub kernel: Option<KernelVersion>,
    /// True if the kernel has IPVS in this network namespace.
    pub has_ipvs: bool,
    /// Kernel settings by path below `/proc/sys`. A setting that does not exist is absent.
    pub settings: BTreeMap<String, String>,
    /// The counters of connection tracking; `None` if the kernel does not track connections.
    pub conntrack: Option<ConntrackCounters>,
    /// The lists of clients with session affinity in the iptables mode; `None` without them.
    pub affinity: Option<AffinityLists>,
    /// The network interfaces, by index.
    pub links: Vec<Link>,
    /// Proxies that run in this network namespace.
    pub proxies: Proxies,
    /// The mode that the running proxy answers at its metrics port, if it is the only one.
    pub answered_mode: Option<Mode>,
    /// The mode in which a start would program Services; `None` if no start is planned.
    pub next_mode: Option<Mode>,
    /// True if that start would redirect packets in the userspace mode. Otherwise tproxy captures them.
    pub next_redirects: bool,
    /// Firewall rules of all programs.
    pub rules: Ruleset,
    /// True if rules may be missing there, because some could not be read.
    pub rules_are_partial: bool,
    /// Objects of modes: of all, or of those of Portolan if kube-proxy runs alone ([`crate::gather::add_objects`]).
    pub objects: Vec<Object>,
    /// What the mode that runs lacks on this node, as its trial found.
    pub lacks: Vec<Lack>,
    /// The cluster, as the API server describes it; `None` if it was not asked.
    pub cluster: Option<Cluster>,
    /// What the requests to the API server showed; `None` if it was not asked.
    pub api: Option<Api>,
    /// What could not be read.
    pub unread: Vec<Unread>,
}

impl Facts {
    /// Returns the value of a setting.
    pub fn setting(&self, path: &str) -> Option<&str> {
        self.settings.get(path).map(String::as_str)
    }

    /// Returns the value of a setting that is a number.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.setting(path)?.parse().ok()
    }

    /// Returns true if the node has Services of this family, as far as that is known: IPv6 if the cluster has ranges of it.
    pub fn serves(&self, family: Family) -> bool {
        let has_ranges = |cluster: &Cluster| {
            !cluster.pod_cidrs(family).is_empty() || !cluster.service_cidrs(family).is_empty()
        };
        family == Family::Ipv4 || self.cluster.as_ref().is_some_and(has_ranges)
    }
}

/// Something that could not be read, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Unread {
    /// What it is.
    pub what: String,
    /// The error.
    pub reason: String,
}

/// Major and minor version of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion(pub u32, pub u32);

impl KernelVersion {
    /// Reads a release such as `6.1.0-18-amd64`.
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit());
        Some(Self(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Counters of connection tracking since the start of the network namespace (`/proc/net/stat/nf_conntrack`), the sum over
/// all processors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConntrackCounters {
    /// Packets that belong to no connection.
    pub invalid: u64,
    /// Entries that could not be added because another packet had added the same one.
    pub insert_failed: u64,
    /// Packets that were dropped, because the table was full or memory was missing.
    pub drop: u64,
    /// Entries that were removed early to make room for others.
    pub early_drop: u64,
}

/// The lists of clients that the `recent` match of iptables keeps for endpoints of Services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AffinityLists {
    /// Maximum number of clients of a list (`ip_list_tot`, see `net/netfilter/xt_recent.c`).
    pub limit: usize,
    /// Names of the lists that have as many clients, sorted.
    pub full: Vec<String>,
}

/// The proxies that run in this network namespace.
#[derive(Debug, Clone, Default)]
pub struct Proxies {
    /// The processes, without this one.
    pub processes: Vec<Process>,
    /// Processes that contain kube-proxy. Whether it runs cannot be seen.
    pub containing: Vec<Containing>,
    /// True if no other proxy can run. In a container without the host's process IDs, and beside a process that contains
    /// kube-proxy, it is false.
    pub complete: bool,
}

/// A process of a program that contains kube-proxy, and runs it unless its configuration says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Containing {
    /// Process ID.
    pub pid: u32,
    /// Which program it is.
    pub program: Distribution,
}

/// A distribution of Kubernetes whose program contains kube-proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    /// `k3s server` or `k3s agent`.
    K3s,
    /// `kubelite` of `MicroK8s`.
    Kubelite,
}

/// A process that programs Services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process ID.
    pub pid: u32,
    /// Which program it is.
    pub program: Program,
    /// The value of `--proxy-mode`, if it has one and no configuration file replaces it.
    pub mode: Option<String>,
}

/// A program that programs Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// `portolan proxy`, or Portolan under the name kube-proxy.
    Portolan,
    /// kube-proxy.
    KubeProxy,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portolan => "Portolan",
            Self::KubeProxy => "kube-proxy",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_kernels() {
        assert_eq!(KernelVersion::parse("6.1.0-18-amd64\n"), Some(KernelVersion(6, 1)));
        assert_eq!(KernelVersion::parse("5.15.133.1-microsoft"), Some(KernelVersion(5, 15)));
        assert_eq!(KernelVersion::parse("6.18-rc1"), Some(KernelVersion(6, 18)));
        assert_eq!(KernelVersion::parse("linux"), None);
        assert!(KernelVersion(5, 4) < KernelVersion(5, 13) && KernelVersion(5, 13) < KernelVersion(6, 0));
    }
}
