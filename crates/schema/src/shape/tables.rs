//! The fields of each kind. Source: the API types of Kubernetes v1.36 (`core/v1`, `discovery/v1`, `networking/v1`,
//! `events/v1`).

use super::{
    Struct, Type,
    Type::{Bool, Int32, IntOrText, Json, List, Map, MicroTime, Object, Quantity, Text},
    field,
    meta::{self, CONDITION, OBJECT_REFERENCE, TEXT_MAP, TEXTS},
    structure,
};
use crate::resource::Resource;

/// The fields of the resource's objects.
pub(super) const fn of(resource: Resource) -> &'static Struct {
    match resource {
        Resource::Service => &SERVICE,
        Resource::Node => &NODE,
        Resource::Namespace => &NAMESPACE,
        Resource::EndpointSlice => &ENDPOINT_SLICE,
        Resource::ServiceCidr => &SERVICE_CIDR,
        Resource::Event => &EVENT,
    }
}

pub(crate) static SERVICE: Struct = structure(
    "Service",
    "",
    &[
        field("apiVersion", 0, Text, ""),
        field("kind", 0, Text, ""),
        field("metadata", 0, Object(&meta::OBJECT_META), ""),
        field("spec", 0, Object(&SERVICE_SPEC), ""),
        field("status", 0, Object(&SERVICE_STATUS), ""),
    ],
);

pub(crate) static SERVICE_SPEC: Struct = structure(
    "ServiceSpec",
    "",
    &[
        field("type", 0, Text, ""),
        field("clusterIP", 0, Text, ""),
        field("clusterIPs", 0, TEXTS, ""),
        field("ipFamilies", 0, TEXTS, ""),
        field("ipFamilyPolicy", 0, Text, ""),
        field("ports", 0, List(&Object(&SERVICE_PORT)), ""),
        field("selector", 0, TEXT_MAP, ""),
        field("sessionAffinity", 0, Text, ""),
        field("sessionAffinityConfig", 0, Object(&AFFINITY_CONFIG), ""),
        field("externalIPs", 0, TEXTS, ""),
        field("externalName", 0, Text, ""),
        field("externalTrafficPolicy", 0, Text, ""),
        field("internalTrafficPolicy", 0, Text, ""),
        field("trafficDistribution", 0, Text, ""),
        field("healthCheckNodePort", 0, Int32, ""),
        field("loadBalancerIP", 0, Text, ""),
        field("loadBalancerClass", 0, Text, ""),
        field("loadBalancerSourceRanges", 0, TEXTS, ""),
        field("allocateLoadBalancerNodePorts", 0, Bool, ""),
        field("publishNotReadyAddresses", 0, Bool, ""),
    ],
);

pub(crate) static SERVICE_PORT: Struct = structure(
    "ServicePort",
    "",
    &[
        field("name", 0, Text, ""),
        field("protocol", 0, Text, ""),
        field("appProtocol", 0, Text, ""),
        field("port", 0, Int32, ""),
        field("targetPort", 0, IntOrText, ""),
        field("nodePort", 0, Int32, ""),
    ],
);

pub(crate) static AFFINITY_CONFIG: Struct = structure(
    "AffinityConfig",
    "",
    &[field("clientIP", 0, Object(&structure("", "", &[field("timeoutSeconds", 0, Int32, "")])), "")],
);

pub(crate) static SERVICE_STATUS: Struct = structure(
    "ServiceStatus",
    "",
    &[
        field(
            "loadBalancer",
            0,
            Object(&structure("", "", &[field("ingress", 0, List(&Object(&INGRESS)), "")])),
            "",
        ),
        field("conditions", 0, List(&Object(&CONDITION)), ""),
    ],
);

pub(crate) static INGRESS: Struct = structure(
    "Ingress",
    "",
    &[
        field("ip", 0, Text, ""),
        field("hostname", 0, Text, ""),
        field("ipMode", 0, Text, ""),
        field(
            "ports",
            0,
            List(&Object(&structure(
                "",
                "",
                &[field("port", 0, Int32, ""), field("protocol", 0, Text, ""), field("error", 0, Text, "")],
            ))),
            "",
        ),
    ],
);

pub(crate) static NODE: Struct = structure(
    "Node",
    "",
    &[
        field("apiVersion", 0, Text, ""),
        field("kind", 0, Text, ""),
        field("metadata", 0, Object(&meta::OBJECT_META), ""),
        field("spec", 0, Object(&NODE_SPEC), ""),
        field("status", 0, Object(&NODE_STATUS), ""),
    ],
);

pub(crate) static NODE_SPEC: Struct = structure(
    "NodeSpec",
    "",
    &[
        field("podCIDR", 0, Text, ""),
        field("podCIDRs", 0, TEXTS, ""),
        field("providerID", 0, Text, ""),
        field("unschedulable", 0, Bool, ""),
        field("taints", 0, List(&Json), ""),
        field("configSource", 0, Json, ""),
        field("externalID", 0, Text, ""),
    ],
);

pub(crate) static NODE_STATUS: Struct = structure(
    "NodeStatus",
    "",
    &[
        field(
            "addresses",
            0,
            List(&Object(&structure("", "", &[field("type", 0, Text, ""), field("address", 0, Text, "")]))),
            "",
        ),
        field("conditions", 0, List(&Json), ""),
        field("capacity", 0, Map(&Quantity), ""),
        field("allocatable", 0, Map(&Quantity), ""),
        field("phase", 0, Text, ""),
        field("daemonEndpoints", 0, Json, ""),
        field("nodeInfo", 0, Json, ""),
        field("images", 0, List(&Json), ""),
        field("volumesInUse", 0, TEXTS, ""),
        field("volumesAttached", 0, List(&Json), ""),
        field("config", 0, Json, ""),
        field("runtimeHandlers", 0, List(&Json), ""),
        field("features", 0, Json, ""),
        field("declaredFeatures", 0, TEXTS, ""),
    ],
);

pub(crate) static NAMESPACE: Struct = structure(
    "Namespace",
    "",
    &[
        field("apiVersion", 0, Text, ""),
        field("kind", 0, Text, ""),
        field("metadata", 0, Object(&meta::OBJECT_META), ""),
        field("spec", 0, Object(&structure("", "", &[field("finalizers", 0, TEXTS, "")])), ""),
        field(
            "status",
            0,
            Object(&structure(
                "",
                "",
                &[field("phase", 0, Text, ""), field("conditions", 0, List(&Json), "")],
            )),
            "",
        ),
    ],
);

pub(crate) static ENDPOINT_SLICE: Struct = structure(
    "EndpointSlice",
    "",
    &[
        field("apiVersion", 0, Text, ""),
        field("kind", 0, Text, ""),
        field("metadata", 0, Object(&meta::OBJECT_META), ""),
        field("addressType", 0, Text, ""),
        field("endpoints", 0, List(&Object(&ENDPOINT)), ""),
        field("ports", 0, List(&Object(&ENDPOINT_PORT)), ""),
    ],
);

pub(crate) static ENDPOINT: Struct = structure(
    "Endpoint",
    "",
    &[
        field("addresses", 0, TEXTS, ""),
        field(
            "conditions",
            0,
            Object(&structure(
                "",
                "",
                &[
                    field("ready", 0, Bool, ""),
                    field("serving", 0, Bool, ""),
                    field("terminating", 0, Bool, ""),
                ],
            )),
            "",
        ),
        field("hostname", 0, Text, ""),
        field("nodeName", 0, Text, ""),
        field("zone", 0, Text, ""),
        field("targetRef", 0, Object(&OBJECT_REFERENCE), ""),
        field(
            "hints",
            0,
            Object(&structure("", "", &[field("forZones", 0, NAMED, ""), field("forNodes", 0, NAMED, "")])),
            "",
        ),
        field("deprecatedTopology", 0, TEXT_MAP, ""),
    ],
);

const NAMED: Type = List(&Object(&structure("", "", &[field("name", 0, Text, "")])));

pub(crate) static ENDPOINT_PORT: Struct = structure(
    "EndpointPort",
    "",
    &[
        field("name", 0, Text, ""),
        field("protocol", 0, Text, ""),
        field("port", 0, Int32, ""),
        field("appProtocol", 0, Text, ""),
    ],
);

pub(crate) static SERVICE_CIDR: Struct = structure(
    "ServiceCidr",
    "",
    &[
        field("apiVersion", 0, Text, ""),
        field("kind", 0, Text, ""),
        field("metadata", 0, Object(&meta::OBJECT_META), ""),
        field("spec", 0, Object(&structure("", "", &[field("cidrs", 0, TEXTS, "")])), ""),
        field(
            "status",
            0,
            Object(&structure("", "", &[field("conditions", 0, List(&Object(&CONDITION)), "")])),
            "",
        ),
    ],
);

pub(crate) static EVENT: Struct = structure(
    "Event",
    "",
    &[
        field("apiVersion", 0, Text, ""),
        field("kind", 0, Text, ""),
        field("metadata", 0, Object(&meta::OBJECT_META), ""),
        field("eventTime", 0, MicroTime, ""),
        field(
            "series",
            0,
            Object(&structure(
                "",
                "",
                &[field("count", 0, Int32, ""), field("lastObservedTime", 0, MicroTime, "")],
            )),
            "",
        ),
        field("reportingController", 0, Text, ""),
        field("reportingInstance", 0, Text, ""),
        field("action", 0, Text, ""),
        field("reason", 0, Text, ""),
        field("regarding", 0, Object(&OBJECT_REFERENCE), ""),
        field("related", 0, Object(&OBJECT_REFERENCE), ""),
        field("note", 0, Text, ""),
        field("type", 0, Text, ""),
        field("deprecatedSource", 0, Json, ""),
        field("deprecatedFirstTimestamp", 0, Text, ""),
        field("deprecatedLastTimestamp", 0, Text, ""),
        field("deprecatedCount", 0, Int32, ""),
    ],
);
