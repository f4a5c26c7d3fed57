//! Service (`core/v1`).

use crate::shape::{
    Struct,
    Type::{Bool, Int32, IntOrText, List, Object, Text},
    field,
    meta::{API_VERSION, CONDITION, KIND, OBJECT_META, TEXT_MAP, TEXTS},
    structure,
};

pub(crate) static SERVICE: Struct = structure(
    "io.k8s.api.core.v1.Service",
    "A virtual address, and the rules by which its traffic reaches endpoints.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META), "Standard metadata."),
        field("spec", 2, Object(&SERVICE_SPEC), "The wanted behaviour."),
        field(
            "status",
            3,
            Object(&SERVICE_STATUS),
            "What a load balancer has provided; written through the status subresource.",
        ),
    ],
);

pub(crate) static SERVICE_SPEC: Struct = structure(
    "io.k8s.api.core.v1.ServiceSpec",
    "The wanted behaviour of a Service.",
    &[
        field("ports", 1, List(&Object(&SERVICE_PORT)), "Ports on which the Service is reached.").keyed(&["port", "protocol"]),
        field("selector", 2, TEXT_MAP, "Labels of the pods that serve it; without one, endpoints are made by others.").atomic(),
        field("clusterIP", 3, Text, "The first of clusterIPs."),
        field("clusterIPs", 18, TEXTS, "Virtual addresses, at most one of each family; None alone for a headless Service. Given out if empty.").atomic(),
        field("type", 4, Text, "How it is exposed: ClusterIP, NodePort, LoadBalancer or ExternalName."),
        field("externalIPs", 5, TEXTS, "More addresses at which nodes take traffic for it; who routes them there is outside of this API.").atomic(),
        field("sessionAffinity", 7, Text, "ClientIP keeps a client at one endpoint; None does not."),
        field("loadBalancerIP", 8, Text, "Deprecated wish for the address of the load balancer."),
        field("loadBalancerSourceRanges", 9, TEXTS, "Client ranges that the load balancer address answers.").atomic(),
        field("externalName", 10, Text, "DNS name that a Service of type ExternalName stands for."),
        field("externalTrafficPolicy", 11, Text, "Cluster, or Local to use only endpoints of the node that got the traffic from outside."),
        field("healthCheckNodePort", 12, Int32, "Node port that tells load balancers whether the node has endpoints; for Local load balancers."),
        field("publishNotReadyAddresses", 13, Bool, "Whether endpoints count as ready no matter what their pods say."),
        field("sessionAffinityConfig", 14, Object(&SESSION_AFFINITY_CONFIG), "Settings of the session affinity.").pointer(),
        field("ipFamilies", 19, TEXTS, "IPv4 or IPv6 of each element of clusterIPs.").atomic(),
        field("ipFamilyPolicy", 17, Text, "SingleStack, PreferDualStack or RequireDualStack.").pointer(),
        field("allocateLoadBalancerNodePorts", 20, Bool, "Whether a LoadBalancer Service gets node ports.").pointer(),
        field("loadBalancerClass", 21, Text, "Who provides the load balancer; empty for the default.").pointer(),
        field("internalTrafficPolicy", 22, Text, "Cluster, or Local to use only endpoints of the node that the traffic comes from.").pointer(),
        field("trafficDistribution", 23, Text, "Which endpoints are preferred: PreferSameZone, PreferSameNode, or PreferClose.").pointer(),
    ],
);

pub(crate) static SERVICE_PORT: Struct = structure(
    "io.k8s.api.core.v1.ServicePort",
    "One port of a Service.",
    &[
        field("name", 1, Text, "Name, unique in the Service; may be left out if there is only one port."),
        field("protocol", 2, Text, "TCP, UDP or SCTP.").default("TCP"),
        field("appProtocol", 6, Text, "Protocol inside the connections, as a hint.").pointer(),
        field("port", 3, Int32, "Port of the virtual address.").required(),
        field(
            "targetPort",
            4,
            IntOrText,
            "Port of the endpoints, by number or by the name of a container port.",
        ),
        field("nodePort", 5, Int32, "Port of every node; given out if 0 and the type needs one."),
    ],
);

pub(crate) static SESSION_AFFINITY_CONFIG: Struct = structure(
    "io.k8s.api.core.v1.SessionAffinityConfig",
    "Settings of the session affinity.",
    &[field("clientIP", 1, Object(&CLIENT_IP_CONFIG), "Settings of ClientIP affinity.").pointer()],
);

pub(crate) static CLIENT_IP_CONFIG: Struct = structure(
    "io.k8s.api.core.v1.ClientIPConfig",
    "Settings of ClientIP affinity.",
    &[field(
        "timeoutSeconds",
        1,
        Int32,
        "Seconds without traffic after which a client may go elsewhere; 1 to 86400.",
    )
    .pointer()],
);

pub(crate) static SERVICE_STATUS: Struct = structure(
    "io.k8s.api.core.v1.ServiceStatus",
    "The observed state of a Service.",
    &[
        field("loadBalancer", 1, Object(&LOAD_BALANCER_STATUS), "What the load balancer has provided."),
        field("conditions", 2, List(&Object(&CONDITION)), "Aspects of the state.").keyed(&["type"]),
    ],
);

pub(crate) static LOAD_BALANCER_STATUS: Struct = structure(
    "io.k8s.api.core.v1.LoadBalancerStatus",
    "What a load balancer has provided.",
    &[field("ingress", 1, List(&Object(&LOAD_BALANCER_INGRESS)), "Its points of entry.").atomic()],
);

pub(crate) static LOAD_BALANCER_INGRESS: Struct = structure(
    "io.k8s.api.core.v1.LoadBalancerIngress",
    "One point of entry of a load balancer.",
    &[
        field("ip", 1, Text, "Address."),
        field("hostname", 2, Text, "DNS name."),
        field("ipMode", 3, Text, "VIP: nodes see the address as destination; Proxy: they see their own.")
            .pointer(),
        field("ports", 4, List(&Object(&PORT_STATUS)), "State of single ports.").atomic(),
    ],
);

pub(crate) static PORT_STATUS: Struct = structure(
    "io.k8s.api.core.v1.PortStatus",
    "The state of one port of a load balancer.",
    &[
        field("port", 1, Int32, "Number of the port.").required(),
        field("protocol", 2, Text, "Protocol of the port.").required(),
        field("error", 3, Text, "What is wrong with it, in one word.").pointer(),
    ],
);
