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
    "Ranges from which Services get their virtual addresses.",
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
    &[field("cidrs", 1, TEXTS).atomic().doc("One range, or one of each family; cannot change.")],
);

pub(crate) static SERVICE_CIDR_STATUS: Struct = structure(
    "io.k8s.api.networking.v1.ServiceCIDRStatus",
    "The observed state of a ServiceCIDR.",
    &[field("conditions", 1, List(&Object(&CONDITION))).keyed(&["type"]).doc("Aspects of the state.")],
);

pub(crate) static IP_ADDRESS: Struct = structure(
    "io.k8s.api.networking.v1.IPAddress",
    "An address that is taken; its name is the address.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).doc("Standard metadata."),
        field("spec", 2, Object(&IP_ADDRESS_SPEC)).required().doc("Who has taken it."),
    ],
);

pub(crate) static IP_ADDRESS_SPEC: Struct = structure(
    "io.k8s.api.networking.v1.IPAddressSpec",
    "Who has taken an address.",
    &[field("parentRef", 1, Object(&PARENT_REFERENCE))
        .required()
        .pointer()
        .doc("The object that has taken it; cannot change.")],
);

pub(crate) static PARENT_REFERENCE: Struct = structure(
    "io.k8s.api.networking.v1.ParentReference",
    "A reference to the object that has taken an address.",
    &[
        field("group", 1, Text).doc("API group of the object."),
        field("resource", 2, Text).required().doc("Resource of the object."),
        field("namespace", 3, Text).doc("Namespace of the object."),
        field("name", 4, Text).required().doc("Name of the object."),
    ],
);
