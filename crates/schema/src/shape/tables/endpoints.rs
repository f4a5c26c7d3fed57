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
    "The endpoints of the Service with the same name. Deprecated: use EndpointSlice.",
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
        field("addresses", 1, List(&Object(&ENDPOINT_ADDRESS)))
            .atomic()
            .doc("Addresses of endpoints that are ready."),
        field("notReadyAddresses", 2, List(&Object(&ENDPOINT_ADDRESS)))
            .atomic()
            .doc("Addresses of endpoints that are not ready."),
        field("ports", 3, List(&Object(&CORE_ENDPOINT_PORT))).atomic().doc("Ports of every address."),
    ],
);

pub(crate) static ENDPOINT_ADDRESS: Struct = structure(
    "io.k8s.api.core.v1.EndpointAddress",
    "The address of one endpoint.",
    &[
        field("ip", 1, Text).required().doc("The address."),
        field("hostname", 3, Text).doc("Host name of the endpoint."),
        field("nodeName", 4, Text).pointer().doc("Node of the endpoint."),
        field("targetRef", 2, Object(&OBJECT_REFERENCE))
            .pointer()
            .doc("The object that is the endpoint, such as a Pod."),
    ],
)
.atomic();

pub(crate) static CORE_ENDPOINT_PORT: Struct = structure(
    "io.k8s.api.core.v1.EndpointPort",
    "One port of an endpoint.",
    &[
        field("name", 1, Text).doc("Name of the Service port that it belongs to."),
        field("port", 2, Int32).required().doc("Number of the port."),
        field("protocol", 3, Text)
            .one_of(&["SCTP", "TCP", "UDP"])
            .default("TCP")
            .doc("Transport protocol. Default: TCP."),
        field("appProtocol", 4, Text)
            .pointer()
            .doc("Application protocol, for implementations that make use of it."),
    ],
)
.atomic();

pub(crate) static ENDPOINT_SLICE: Struct = structure(
    "io.k8s.api.discovery.v1.EndpointSlice",
    "Endpoints of a Service, whose name is in the label kubernetes.io/service-name. A Service may have several.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).doc("Standard metadata."),
        field("addressType", 4, Text)
            .one_of(&["FQDN", "IPv4", "IPv6"])
            .required()
            .doc("Type of all addresses of the slice. Immutable."),
        field("endpoints", 2, List(&Object(&ENDPOINT))).always().atomic().doc("The endpoints, at most 1000."),
        field("ports", 3, List(&Object(&ENDPOINT_PORT))).always().atomic().doc("Ports of every endpoint."),
    ],
);

pub(crate) static ENDPOINT: Struct = structure(
    "io.k8s.api.discovery.v1.Endpoint",
    "One endpoint of a Service.",
    &[
        field("addresses", 1, TEXTS)
            .required()
            .set()
            .doc("Addresses of the endpoint. Proxies use the first one."),
        field("conditions", 2, Object(&ENDPOINT_CONDITIONS)).doc("State of the endpoint."),
        field("hostname", 3, Text).pointer().doc("Host name of the endpoint."),
        field("targetRef", 4, Object(&OBJECT_REFERENCE))
            .pointer()
            .doc("The object that is the endpoint, such as a Pod."),
        field("deprecatedTopology", 5, TEXT_MAP)
            .doc("Topology of the API version v1beta1. Kept, but not used."),
        field("nodeName", 6, Text).pointer().doc("Node of the endpoint."),
        field("zone", 7, Text).pointer().doc("Zone of the endpoint."),
        field("hints", 8, Object(&ENDPOINT_HINTS)).pointer().doc("Clients that should use the endpoint."),
    ],
);

pub(crate) static ENDPOINT_CONDITIONS: Struct = structure(
    "io.k8s.api.discovery.v1.EndpointConditions",
    "The state of an endpoint.",
    &[
        field("ready", 1, Bool)
            .pointer()
            .doc("True if the endpoint accepts new connections. Not set means true."),
        field("serving", 2, Bool)
            .pointer()
            .doc("Like ready, but also true for a terminating endpoint that still answers."),
        field("terminating", 3, Bool)
            .pointer()
            .doc("True if the endpoint is being shut down. Not set means false."),
    ],
);

pub(crate) static ENDPOINT_HINTS: Struct = structure(
    "io.k8s.api.discovery.v1.EndpointHints",
    "Clients that should use an endpoint.",
    &[
        field("forZones", 1, List(&Object(&FOR_ZONE))).atomic().doc("Zones of these clients, at most 8."),
        field("forNodes", 2, List(&Object(&FOR_NODE))).atomic().doc("Nodes of these clients, at most 8."),
    ],
);

pub(crate) static FOR_ZONE: Struct = structure(
    "io.k8s.api.discovery.v1.ForZone",
    "A zone whose clients should use an endpoint.",
    &[field("name", 1, Text).required().doc("Name of the zone.")],
);

pub(crate) static FOR_NODE: Struct = structure(
    "io.k8s.api.discovery.v1.ForNode",
    "A node whose clients should use an endpoint.",
    &[field("name", 1, Text).required().doc("Name of the node.")],
);

pub(crate) static ENDPOINT_PORT: Struct = structure(
    "io.k8s.api.discovery.v1.EndpointPort",
    "One port of every endpoint of a slice.",
    &[
        field("name", 1, Text).pointer().doc("Name of the Service port that it belongs to."),
        field("protocol", 2, Text)
            .one_of(&["SCTP", "TCP", "UDP"])
            .default("TCP")
            .pointer()
            .doc("Transport protocol. Default: TCP."),
        field("port", 3, Int32).pointer().doc("Number of the port. Not set means every port."),
        field("appProtocol", 4, Text)
            .pointer()
            .doc("Application protocol, for implementations that make use of it."),
    ],
)
.atomic();
