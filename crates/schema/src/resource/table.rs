//! The properties of each resource.

use super::{Info, Resource, Storage};

pub(super) const fn of(resource: Resource) -> &'static Info {
    match resource {
        Resource::Service => &SERVICE,
        Resource::Node => &NODE,
        Resource::Namespace => &NAMESPACE,
        Resource::EndpointSlice => &ENDPOINT_SLICE,
        Resource::ServiceCidr => &SERVICE_CIDR,
        Resource::Event => &EVENT,
        Resource::CoreEvent => &CORE_EVENT,
        Resource::Endpoints => &ENDPOINTS,
        Resource::IpAddress => &IP_ADDRESS,
        Resource::Lease => &LEASE,
        Resource::NodePort => &NODE_PORT,
        Resource::Pod => &POD,
        Resource::AccessReview => &ACCESS_REVIEW,
        Resource::RulesReview => &RULES_REVIEW,
        Resource::SelfReview => &SELF_REVIEW,
    }
}

/// The properties that most resources share. Each row sets those that differ.
const BASE: Info = Info {
    group: "",
    version: "v1",
    api_version: "v1",
    kind: "",
    plural: "",
    singular: "",
    short_names: &[],
    categories: &[],
    served: true,
    storage: Storage::Stored,
    deprecated: None,
    namespaced: true,
    subresources: &[],
    has_status: false,
    status_writes_metadata: true,
    writable: true,
    collection_deletable: true,
    create_on_update: false,
    unconditional_update: true,
    delete_returns_object: false,
    create_keeps_status: true,
    selectable: &[],
};

static SERVICE: Info = Info {
    kind: "Service",
    plural: "services",
    singular: "service",
    short_names: &["svc"],
    categories: &["all"],
    subresources: &["status"],
    has_status: true,
    create_on_update: true,
    delete_returns_object: true,
    create_keeps_status: false,
    selectable: &["spec.clusterIP", "spec.type"],
    ..BASE
};

static NODE: Info = Info {
    kind: "Node",
    plural: "nodes",
    singular: "node",
    short_names: &["no"],
    namespaced: false,
    subresources: &["status"],
    has_status: true,
    selectable: &["spec.unschedulable"],
    ..BASE
};

static NAMESPACE: Info = Info {
    kind: "Namespace",
    plural: "namespaces",
    singular: "namespace",
    short_names: &["ns"],
    namespaced: false,
    subresources: &["finalize", "status"],
    has_status: true,
    collection_deletable: false,
    delete_returns_object: true,
    create_keeps_status: false,
    selectable: &["status.phase"],
    ..BASE
};

static ENDPOINT_SLICE: Info = Info {
    group: "discovery.k8s.io",
    api_version: "discovery.k8s.io/v1",
    kind: "EndpointSlice",
    plural: "endpointslices",
    singular: "endpointslice",
    ..BASE
};

static SERVICE_CIDR: Info = Info {
    group: "networking.k8s.io",
    api_version: "networking.k8s.io/v1",
    kind: "ServiceCIDR",
    plural: "servicecidrs",
    singular: "servicecidr",
    namespaced: false,
    subresources: &["status"],
    has_status: true,
    status_writes_metadata: false,
    create_keeps_status: false,
    ..BASE
};

// The selectable fields are in the same order as those of CORE_EVENT, which are other names of the same fields.
static EVENT: Info = Info {
    group: "events.k8s.io",
    api_version: "events.k8s.io/v1",
    kind: "Event",
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    create_on_update: true,
    selectable: &[
        "regarding.kind",
        "regarding.namespace",
        "regarding.name",
        "regarding.uid",
        "regarding.apiVersion",
        "regarding.resourceVersion",
        "regarding.fieldPath",
        "reason",
        "reportingController",
        "deprecatedSource.component",
        "type",
    ],
    ..BASE
};

static CORE_EVENT: Info = Info {
    kind: "Event",
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    create_on_update: true,
    selectable: &[
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ],
    ..BASE
};

static ENDPOINTS: Info = Info {
    kind: "Endpoints",
    plural: "endpoints",
    singular: "endpoints",
    short_names: &["ep"],
    deprecated: Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
    create_on_update: true,
    ..BASE
};

static IP_ADDRESS: Info = Info {
    group: "networking.k8s.io",
    api_version: "networking.k8s.io/v1",
    kind: "IPAddress",
    plural: "ipaddresses",
    singular: "ipaddress",
    short_names: &["ip"],
    namespaced: false,
    ..BASE
};

static LEASE: Info = Info {
    group: "coordination.k8s.io",
    api_version: "coordination.k8s.io/v1",
    kind: "Lease",
    plural: "leases",
    singular: "lease",
    create_on_update: true,
    unconditional_update: false,
    ..BASE
};

static NODE_PORT: Info = Info {
    group: "portolan.internal",
    api_version: "portolan.internal/v1",
    kind: "NodePort",
    plural: "nodeports",
    singular: "nodeport",
    served: false,
    namespaced: false,
    writable: false,
    collection_deletable: false,
    ..BASE
};

/// What resources share whose objects are not stored.
const NOT_STORED: Info =
    Info { writable: false, collection_deletable: false, unconditional_update: false, ..BASE };

static POD: Info = Info {
    kind: "Pod",
    plural: "pods",
    singular: "pod",
    short_names: &["po"],
    categories: &["all"],
    storage: Storage::Empty,
    selectable: &[
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ],
    ..NOT_STORED
};

/// What the resources of `authorization.k8s.io` share.
const AUTHORIZATION: Info = Info {
    group: "authorization.k8s.io",
    api_version: "authorization.k8s.io/v1",
    storage: Storage::Answered,
    namespaced: false,
    ..NOT_STORED
};

static ACCESS_REVIEW: Info = Info {
    kind: "SelfSubjectAccessReview",
    plural: "selfsubjectaccessreviews",
    singular: "selfsubjectaccessreview",
    ..AUTHORIZATION
};

static RULES_REVIEW: Info = Info {
    kind: "SelfSubjectRulesReview",
    plural: "selfsubjectrulesreviews",
    singular: "selfsubjectrulesreview",
    ..AUTHORIZATION
};

static SELF_REVIEW: Info = Info {
    group: "authentication.k8s.io",
    api_version: "authentication.k8s.io/v1",
    kind: "SelfSubjectReview",
    plural: "selfsubjectreviews",
    singular: "selfsubjectreview",
    ..AUTHORIZATION
};
