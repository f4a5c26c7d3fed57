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
        field("metadata", 1, Object(&OBJECT_META), "Standard metadata."),
        field("spec", 2, Object(&SERVICE_CIDR_SPEC), "The ranges."),
        field("status", 3, Object(&SERVICE_CIDR_STATUS), "The observed state."),
    ],
);

pub(crate) static SERVICE_CIDR_SPEC: Struct = structure(
    "io.k8s.api.networking.v1.ServiceCIDRSpec",
    "The ranges of a ServiceCIDR.",
    &[field("cidrs", 1, TEXTS, "One range, or one of each family; cannot change.").atomic()],
);

pub(crate) static SERVICE_CIDR_STATUS: Struct = structure(
    "io.k8s.api.networking.v1.ServiceCIDRStatus",
    "The observed state of a ServiceCIDR.",
    &[field("conditions", 1, List(&Object(&CONDITION)), "Aspects of the state.").keyed(&["type"])],
);

pub(crate) static IP_ADDRESS: Struct = structure(
    "io.k8s.api.networking.v1.IPAddress",
    "An address that is taken; its name is the address.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META), "Standard metadata."),
        field("spec", 2, Object(&IP_ADDRESS_SPEC), "Who has taken it.").required(),
    ],
);

pub(crate) static IP_ADDRESS_SPEC: Struct = structure(
    "io.k8s.api.networking.v1.IPAddressSpec",
    "Who has taken an address.",
    &[field("parentRef", 1, Object(&PARENT_REFERENCE), "The object that has taken it; cannot change.")
        .required()
        .pointer()],
);

pub(crate) static PARENT_REFERENCE: Struct = structure(
    "io.k8s.api.networking.v1.ParentReference",
    "A reference to the object that has taken an address.",
    &[
        field("group", 1, Text, "API group of the object."),
        field("resource", 2, Text, "Resource of the object.").required(),
        field("namespace", 3, Text, "Namespace of the object."),
        field("name", 4, Text, "Name of the object.").required(),
    ],
);
