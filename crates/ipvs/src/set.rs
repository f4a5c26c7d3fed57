//! The ipsets of this mode: those of kube-proxy, with its names, and some of our own.

use std::collections::{BTreeMap, BTreeSet};

use portolan_model::{Family, Protocol};
use portolan_wire::ipset::{MEMBERS_MAX, Member, NAME_MAX, SetOptions, Type};
use portolan_wire::nfnetlink::Family as SetFamily;

/// The members of sets in the kernel. A set that is missing there is missing here.
pub(super) type Sets = BTreeMap<Set, BTreeSet<Member>>;

/// The numbers of packets that members of counting sets have matched.
pub(super) type Counts = BTreeMap<(Set, Member), u64>;

/// Number of members that a set of our own can have, for example 65536 node ports at 64 addresses of the node. The kernel could
/// hardly have as many virtual servers. A set takes memory for the members that it has only.
const OWN_MEMBERS_MAX: u32 = 1 << 22;
/// How the names of our own sets begin.
const OWN_PREFIX: &str = "PORTOLAN-";

/// One of the sets, in either family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Set {
    /// Endpoints that may connect to themselves through a Service (hairpin).
    LoopBack,
    /// Cluster IPs.
    ClusterIp,
    /// External IPs with policy Cluster.
    ExternalIp,
    /// External IPs with policy Local.
    ExternalIpLocal,
    /// Load-balancer IPs.
    LoadBalancer,
    /// Load-balancer IPs with source ranges. Stands before the sets that allow clients, because members are removed in
    /// this order.
    LoadBalancerFirewall,
    /// Load-balancer IPs with policy Local.
    LoadBalancerLocal,
    /// Load-balancer IPs whose source ranges contain this node, which may send from that address.
    LoadBalancerSourceIp,
    /// Source ranges of load-balancer IPs.
    LoadBalancerSourceCidr,
    /// Node ports.
    NodePort(Protocol),
    /// Node ports with policy Local.
    NodePortLocal(Protocol),
    /// Health-check node ports.
    HealthCheckNodePort,
    /// Addresses of the network device.
    IpvsIps,
    /// Our virtual servers at addresses that are not on the network device, or are in `excludeCIDRs`. They are
    /// recognized by this set after a restart.
    Own,
    /// TCP frontends to refuse: there is no endpoint in the cluster.
    Reject,
    /// Frontends of other protocols without an endpoint in the cluster. IPVS refuses their packets; the set counts them.
    CountReject,
    /// Frontends whose packets are dropped: the policy is Local, and this node has no endpoint.
    Drop,
    /// Frontends whose packets are dropped, except for those of pods and of this node.
    DropExternal,
    /// Load-balancer IPs with source ranges. Only packets that no range allows are looked for in it, so that they are
    /// counted.
    SourceRanges,
}

impl Set {
    /// Every set, in the order in which members are removed.
    pub(super) const ALL: [Self; 23] = [
        Self::LoopBack,
        Self::ClusterIp,
        Self::ExternalIp,
        Self::ExternalIpLocal,
        Self::LoadBalancer,
        Self::LoadBalancerFirewall,
        Self::LoadBalancerLocal,
        Self::LoadBalancerSourceIp,
        Self::LoadBalancerSourceCidr,
        Self::NodePort(Protocol::Tcp),
        Self::NodePortLocal(Protocol::Tcp),
        Self::NodePort(Protocol::Udp),
        Self::NodePortLocal(Protocol::Udp),
        Self::NodePort(Protocol::Sctp),
        Self::NodePortLocal(Protocol::Sctp),
        Self::HealthCheckNodePort,
        Self::IpvsIps,
        Self::Own,
        Self::Reject,
        Self::CountReject,
        Self::Drop,
        Self::DropExternal,
        Self::SourceRanges,
    ];

    /// The sets of node ports of each protocol.
    pub(super) const NODE_PORTS: [Self; 3] =
        [Self::NodePort(Protocol::Tcp), Self::NodePort(Protocol::Udp), Self::NodePort(Protocol::Sctp)];

    /// Returns the name in a family. A name of IPv6 that gets too long is cut, as kube-proxy does.
    pub(super) fn name(self, family: Family) -> String {
        let name = self.ipv4_name();
        let Family::Ipv6 = family else { return name.to_owned() };
        let (owner, rest) = name.split_once('-').unwrap_or((name, ""));
        format!("{owner}-6-{rest}").chars().take(NAME_MAX).collect()
    }

    /// Returns the name that the set [`Set::Own`] has while it gets its first members.
    pub(super) fn unfinished_own(family: Family) -> String {
        format!("{}-NEW", Self::Own.name(family))
    }

    /// Returns the name of the set that trial rules refer to.
    pub(super) const fn trial(family: Family) -> &'static str {
        match family {
            Family::Ipv4 => "PORTOLAN-TRIAL",
            Family::Ipv6 => "PORTOLAN-6-TRIAL",
        }
    }

    const fn ipv4_name(self) -> &'static str {
        match self {
            Self::LoopBack => "KUBE-LOOP-BACK",
            Self::ClusterIp => "KUBE-CLUSTER-IP",
            Self::ExternalIp => "KUBE-EXTERNAL-IP",
            Self::ExternalIpLocal => "KUBE-EXTERNAL-IP-LOCAL",
            Self::LoadBalancer => "KUBE-LOAD-BALANCER",
            Self::LoadBalancerFirewall => "KUBE-LOAD-BALANCER-FW",
            Self::LoadBalancerLocal => "KUBE-LOAD-BALANCER-LOCAL",
            Self::LoadBalancerSourceIp => "KUBE-LOAD-BALANCER-SOURCE-IP",
            Self::LoadBalancerSourceCidr => "KUBE-LOAD-BALANCER-SOURCE-CIDR",
            Self::NodePort(Protocol::Tcp) => "KUBE-NODE-PORT-TCP",
            Self::NodePort(Protocol::Udp) => "KUBE-NODE-PORT-UDP",
            Self::NodePort(Protocol::Sctp) => "KUBE-NODE-PORT-SCTP-HASH",
            Self::NodePortLocal(Protocol::Tcp) => "KUBE-NODE-PORT-LOCAL-TCP",
            Self::NodePortLocal(Protocol::Udp) => "KUBE-NODE-PORT-LOCAL-UDP",
            Self::NodePortLocal(Protocol::Sctp) => "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
            Self::HealthCheckNodePort => "KUBE-HEALTH-CHECK-NODE-PORT",
            Self::IpvsIps => "KUBE-IPVS-IPS",
            Self::Own => "PORTOLAN-VIRTUAL-SERVERS",
            Self::Reject => "PORTOLAN-REJECT",
            Self::CountReject => "PORTOLAN-COUNT-REJECT",
            Self::Drop => "PORTOLAN-DROP",
            Self::DropExternal => "PORTOLAN-DROP-EXTERNAL",
            Self::SourceRanges => "PORTOLAN-SOURCE-RANGES",
        }
    }

    /// Returns the type of the set.
    pub(super) const fn kind(self) -> Type {
        match self {
            Self::IpvsIps => Type::HashIp,
            Self::LoopBack | Self::LoadBalancerSourceIp => Type::HashIpPortIp,
            Self::LoadBalancerSourceCidr => Type::HashIpPortNet,
            Self::NodePort(Protocol::Tcp | Protocol::Udp)
            | Self::NodePortLocal(Protocol::Tcp | Protocol::Udp)
            | Self::HealthCheckNodePort => Type::BitmapPort,
            _ => Type::HashIpPort,
        }
    }

    /// Returns the options of the set. Those with kube-proxy's names have its size: kube-proxy could not use a larger one after a
    /// change back.
    pub(super) fn options(self) -> SetOptions {
        let is_own = self.ipv4_name().starts_with(OWN_PREFIX);
        SetOptions { counts: self.counts(), members_max: if is_own { OWN_MEMBERS_MAX } else { MEMBERS_MAX } }
    }

    /// Returns true if the members of the set count packets: those that are refused or dropped.
    pub(super) const fn counts(self) -> bool {
        matches!(
            self,
            Self::Reject | Self::CountReject | Self::Drop | Self::DropExternal | Self::SourceRanges
        )
    }

    /// Returns the comment, in kube-proxy's words, of rules that refer to the set; `None` for our own sets.
    pub(super) const fn comment(self) -> Option<&'static str> {
        Some(match self {
            Self::LoopBack => "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose",
            Self::ClusterIp => "Kubernetes service cluster ip + port for masquerade purpose",
            Self::ExternalIp => "Kubernetes service external ip + port for masquerade and filter purpose",
            Self::ExternalIpLocal => "Kubernetes service external ip + port with externalTrafficPolicy=local",
            Self::LoadBalancer => "Kubernetes service lb portal",
            Self::LoadBalancerFirewall => {
                "Kubernetes service load balancer ip + port for load balancer with sourceRange"
            }
            Self::LoadBalancerLocal => {
                "Kubernetes service load balancer ip + port with externalTrafficPolicy=local"
            }
            Self::LoadBalancerSourceIp => {
                "Kubernetes service load balancer ip + port + source IP for packet filter purpose"
            }
            Self::LoadBalancerSourceCidr => {
                "Kubernetes service load balancer ip + port + source cidr for packet filter purpose"
            }
            Self::NodePort(Protocol::Tcp) => "Kubernetes nodeport TCP port for masquerade purpose",
            Self::NodePort(Protocol::Udp) => "Kubernetes nodeport UDP port for masquerade purpose",
            Self::NodePort(Protocol::Sctp) => {
                "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'"
            }
            Self::NodePortLocal(Protocol::Tcp) => {
                "Kubernetes nodeport TCP port with externalTrafficPolicy=local"
            }
            Self::NodePortLocal(Protocol::Udp) => {
                "Kubernetes nodeport UDP port with externalTrafficPolicy=local"
            }
            Self::NodePortLocal(Protocol::Sctp) => {
                "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'"
            }
            Self::HealthCheckNodePort => "Kubernetes health check node port",
            Self::IpvsIps
            | Self::Own
            | Self::Reject
            | Self::CountReject
            | Self::Drop
            | Self::DropExternal
            | Self::SourceRanges => return None,
        })
    }
}

/// Returns the family in ipset's messages.
pub(super) const fn set_family(family: Family) -> SetFamily {
    match family {
        Family::Ipv4 => SetFamily::IPV4,
        Family::Ipv6 => SetFamily::IPV6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// kube-proxy has the virtual servers of all node ports at all addresses, without a set of them.
    #[test]
    fn our_own_sets_have_room_for_each_node_port_at_each_address() {
        let (addresses, ports) = (64, 65_536);
        for set in Set::ALL {
            let is_own = set.name(Family::Ipv4).starts_with("PORTOLAN-");
            assert_eq!(set.options().members_max >= addresses * ports, is_own, "{set:?}");
            assert_eq!(set.options().members_max == MEMBERS_MAX, !is_own, "{set:?}");
        }
    }

    #[test]
    fn names_fit_and_differ() {
        let names = |family| Set::ALL.map(|set| set.name(family));
        let all: BTreeSet<String> = Family::BOTH
            .into_iter()
            .flat_map(names)
            .inspect(|name| assert!(name.len() <= NAME_MAX))
            .collect();
        assert_eq!(all.len(), 2 * Set::ALL.len());
        assert!(all.contains("KUBE-6-LOAD-BALANCER-SOURCE-CID"));
        assert!(all.contains("KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"));
        assert!(all.contains("PORTOLAN-6-DROP"));
        for family in Family::BOTH {
            let unfinished = Set::unfinished_own(family);
            assert!(unfinished.len() <= NAME_MAX && !all.contains(&unfinished), "{unfinished}");
        }
    }
}
