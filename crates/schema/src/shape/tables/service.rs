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
    "A cluster IP and ports under which clients reach a set of endpoints.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).doc("Standard metadata."),
        field("spec", 2, Object(&SERVICE_SPEC)).doc("The wanted behaviour."),
        field("status", 3, Object(&SERVICE_STATUS))
            .doc("The observed state. Written at the status subresource."),
    ],
);

pub(crate) static SERVICE_SPEC: Struct = structure(
    "io.k8s.api.core.v1.ServiceSpec",
    "The wanted behaviour of a Service.",
    &[
        field("ports", 1, List(&Object(&SERVICE_PORT))).keyed(&["port", "protocol"]).doc(
            "Ports of the Service. At least one, unless the Service is headless or of type \
                 ExternalName.",
        ),
        field("selector", 2, TEXT_MAP).atomic().doc(
            "Labels of the Pods that are its endpoints. Without a selector, write EndpointSlices for \
                 the Service yourself.",
        ),
        field("clusterIP", 3, Text)
            .doc("The first of clusterIPs. It is allocated if it is empty; None makes a headless Service."),
        field("clusterIPs", 18, TEXTS)
            .atomic()
            .doc("Cluster IPs, one of each IP family. A headless Service has None alone."),
        field("type", 4, Text)
            .one_of(&["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"])
            .default("ClusterIP")
            .doc(
                "Where clients reach the Service. ClusterIP: at its cluster IPs. NodePort: also at a port \
                 of every node. LoadBalancer: also at addresses of a load balancer. ExternalName: it has \
                 no addresses and is an alias of a DNS name. Default: ClusterIP.",
            ),
        field("externalIPs", 5, TEXTS).atomic().doc(
            "Further addresses for which nodes accept traffic of the Service. The network must route \
                 them to a node.",
        ),
        field("sessionAffinity", 7, Text)
            .one_of(&["ClientIP", "None"])
            .default("None")
            .doc("ClientIP sends all connections of a client address to the same endpoint. Default: None."),
        field("loadBalancerIP", 8, Text).doc("Requested address of the load balancer. Deprecated."),
        field("loadBalancerSourceRanges", 9, TEXTS).atomic().doc(
            "Ranges of client addresses that may use the addresses of the load balancer. Every client \
                 may if there are none.",
        ),
        field("externalName", 10, Text).doc("DNS name that a Service of type ExternalName is an alias of."),
        field("externalTrafficPolicy", 11, Text).one_of(&["Cluster", "Local"]).doc(
            "Endpoints of traffic to node ports, external IPs and addresses of load balancers. Local: \
                 those of the node that gets the packet, and the client address is kept. Default, for \
                 Services that have such frontends: Cluster.",
        ),
        field("healthCheckNodePort", 12, Int32).doc(
            "Node port at which load balancers check whether the node has endpoints. For type \
                 LoadBalancer with externalTrafficPolicy Local; allocated if it is 0.",
        ),
        field("publishNotReadyAddresses", 13, Bool)
            .doc("True if endpoints are ready even if their Pods are not."),
        field("sessionAffinityConfig", 14, Object(&SESSION_AFFINITY_CONFIG))
            .pointer()
            .doc("Settings of the session affinity."),
        field("ipFamilies", 19, TEXTS).one_of(&["IPv4", "IPv6"]).atomic().doc(
            "IP family of each of clusterIPs. Default: by ipFamilyPolicy and the ranges of the \
                 server.",
        ),
        field("ipFamilyPolicy", 17, Text)
            .one_of(&["PreferDualStack", "RequireDualStack", "SingleStack"])
            .pointer()
            .doc(
                "Number of IP families. PreferDualStack: two if the server has ranges of both. \
                 RequireDualStack: two, or the Service is refused. Default: SingleStack, if neither \
                 ipFamilies nor clusterIPs name two.",
            ),
        field("allocateLoadBalancerNodePorts", 20, Bool).pointer().doc(
            "False if a Service of type LoadBalancer needs no node ports. Default for that type: \
                 true.",
        ),
        field("loadBalancerClass", 21, Text)
            .pointer()
            .doc("Implementation of the load balancer. The default one if this is not set."),
        field("internalTrafficPolicy", 22, Text).one_of(&["Cluster", "Local"]).pointer().doc(
            "Endpoints of traffic to cluster IPs. Local: those of the node of the client. Default: \
                 Cluster, unless the type is ExternalName.",
        ),
        field("trafficDistribution", 23, Text).pointer().doc(
            "Endpoints to be preferred. PreferSameZone: those in the zone of the client. \
                 PreferSameNode: those on its node, then those in its zone. PreferClose: deprecated name \
                 of PreferSameZone.",
        ),
    ],
);

pub(crate) static SERVICE_PORT: Struct = structure(
    "io.k8s.api.core.v1.ServicePort",
    "One port of a Service.",
    &[
        field("name", 1, Text)
            .doc("Name of the port, unique within the Service. Required if there are several ports."),
        field("protocol", 2, Text)
            .one_of(&["SCTP", "TCP", "UDP"])
            .default("TCP")
            .doc("Transport protocol. Default: TCP."),
        field("appProtocol", 6, Text)
            .pointer()
            .doc("Application protocol, for implementations that make use of it."),
        field("port", 3, Int32).required().doc("Port number at the cluster IPs."),
        field("targetPort", 4, IntOrText).doc(
            "Port of the endpoints: a number, or the name of a container port. Default: the value of port.",
        ),
        field("nodePort", 5, Int32)
            .doc("Port of every node, for the types NodePort and LoadBalancer. Allocated if it is 0."),
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
    &[field("timeoutSeconds", 1, Int32).pointer().default("10800").doc(
        "Seconds without traffic after which the affinity of a client ends: 1 to 86400. Default: 10800.",
    )],
);

pub(crate) static SERVICE_STATUS: Struct = structure(
    "io.k8s.api.core.v1.ServiceStatus",
    "The observed state of a Service.",
    &[
        field("loadBalancer", 1, Object(&LOAD_BALANCER_STATUS)).doc("Addresses of the load balancer."),
        field("conditions", 2, List(&Object(&CONDITION))).keyed(&["type"]).doc("Aspects of the state."),
    ],
);

pub(crate) static LOAD_BALANCER_STATUS: Struct = structure(
    "io.k8s.api.core.v1.LoadBalancerStatus",
    "Addresses of a load balancer.",
    &[field("ingress", 1, List(&Object(&LOAD_BALANCER_INGRESS)))
        .atomic()
        .doc("Addresses at which the load balancer accepts traffic.")],
);

pub(crate) static LOAD_BALANCER_INGRESS: Struct = structure(
    "io.k8s.api.core.v1.LoadBalancerIngress",
    "One address of a load balancer.",
    &[
        field("ip", 1, Text).doc("Address."),
        field("hostname", 2, Text).doc("DNS name."),
        field("ipMode", 3, Text).pointer().doc(
            "VIP: packets arrive at nodes with this address as destination. Proxy: they arrive with \
                 an address of the node or of an endpoint. Default: VIP.",
        ),
        field("ports", 4, List(&Object(&PORT_STATUS))).atomic().doc("State of single ports."),
    ],
);

pub(crate) static PORT_STATUS: Struct = structure(
    "io.k8s.api.core.v1.PortStatus",
    "The state of one port of a load balancer.",
    &[
        field("port", 1, Int32).required().doc("Number of the port."),
        field("protocol", 2, Text).one_of(&["SCTP", "TCP", "UDP"]).required().doc("Protocol of the port."),
        field("error", 3, Text).pointer().doc("Error of the port, as one word."),
    ],
);
