//! The types that every kind shares (`meta/v1`).

use super::{
    Struct, Type,
    Type::{Bool, Int64, Json, List, Map, Object, Text, Time},
    field, structure,
};

pub(crate) const TEXTS: Type = List(&Text);
pub(crate) const TEXT_MAP: Type = Map(&Text);

/// `metadata` of every object.
pub static OBJECT_META: Struct = structure(
    "Metadata",
    "",
    &[
        field("name", 0, Text, ""),
        field("generateName", 0, Text, ""),
        field("namespace", 0, Text, ""),
        field("selfLink", 0, Text, ""),
        field("uid", 0, Text, ""),
        field("resourceVersion", 0, Text, ""),
        field("generation", 0, Int64, ""),
        field("creationTimestamp", 0, Time, ""),
        field("deletionTimestamp", 0, Time, ""),
        field("deletionGracePeriodSeconds", 0, Int64, ""),
        field("labels", 0, TEXT_MAP, ""),
        field("annotations", 0, TEXT_MAP, ""),
        field("ownerReferences", 0, List(&Object(&OWNER_REFERENCE)), ""),
        field("finalizers", 0, TEXTS, ""),
        field("managedFields", 0, List(&Json), ""),
    ],
);

pub(crate) static OWNER_REFERENCE: Struct = structure(
    "OwnerReference",
    "",
    &[
        field("apiVersion", 0, Text, ""),
        field("kind", 0, Text, ""),
        field("name", 0, Text, ""),
        field("uid", 0, Text, ""),
        field("controller", 0, Bool, ""),
        field("blockOwnerDeletion", 0, Bool, ""),
    ],
);

pub(crate) static OBJECT_REFERENCE: Struct = structure(
    "ObjectReference",
    "",
    &[
        field("apiVersion", 0, Text, ""),
        field("kind", 0, Text, ""),
        field("name", 0, Text, ""),
        field("namespace", 0, Text, ""),
        field("uid", 0, Text, ""),
        field("resourceVersion", 0, Text, ""),
        field("fieldPath", 0, Text, ""),
    ],
);

pub(crate) static CONDITION: Struct = structure(
    "Condition",
    "",
    &[
        field("type", 0, Text, ""),
        field("status", 0, Text, ""),
        field("observedGeneration", 0, Int64, ""),
        field("lastTransitionTime", 0, Text, ""),
        field("reason", 0, Text, ""),
        field("message", 0, Text, ""),
    ],
);
