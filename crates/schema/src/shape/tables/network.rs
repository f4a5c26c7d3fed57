//! ServiceCIDR and IPAddress (`networking/v1`).

use crate::shape::{
    Struct,
    Type::{List, Object, Text},
    field,
    meta::{API_VERSION, CONDITION, KIND, OBJECT_META, TEXTS},
    structure,
};

pub(crate) static SERVICE_CIDR: Struct = structure(
    "io.k8s.api.networking.v1.ServiceCIDR",
    "Ranges from which cluster IPs of Services are allocated.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).doc("Standard metadata."),
        field("spec", 2, Object(&SERVICE_CIDR_SPEC)).doc("The ranges."),
        field("status", 3, Object(&SERVICE_CIDR_STATUS)).doc("The observed state."),
    ],
);

pub(crate) static SERVICE_CIDR_SPEC: Struct = structure(
    "io.k8s.api.networking.v1.ServiceCIDRSpec",
    "The ranges of a ServiceCIDR.",
    &[field("cidrs", 1, TEXTS)
        .atomic()
        .doc("One range, or one of each IP family, such as 10.96.0.0/16. Immutable.")],
);

pub(crate) static SERVICE_CIDR_STATUS: Struct = structure(
    "io.k8s.api.networking.v1.ServiceCIDRStatus",
    "The observed state of a ServiceCIDR.",
    &[field("conditions", 1, List(&Object(&CONDITION))).keyed(&["type"]).doc("Aspects of the state.")],
);

pub(crate) static IP_ADDRESS: Struct = structure(
    "io.k8s.api.networking.v1.IPAddress",
    "A cluster IP in use. The name of the object is the address.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).doc("Standard metadata."),
        field("spec", 2, Object(&IP_ADDRESS_SPEC)).required().doc("The object that uses the address."),
    ],
);

pub(crate) static IP_ADDRESS_SPEC: Struct = structure(
    "io.k8s.api.networking.v1.IPAddressSpec",
    "The object that uses an address.",
    &[field("parentRef", 1, Object(&PARENT_REFERENCE))
        .required()
        .pointer()
        .doc("Reference to the object that uses the address. Immutable.")],
);

pub(crate) static PARENT_REFERENCE: Struct = structure(
    "io.k8s.api.networking.v1.ParentReference",
    "A reference to the object that uses an address.",
    &[
        field("group", 1, Text).doc("API group of the object; empty for the core group."),
        field("resource", 2, Text)
            .required()
            .doc("Plural name of the resource of the object, such as services."),
        field("namespace", 3, Text).doc("Namespace of the object."),
        field("name", 4, Text).required().doc("Name of the object."),
    ],
);
