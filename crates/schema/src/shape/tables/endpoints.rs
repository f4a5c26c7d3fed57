//! EndpointSlice (`discovery/v1`) and Endpoints (`core/v1`).

use crate::shape::{
    Struct,
    Type::{Bool, Int32, List, Object, Text},
    field,
    meta::{API_VERSION, KIND, OBJECT_META, OBJECT_REFERENCE, TEXT_MAP, TEXTS},
    structure,
};

pub(crate) static ENDPOINTS: Struct = structure(
    "io.k8s.api.core.v1.Endpoints",
    "The addresses that serve a Service, in the form that EndpointSlices have replaced.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).doc("Standard metadata."),
        field("subsets", 2, List(&Object(&ENDPOINT_SUBSET)))
            .atomic()
            .doc("Groups of addresses that share ports."),
    ],
);

pub(crate) static ENDPOINT_SUBSET: Struct = structure(
    "io.k8s.api.core.v1.EndpointSubset",
    "Addresses that share the same ports.",
    &[
        field("addresses", 1, List(&Object(&ENDPOINT_ADDRESS))).atomic().doc("Addresses that take traffic."),
        field("notReadyAddresses", 2, List(&Object(&ENDPOINT_ADDRESS)))
            .atomic()
            .doc("Addresses that do not take traffic yet or any more."),
        field("ports", 3, List(&Object(&CORE_ENDPOINT_PORT))).atomic().doc("Ports of each of the addresses."),
    ],
);

pub(crate) static ENDPOINT_ADDRESS: Struct = structure(
    "io.k8s.api.core.v1.EndpointAddress",
    "One address that serves a Service.",
    &[
        field("ip", 1, Text).required().doc("The address."),
        field("hostname", 3, Text).doc("Host name of the endpoint."),
        field("nodeName", 4, Text).pointer().doc("Node that it is on."),
        field("targetRef", 2, Object(&OBJECT_REFERENCE)).pointer().doc("The object that it stands for."),
    ],
)
.atomic();

pub(crate) static CORE_ENDPOINT_PORT: Struct = structure(
    "io.k8s.api.core.v1.EndpointPort",
    "One port of an endpoint.",
    &[
        field("name", 1, Text).doc("Name of the Service port that it serves."),
        field("port", 2, Int32).required().doc("Number of the port."),
        field("protocol", 3, Text).doc("TCP, UDP or SCTP."),
        field("appProtocol", 4, Text).pointer().doc("Protocol inside the connections, as a hint."),
    ],
)
.atomic();

pub(crate) static ENDPOINT_SLICE: Struct = structure(
    "io.k8s.api.discovery.v1.EndpointSlice",
    "Some of the endpoints that serve a Service; the label kubernetes.io/service-name tells which.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).doc("Standard metadata."),
        field("addressType", 4, Text).required().doc("IPv4, IPv6 or FQDN; cannot change."),
        field("endpoints", 2, List(&Object(&ENDPOINT))).always().atomic().doc("The endpoints; at most 1000."),
        field("ports", 3, List(&Object(&ENDPOINT_PORT)))
            .always()
            .atomic()
            .doc("Ports of each of the endpoints."),
    ],
);

pub(crate) static ENDPOINT: Struct = structure(
    "io.k8s.api.discovery.v1.Endpoint",
    "One endpoint that serves a Service.",
    &[
        field("addresses", 1, TEXTS).required().set().doc("Addresses; only the first one is used."),
        field("conditions", 2, Object(&ENDPOINT_CONDITIONS)).doc("State of the endpoint."),
        field("hostname", 3, Text).pointer().doc("Host name of the endpoint."),
        field("targetRef", 4, Object(&OBJECT_REFERENCE)).pointer().doc("The object that it stands for."),
        field("deprecatedTopology", 5, TEXT_MAP).doc("Topology in the form of v1beta1; only kept."),
        field("nodeName", 6, Text).pointer().doc("Node that it is on."),
        field("zone", 7, Text).pointer().doc("Zone that it is in."),
        field("hints", 8, Object(&ENDPOINT_HINTS)).pointer().doc("Who should use it."),
    ],
);

pub(crate) static ENDPOINT_CONDITIONS: Struct = structure(
    "io.k8s.api.discovery.v1.EndpointConditions",
    "The state of an endpoint.",
    &[
        field("ready", 1, Bool).pointer().doc("Whether it takes new traffic; absent means yes."),
        field("serving", 2, Bool)
            .pointer()
            .doc("Like ready, but not false because the endpoint is terminating."),
        field("terminating", 3, Bool).pointer().doc("Whether it is about to go; absent means no."),
    ],
);

pub(crate) static ENDPOINT_HINTS: Struct = structure(
    "io.k8s.api.discovery.v1.EndpointHints",
    "Who should use an endpoint.",
    &[
        field("forZones", 1, List(&Object(&FOR_ZONE))).atomic().doc("Zones that should use it; at most 8."),
        field("forNodes", 2, List(&Object(&FOR_NODE))).atomic().doc("Nodes that should use it; at most 8."),
    ],
);

pub(crate) static FOR_ZONE: Struct = structure(
    "io.k8s.api.discovery.v1.ForZone",
    "A zone that should use an endpoint.",
    &[field("name", 1, Text).required().doc("Name of the zone.")],
);

pub(crate) static FOR_NODE: Struct = structure(
    "io.k8s.api.discovery.v1.ForNode",
    "A node that should use an endpoint.",
    &[field("name", 1, Text).required().doc("Name of the node.")],
);

pub(crate) static ENDPOINT_PORT: Struct = structure(
    "io.k8s.api.discovery.v1.EndpointPort",
    "One port of every endpoint of a slice.",
    &[
        field("name", 1, Text).pointer().doc("Name of the Service port that it serves."),
        field("protocol", 2, Text).pointer().doc("TCP, UDP or SCTP."),
        field("port", 3, Int32).pointer().doc("Number of the port; absent means any."),
        field("appProtocol", 4, Text).pointer().doc("Protocol inside the connections, as a hint."),
    ],
)
.atomic();
