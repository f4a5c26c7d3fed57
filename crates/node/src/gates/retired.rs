//! Feature gates of Services that older releases had: configurations of that time still name them.
//!
//! Source: the stages of each gate in Kubernetes' list of feature gates. Gates that concern only other components are not listed.

/// A gate that Kubernetes 1.36 does not have, because its feature is always there or always missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired {
    /// The gate's name.
    pub name: &'static str,
    /// The value that it would always have.
    pub value: bool,
    /// The Kubernetes release that gave it this value for good.
    pub since: &'static str,
}

const fn always(name: &'static str, since: &'static str) -> Retired {
    Retired { name, value: true, since }
}

const fn never(name: &'static str, since: &'static str) -> Retired {
    Retired { name, value: false, since }
}

/// In the order of names.
pub(super) const RETIRED: &[Retired] = &[
    never("AllowServiceLBStatusOnNonLB", "1.29"),
    always("EndpointSlice", "1.21"),
    always("EndpointSliceNodeName", "1.21"),
    always("EndpointSliceProxying", "1.22"),
    always("EndpointSliceTerminatingCondition", "1.26"),
    // A gate of kubelet, about chains that kube-proxy used, too.
    always("IPTablesOwnershipCleanup", "1.28"),
    always("IPv6DualStack", "1.23"),
    always("KubeProxyDrainingTerminatingNodes", "1.31"),
    always("LoadBalancerIPMode", "1.32"),
    always("MinimizeIPTablesRestore", "1.28"),
    always("MixedProtocolLBService", "1.26"),
    always("ProxyTerminatingEndpoints", "1.28"),
    always("SCTPSupport", "1.20"),
    always("ServiceAppProtocol", "1.20"),
    always("ServiceIPStaticSubrange", "1.26"),
    always("ServiceInternalTrafficPolicy", "1.26"),
    always("ServiceLBNodePortControl", "1.24"),
    always("ServiceLoadBalancerClass", "1.24"),
    always("ServiceNodePortStaticSubrange", "1.29"),
    // An alpha feature that was dropped.
    never("ServiceTopology", "1.20"),
    always("ServiceTrafficDistribution", "1.33"),
    always("SupportIPVSProxyMode", "1.11"),
    always("TopologyAwareHints", "1.33"),
];

/// Returns the retired gate of this name.
pub(super) fn retired(name: &str) -> Option<&'static Retired> {
    RETIRED.iter().find(|gate| gate.name == name)
}
