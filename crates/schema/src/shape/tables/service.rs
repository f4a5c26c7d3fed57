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
        field("metadata", 1, Object(&OBJECT_META)).doc("Standard metadata."),
        field("spec", 2, Object(&SERVICE_SPEC)).doc("The wanted behaviour."),
        field("status", 3, Object(&SERVICE_STATUS))
            .doc("What a load balancer has provided; written through the status subresource."),
    ],
);

pub(crate) static SERVICE_SPEC: Struct = structure(
    "io.k8s.api.core.v1.ServiceSpec",
    "The wanted behaviour of a Service.",
    &[
        field("ports", 1, List(&Object(&SERVICE_PORT)))
            .keyed(&["port", "protocol"])
            .doc("Ports on which the Service is reached."),
        field("selector", 2, TEXT_MAP)
            .atomic()
            .doc("Labels of the pods that serve it; without one, endpoints are made by others."),
        field("clusterIP", 3, Text).doc("The first of clusterIPs."),
        field("clusterIPs", 18, TEXTS)
            .atomic()
            .doc("Virtual addresses, one of each family; None alone for a headless Service."),
        field("type", 4, Text).doc("How it is exposed: ClusterIP, NodePort, LoadBalancer or ExternalName."),
        field("externalIPs", 5, TEXTS)
            .atomic()
            .doc("More addresses at which nodes take traffic for it; who routes them there is open."),
        field("sessionAffinity", 7, Text).doc("ClientIP keeps a client at one endpoint; None does not."),
        field("loadBalancerIP", 8, Text).doc("Deprecated wish for the address of the load balancer."),
        field("loadBalancerSourceRanges", 9, TEXTS)
            .atomic()
            .doc("Client ranges that the load balancer address answers."),
        field("externalName", 10, Text).doc("DNS name that a Service of type ExternalName stands for."),
        field("externalTrafficPolicy", 11, Text)
            .doc("For traffic from outside: Cluster, or Local for endpoints of the same node only."),
        field("healthCheckNodePort", 12, Int32)
            .doc("Node port at which load balancers ask whether the node has endpoints."),
        field("publishNotReadyAddresses", 13, Bool)
            .doc("Whether endpoints count as ready no matter what their pods say."),
        field("sessionAffinityConfig", 14, Object(&SESSION_AFFINITY_CONFIG))
            .pointer()
            .doc("Settings of the session affinity."),
        field("ipFamilies", 19, TEXTS).atomic().doc("IPv4 or IPv6 of each element of clusterIPs."),
        field("ipFamilyPolicy", 17, Text).pointer().doc("SingleStack, PreferDualStack or RequireDualStack."),
        field("allocateLoadBalancerNodePorts", 20, Bool)
            .pointer()
            .doc("Whether a LoadBalancer Service gets node ports."),
        field("loadBalancerClass", 21, Text)
            .pointer()
            .doc("Who provides the load balancer; empty for the default."),
        field("internalTrafficPolicy", 22, Text)
            .pointer()
            .doc("For traffic from inside: Cluster, or Local for endpoints of the same node only."),
        field("trafficDistribution", 23, Text)
            .pointer()
            .doc("Which endpoints are preferred: PreferSameZone, PreferSameNode, or PreferClose."),
    ],
);

pub(crate) static SERVICE_PORT: Struct = structure(
    "io.k8s.api.core.v1.ServicePort",
    "One port of a Service.",
    &[
        field("name", 1, Text).doc("Name, unique in the Service; may be left out if there is only one port."),
        field("protocol", 2, Text).default("TCP").doc("TCP, UDP or SCTP."),
        field("appProtocol", 6, Text).pointer().doc("Protocol inside the connections, as a hint."),
        field("port", 3, Int32).required().doc("Port of the virtual address."),
        field("targetPort", 4, IntOrText)
            .doc("Port of the endpoints, by number or by the name of a container port."),
        field("nodePort", 5, Int32).doc("Port of every node; given out if 0 and the type needs one."),
    ],
);

pub(crate) static SESSION_AFFINITY_CONFIG: Struct = structure(
    "io.k8s.api.core.v1.SessionAffinityConfig",
    "Settings of the session affinity.",
    &[field("clientIP", 1, Object(&CLIENT_IP_CONFIG)).pointer().doc("Settings of ClientIP affinity.")],
);

pub(crate) static CLIENT_IP_CONFIG: Struct = structure(
    "io.k8s.api.core.v1.ClientIPConfig",
    "Settings of ClientIP affinity.",
    &[field("timeoutSeconds", 1, Int32)
        .pointer()
        .doc("Seconds without traffic after which a client may go elsewhere; 1 to 86400.")],
);

pub(crate) static SERVICE_STATUS: Struct = structure(
    "io.k8s.api.core.v1.ServiceStatus",
    "The observed state of a Service.",
    &[
        field("loadBalancer", 1, Object(&LOAD_BALANCER_STATUS)).doc("What the load balancer has provided."),
        field("conditions", 2, List(&Object(&CONDITION))).keyed(&["type"]).doc("Aspects of the state."),
    ],
);

pub(crate) static LOAD_BALANCER_STATUS: Struct = structure(
    "io.k8s.api.core.v1.LoadBalancerStatus",
    "What a load balancer has provided.",
    &[field("ingress", 1, List(&Object(&LOAD_BALANCER_INGRESS))).atomic().doc("Its points of entry.")],
);

pub(crate) static LOAD_BALANCER_INGRESS: Struct = structure(
    "io.k8s.api.core.v1.LoadBalancerIngress",
    "One point of entry of a load balancer.",
    &[
        field("ip", 1, Text).doc("Address."),
        field("hostname", 2, Text).doc("DNS name."),
        field("ipMode", 3, Text)
            .pointer()
            .doc("VIP: nodes see the address as destination; Proxy: they see their own."),
        field("ports", 4, List(&Object(&PORT_STATUS))).atomic().doc("State of single ports."),
    ],
);

pub(crate) static PORT_STATUS: Struct = structure(
    "io.k8s.api.core.v1.PortStatus",
    "The state of one port of a load balancer.",
    &[
        field("port", 1, Int32).required().doc("Number of the port."),
        field("protocol", 2, Text).required().doc("Protocol of the port."),
        field("error", 3, Text).pointer().doc("What is wrong with it, in one word."),
    ],
);
