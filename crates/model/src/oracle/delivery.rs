//! A packet at a frontend: source ranges, traffic policy, endpoints, masquerading.

use super::Origin;
use super::case::{Case, Match};
use crate::object::no_source;
use crate::table::{Disposition, Entry};
use crate::verdict::{EndpointList, Fate, Reason, SourceKept, Traffic};
use crate::{Backend, ExternalPolicy, Forwarding, Frontend, InternalPolicy, LocalDetector};

/// The endpoints that a traffic policy allows.
struct Allowed<'a> {
    outcome: Disposition<'a>,
    traffic: Traffic,
    list: EndpointList,
    masquerade: Masquerade,
}

/// Whether endpoints see an address of this node instead of the source, and why.
enum Masquerade {
    Yes(Reason),
    No(SourceKept),
}

impl<'a> Case<'a> {
    /// Returns the handling of a packet at a frontend that it matches.
    pub(super) fn at_frontend(&mut self, found: Match<'a>) -> Fate {
        let Match { forwarding, frontend, .. } = found;
        if matches!(frontend, Frontend::ClusterIp(..)) {
            return self.deliver(found, Self::internal);
        }
        if matches!(frontend, Frontend::LoadBalancerIp(..)) && self.is_outside_source_ranges(forwarding) {
            return Fate::Drop;
        }
        match self.deliver(found, Self::external) {
            Fate::Reject | Fate::Drop if self.leaves_unstopped(forwarding, frontend) => {
                self.because(Reason::OwnTrafficLeaves);
                Fate::NotOurs
            }
            fate => fate,
        }
    }

    /// Returns true if the source ranges of a load-balancer IP exclude the packet. They apply to all sources, pods
    /// and this node included. If the ranges contain the node's own address, the node may also use a load-balancer IP
    /// of the Service as source.
    fn is_outside_source_ranges(&mut self, forwarding: &Forwarding) -> bool {
        let (ranges, source) = (&forwarding.source_ranges, self.packet.source);
        if ranges.is_empty() {
            return false;
        }
        if self.differences().source_ranges_need_endpoints && !self.has_endpoints(forwarding) {
            self.because(Reason::SourceRangesNotChecked);
            return false;
        }
        if let Some(range) = ranges.iter().copied().find(|range| range.contains(&source)) {
            self.because(Reason::SourceInRange { source, range });
            return false;
        }
        let in_ranges = |address| ranges.iter().any(|range| range.contains(&address));
        let is_own_address = |frontend: &Frontend| match frontend {
            Frontend::LoadBalancerIp(address, _) => *address == source,
            _ => false,
        };
        if let Some(node) = self.oracle.settings.node_ip.filter(|node| in_ranges(*node))
            && forwarding.frontends.iter().any(is_own_address)
        {
            self.because(Reason::SourceIsLoadBalancerIp { source, node });
            return false;
        }
        let unreadable = **ranges == [no_source(self.oracle.settings.family)];
        self.because(if unreadable {
            Reason::SourceRangesUnreadable
        } else {
            Reason::SourceOutsideRanges { source }
        });
        true
    }

    /// Returns true if the mode does not reject or drop the packet because this node sent it. Packets outside of
    /// source ranges are dropped regardless of origin.
    fn leaves_unstopped(&self, forwarding: &Forwarding, frontend: Frontend) -> bool {
        let is_guarded = matches!(frontend, Frontend::LoadBalancerIp(..))
            && self.has_endpoints(forwarding)
            && !forwarding.source_ranges.is_empty();
        self.differences().own_traffic_leaves
            && self.packet.origin == Origin::Node
            && !self.oracle.is_local_address(self.packet.destination)
            && !is_guarded
    }

    /// Returns true if the forwarding has endpoints. A protocol that the mode does not support counts as having none.
    fn has_endpoints(&self, forwarding: &Forwarding) -> bool {
        forwarding.has_endpoints && self.carries(forwarding)
    }

    /// Applies the policy of cluster IPs.
    fn internal<'f>(&mut self, forwarding: &'f Forwarding) -> Allowed<'f> {
        let traffic = Traffic::Internal;
        let list = match forwarding.internal_policy {
            InternalPolicy::Cluster => EndpointList::Cluster,
            InternalPolicy::Local => EndpointList::Local,
        };
        self.because(match list {
            EndpointList::Cluster => Reason::ClusterPolicy(traffic),
            EndpointList::Local => Reason::LocalPolicy(traffic),
        });
        let masquerade = if self.oracle.settings.masquerade_all {
            Masquerade::Yes(Reason::MasqueradeAll)
        } else if self.oracle.settings.local_detector == LocalDetector::None {
            if self.has_address_of_service() {
                Masquerade::Yes(Reason::MasqueradeOwnTraffic)
            } else {
                Masquerade::No(SourceKept::NoDetector)
            }
        } else if self.is_from_pod() {
            Masquerade::No(SourceKept::Pod)
        } else {
            Masquerade::Yes(Reason::MasqueradeFromOutside)
        };
        Allowed { outcome: forwarding.internal(), traffic, list, masquerade }
    }

    /// Applies the policy of all other frontends.
    fn external<'f>(&mut self, forwarding: &'f Forwarding) -> Allowed<'f> {
        let traffic = Traffic::External;
        let usual = forwarding.external();
        let (cluster, local) = (EndpointList::Cluster, EndpointList::Local);
        if forwarding.external_policy == ExternalPolicy::Cluster {
            self.because(Reason::ClusterPolicy(traffic));
            let masquerade = Masquerade::Yes(Reason::MasqueradeExternal);
            return Allowed { outcome: usual, traffic, list: cluster, masquerade };
        }
        let is_pod = self.is_from_pod();
        if !is_pod && !self.oracle.has_local_source(self.packet) {
            self.because(Reason::LocalPolicy(traffic));
            let masquerade = Masquerade::No(SourceKept::LocalPolicy);
            return Allowed { outcome: usual, traffic, list: local, masquerade };
        }
        let masquerade = if is_pod {
            Masquerade::No(SourceKept::Pod)
        } else {
            Masquerade::Yes(Reason::MasqueradeOwnTraffic)
        };
        if self.differences().local_for_everybody && !forwarding.local.is_empty() {
            self.because(Reason::LocalPolicyForAll);
            return Allowed { outcome: usual, traffic, list: local, masquerade };
        }
        self.because(if is_pod { Reason::ShortCutForPods } else { Reason::ShortCutForNode });
        Allowed { outcome: forwarding.external_short_cut(), traffic, list: cluster, masquerade }
    }

    /// Returns true if a process of this node sends the packet from the address that it is sent to: where virtual addresses are
    /// local, the kernel chooses the same one as source.
    fn has_address_of_service(&self) -> bool {
        self.differences().refuses_at_virtual_addresses && self.packet.source == self.packet.destination
    }

    fn deliver<'f>(
        &mut self,
        found: Match<'f>,
        policy: impl FnOnce(&mut Self, &'f Forwarding) -> Allowed<'f>,
    ) -> Fate {
        let Match { forwarding, .. } = found;
        if !self.carries(forwarding) {
            self.because(Reason::SctpNotCarried);
            return Fate::Reject;
        }
        let allowed = policy(self, forwarding);
        self.endpoints = Some(allowed.list);
        match allowed.outcome {
            Disposition::Reject => {
                self.because(Reason::NoEndpoints);
                Fate::Reject
            }
            Disposition::Drop => {
                self.because(Reason::EndpointsElsewhere(allowed.traffic));
                Fate::Drop
            }
            Disposition::Backends(backends) => {
                self.because(Reason::Balanced { count: backends.len() });
                if let Some(seconds) = forwarding.affinity {
                    let per_frontend = self.differences().affinity_per_frontend;
                    self.because(Reason::SessionAffinity { seconds, per_frontend });
                }
                let masqueraded = self.masquerade(found, backends, allowed.masquerade);
                Fate::Backends { set: backends.to_vec(), masqueraded, affinity: forwarding.affinity }
            }
        }
    }

    /// Returns for each backend whether it sees an address of this node.
    fn masquerade(&mut self, found: Match<'_>, backends: &[Backend], masquerade: Masquerade) -> Vec<bool> {
        let masquerade = if !self.differences().hides_clients {
            masquerade
        } else if backends.iter().all(|backend| self.is_on_request(found, backend)) {
            Masquerade::No(SourceKept::OnRequest)
        } else {
            Masquerade::Yes(Reason::MasqueradeByRelay)
        };
        let kept = match masquerade {
            Masquerade::Yes(reason) => {
                self.because(reason);
                let sees_node = |backend| !self.stays(backend) && !self.is_kept_by_relay(found, backend);
                return backends.iter().map(sees_node).collect();
            }
            Masquerade::No(kept) => kept,
        };
        self.because(Reason::SourceKept(kept));
        backends.iter().map(|backend| self.is_hairpin(backend)).collect()
    }

    /// Returns true if the packet comes from elsewhere and ends at an address of this node. Only packets that leave a
    /// network interface are masqueraded. The relay's packets do, through loopback.
    fn stays(&mut self, backend: &Backend) -> bool {
        let stays = self.packet.origin != Origin::Node
            && self.oracle.is_local_address(backend.address)
            && !self.differences().hides_clients;
        if stays {
            self.because(Reason::SourceKeptOnNode { endpoint: backend.socket() });
        }
        stays
    }

    /// Returns true if the Service asks that the backend sees the client's address, and answers come back by this node, because
    /// the backend is on it. Clients of cluster IPs are assumed to be.
    fn is_on_request(&self, found: Match<'_>, backend: &Backend) -> bool {
        self.differences().keeps_clients_on_request
            && found.forwarding.keep_client_address
            && (matches!(found.frontend, Frontend::ClusterIp(..)) || backend.may_hairpin)
    }

    /// Returns true if the backend sees the client's address, while others see that of the relay.
    fn is_kept_by_relay(&mut self, found: Match<'_>, backend: &Backend) -> bool {
        let is_kept = self.is_on_request(found, backend) && backend.address != self.packet.source;
        if is_kept {
            self.because(Reason::SourceKeptByRelay { endpoint: backend.socket() });
        }
        is_kept
    }

    /// Returns true if the backend may connect to itself. It would reply directly, bypassing the translation.
    fn is_hairpin(&mut self, backend: &Backend) -> bool {
        if backend.address != self.packet.source {
            return false;
        }
        let endpoint = backend.socket();
        if self.may_hairpin(backend) {
            self.because(Reason::MasqueradeHairpin { endpoint });
        } else if self.differences().masquerades_every_hairpin {
            self.because(Reason::MasqueradeHairpinElsewhere { endpoint });
        } else {
            return false;
        }
        true
    }

    /// Returns true if the backend may be on this node. It is enough that one Service port of this protocol has it as such: the
    /// set of possible hairpins is the same for all.
    fn may_hairpin(&self, backend: &Backend) -> bool {
        let of_protocol = |(_, forwarding): &&Entry| forwarding.protocol == self.packet.protocol;
        let mut known = self
            .oracle
            .table
            .iter()
            .filter(of_protocol)
            .flat_map(|(_, forwarding)| forwarding.cluster.iter().chain(&forwarding.local));
        known.any(|known| known.may_hairpin && known.socket() == backend.socket())
    }
}
