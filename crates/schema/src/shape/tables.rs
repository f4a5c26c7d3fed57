//! The fields of each kind. Source: the API types of Kubernetes v1.36 (`core/v1`, `discovery/v1`, `networking/v1`,
//! `events/v1`, `meta/v1`). Parts that this project never reads are kept unexamined (`Any`).

use super::{
    Field, Type,
    Type::{Any, Bool, Int32, Int64, IntOrText, List, Map, Object, Text},
};
use crate::resource::Resource;

/// The fields of the resource's objects.
pub(super) fn of(resource: Resource) -> &'static [Field] {
    match resource {
        Resource::Service => SERVICE,
        Resource::Node => NODE,
        Resource::Namespace => NAMESPACE,
        Resource::EndpointSlice => ENDPOINT_SLICE,
        Resource::ServiceCidr => SERVICE_CIDR,
        Resource::Event => EVENT,
    }
}

const TEXTS: Type = List(&Text);
const TEXT_MAP: Type = Map(&Text);

pub(super) const METADATA: &[Field] = &[
    Field("name", Text),
    Field("generateName", Text),
    Field("namespace", Text),
    Field("selfLink", Text),
    Field("uid", Text),
    Field("resourceVersion", Text),
    Field("generation", Int64),
    Field("creationTimestamp", Text),
    Field("deletionTimestamp", Text),
    Field("deletionGracePeriodSeconds", Int64),
    Field("labels", TEXT_MAP),
    Field("annotations", TEXT_MAP),
    Field("ownerReferences", List(&Object(OWNER_REFERENCE))),
    Field("finalizers", TEXTS),
    Field("managedFields", List(&Any)),
];

const OWNER_REFERENCE: &[Field] = &[
    Field("apiVersion", Text),
    Field("kind", Text),
    Field("name", Text),
    Field("uid", Text),
    Field("controller", Bool),
    Field("blockOwnerDeletion", Bool),
];

const OBJECT_REFERENCE: &[Field] = &[
    Field("apiVersion", Text),
    Field("kind", Text),
    Field("name", Text),
    Field("namespace", Text),
    Field("uid", Text),
    Field("resourceVersion", Text),
    Field("fieldPath", Text),
];

const CONDITION: &[Field] = &[
    Field("type", Text),
    Field("status", Text),
    Field("observedGeneration", Int64),
    Field("lastTransitionTime", Text),
    Field("reason", Text),
    Field("message", Text),
];

const SERVICE: &[Field] = &[
    Field("apiVersion", Text),
    Field("kind", Text),
    Field("metadata", Object(METADATA)),
    Field("spec", Object(SERVICE_SPEC)),
    Field("status", Object(SERVICE_STATUS)),
];

const SERVICE_SPEC: &[Field] = &[
    Field("type", Text),
    Field("clusterIP", Text),
    Field("clusterIPs", TEXTS),
    Field("ipFamilies", TEXTS),
    Field("ipFamilyPolicy", Text),
    Field("ports", List(&Object(SERVICE_PORT))),
    Field("selector", TEXT_MAP),
    Field("sessionAffinity", Text),
    Field("sessionAffinityConfig", Object(AFFINITY_CONFIG)),
    Field("externalIPs", TEXTS),
    Field("externalName", Text),
    Field("externalTrafficPolicy", Text),
    Field("internalTrafficPolicy", Text),
    Field("trafficDistribution", Text),
    Field("healthCheckNodePort", Int32),
    Field("loadBalancerIP", Text),
    Field("loadBalancerClass", Text),
    Field("loadBalancerSourceRanges", TEXTS),
    Field("allocateLoadBalancerNodePorts", Bool),
    Field("publishNotReadyAddresses", Bool),
];

const SERVICE_PORT: &[Field] = &[
    Field("name", Text),
    Field("protocol", Text),
    Field("appProtocol", Text),
    Field("port", Int32),
    Field("targetPort", IntOrText),
    Field("nodePort", Int32),
];

const AFFINITY_CONFIG: &[Field] = &[Field("clientIP", Object(&[Field("timeoutSeconds", Int32)]))];

const SERVICE_STATUS: &[Field] = &[
    Field("loadBalancer", Object(&[Field("ingress", List(&Object(INGRESS)))])),
    Field("conditions", List(&Object(CONDITION))),
];

const INGRESS: &[Field] = &[
    Field("ip", Text),
    Field("hostname", Text),
    Field("ipMode", Text),
    Field("ports", List(&Object(&[Field("port", Int32), Field("protocol", Text), Field("error", Text)]))),
];

const NODE: &[Field] = &[
    Field("apiVersion", Text),
    Field("kind", Text),
    Field("metadata", Object(METADATA)),
    Field("spec", Object(NODE_SPEC)),
    Field("status", Object(NODE_STATUS)),
];

const NODE_SPEC: &[Field] = &[
    Field("podCIDR", Text),
    Field("podCIDRs", TEXTS),
    Field("providerID", Text),
    Field("unschedulable", Bool),
    Field("taints", List(&Any)),
    Field("configSource", Any),
    Field("externalID", Text),
];

const NODE_STATUS: &[Field] = &[
    Field("addresses", List(&Object(&[Field("type", Text), Field("address", Text)]))),
    Field("conditions", List(&Any)),
    Field("capacity", Map(&Any)),
    Field("allocatable", Map(&Any)),
    Field("phase", Text),
    Field("daemonEndpoints", Any),
    Field("nodeInfo", Any),
    Field("images", List(&Any)),
    Field("volumesInUse", TEXTS),
    Field("volumesAttached", List(&Any)),
    Field("config", Any),
    Field("runtimeHandlers", List(&Any)),
    Field("features", Any),
    Field("declaredFeatures", TEXTS),
];

const NAMESPACE: &[Field] = &[
    Field("apiVersion", Text),
    Field("kind", Text),
    Field("metadata", Object(METADATA)),
    Field("spec", Object(&[Field("finalizers", TEXTS)])),
    Field("status", Object(&[Field("phase", Text), Field("conditions", List(&Any))])),
];

const ENDPOINT_SLICE: &[Field] = &[
    Field("apiVersion", Text),
    Field("kind", Text),
    Field("metadata", Object(METADATA)),
    Field("addressType", Text),
    Field("endpoints", List(&Object(ENDPOINT))),
    Field("ports", List(&Object(ENDPOINT_PORT))),
];

const ENDPOINT: &[Field] = &[
    Field("addresses", TEXTS),
    Field("conditions", Object(&[Field("ready", Bool), Field("serving", Bool), Field("terminating", Bool)])),
    Field("hostname", Text),
    Field("nodeName", Text),
    Field("zone", Text),
    Field("targetRef", Object(OBJECT_REFERENCE)),
    Field("hints", Object(&[Field("forZones", NAMED), Field("forNodes", NAMED)])),
    Field("deprecatedTopology", TEXT_MAP),
];

const NAMED: Type = List(&Object(&[Field("name", Text)]));

const ENDPOINT_PORT: &[Field] =
    &[Field("name", Text), Field("protocol", Text), Field("port", Int32), Field("appProtocol", Text)];

const SERVICE_CIDR: &[Field] = &[
    Field("apiVersion", Text),
    Field("kind", Text),
    Field("metadata", Object(METADATA)),
    Field("spec", Object(&[Field("cidrs", TEXTS)])),
    Field("status", Object(&[Field("conditions", List(&Object(CONDITION)))])),
];

const EVENT: &[Field] = &[
    Field("apiVersion", Text),
    Field("kind", Text),
    Field("metadata", Object(METADATA)),
    Field("eventTime", Text),
    Field("series", Object(&[Field("count", Int32), Field("lastObservedTime", Text)])),
    Field("reportingController", Text),
    Field("reportingInstance", Text),
    Field("action", Text),
    Field("reason", Text),
    Field("regarding", Object(OBJECT_REFERENCE)),
    Field("related", Object(OBJECT_REFERENCE)),
    Field("note", Text),
    Field("type", Text),
    Field("deprecatedSource", Any),
    Field("deprecatedFirstTimestamp", Text),
    Field("deprecatedLastTimestamp", Text),
    Field("deprecatedCount", Int32),
];
