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
        field("metadata", 1, Object(&OBJECT_META), "Standard metadata."),
        field("subsets", 2, List(&Object(&ENDPOINT_SUBSET)), "Groups of addresses that share ports.")
            .atomic(),
    ],
);

pub(crate) static ENDPOINT_SUBSET: Struct = structure(
    "io.k8s.api.core.v1.EndpointSubset",
    "Addresses that share the same ports.",
    &[
        field("addresses", 1, List(&Object(&ENDPOINT_ADDRESS)), "Addresses that take traffic.").atomic(),
        field(
            "notReadyAddresses",
            2,
            List(&Object(&ENDPOINT_ADDRESS)),
            "Addresses that do not take traffic yet or any more.",
        )
        .atomic(),
        field("ports", 3, List(&Object(&CORE_ENDPOINT_PORT)), "Ports of each of the addresses.").atomic(),
    ],
);

pub(crate) static ENDPOINT_ADDRESS: Struct = structure(
    "io.k8s.api.core.v1.EndpointAddress",
    "One address that serves a Service.",
    &[
        field("ip", 1, Text, "The address.").required(),
        field("hostname", 3, Text, "Host name of the endpoint."),
        field("nodeName", 4, Text, "Node that it is on.").pointer(),
        field("targetRef", 2, Object(&OBJECT_REFERENCE), "The object that it stands for.").pointer(),
    ],
)
.atomic();

pub(crate) static CORE_ENDPOINT_PORT: Struct = structure(
    "io.k8s.api.core.v1.EndpointPort",
    "One port of an endpoint.",
    &[
        field("name", 1, Text, "Name of the Service port that it serves."),
        field("port", 2, Int32, "Number of the port.").required(),
        field("protocol", 3, Text, "TCP, UDP or SCTP."),
        field("appProtocol", 4, Text, "Protocol inside the connections, as a hint.").pointer(),
    ],
)
.atomic();

pub(crate) static ENDPOINT_SLICE: Struct = structure(
    "io.k8s.api.discovery.v1.EndpointSlice",
    "Some of the endpoints that serve a Service; the label kubernetes.io/service-name tells which.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META), "Standard metadata."),
        field("addressType", 4, Text, "IPv4, IPv6 or FQDN; cannot change.").required(),
        field("endpoints", 2, List(&Object(&ENDPOINT)), "The endpoints; at most 1000.").always().atomic(),
        field("ports", 3, List(&Object(&ENDPOINT_PORT)), "Ports of each of the endpoints.").always().atomic(),
    ],
);

pub(crate) static ENDPOINT: Struct = structure(
    "io.k8s.api.discovery.v1.Endpoint",
    "One endpoint that serves a Service.",
    &[
        field("addresses", 1, TEXTS, "Addresses; only the first one is used.").required().set(),
        field("conditions", 2, Object(&ENDPOINT_CONDITIONS), "State of the endpoint."),
        field("hostname", 3, Text, "Host name of the endpoint.").pointer(),
        field("targetRef", 4, Object(&OBJECT_REFERENCE), "The object that it stands for.").pointer(),
        field("deprecatedTopology", 5, TEXT_MAP, "Topology in the form of v1beta1; only kept."),
        field("nodeName", 6, Text, "Node that it is on.").pointer(),
        field("zone", 7, Text, "Zone that it is in.").pointer(),
        field("hints", 8, Object(&ENDPOINT_HINTS), "Who should use it.").pointer(),
    ],
);

pub(crate) static ENDPOINT_CONDITIONS: Struct = structure(
    "io.k8s.api.discovery.v1.EndpointConditions",
    "The state of an endpoint.",
    &[
        field("ready", 1, Bool, "Whether it takes new traffic; absent means yes.").pointer(),
        field("serving", 2, Bool, "Like ready, but also told while terminating.").pointer(),
        field("terminating", 3, Bool, "Whether it is about to go; absent means no.").pointer(),
    ],
);

pub(crate) static ENDPOINT_HINTS: Struct = structure(
    "io.k8s.api.discovery.v1.EndpointHints",
    "Who should use an endpoint.",
    &[
        field("forZones", 1, List(&Object(&FOR_ZONE)), "Zones that should use it; at most 8.").atomic(),
        field("forNodes", 2, List(&Object(&FOR_NODE)), "Nodes that should use it; at most 8.").atomic(),
    ],
);

pub(crate) static FOR_ZONE: Struct = structure(
    "io.k8s.api.discovery.v1.ForZone",
    "A zone that should use an endpoint.",
    &[field("name", 1, Text, "Name of the zone.").required()],
);

pub(crate) static FOR_NODE: Struct = structure(
    "io.k8s.api.discovery.v1.ForNode",
    "A node that should use an endpoint.",
    &[field("name", 1, Text, "Name of the node.").required()],
);

pub(crate) static ENDPOINT_PORT: Struct = structure(
    "io.k8s.api.discovery.v1.EndpointPort",
    "One port of every endpoint of a slice.",
    &[
        field("name", 1, Text, "Name of the Service port that it serves.").pointer(),
        field("protocol", 2, Text, "TCP, UDP or SCTP.").pointer(),
        field("port", 3, Int32, "Number of the port; absent means any.").pointer(),
        field("appProtocol", 4, Text, "Protocol inside the connections, as a hint.").pointer(),
    ],
)
.atomic();
