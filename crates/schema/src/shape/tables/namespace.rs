//! Namespace (`core/v1`).

use crate::shape::{
    Struct,
    Type::{List, Object, Text, Time},
    field,
    meta::{API_VERSION, KIND, OBJECT_META, TEXTS},
    structure,
};

pub(crate) static NAMESPACE: Struct = structure(
    "io.k8s.api.core.v1.Namespace",
    "A scope for the names of other objects.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).doc("Standard metadata."),
        field("spec", 2, Object(&NAMESPACE_SPEC)).doc("The wanted behaviour."),
        field("status", 3, Object(&NAMESPACE_STATUS)).doc("The observed state."),
    ],
);

pub(crate) static NAMESPACE_SPEC: Struct = structure(
    "io.k8s.api.core.v1.NamespaceSpec",
    "The wanted behaviour of a Namespace.",
    &[field("finalizers", 1, TEXTS).atomic().doc(
        "Finalizers. The Namespace is removed when it is being deleted and none is left. Written \
                 at the finalize subresource.",
    )],
);

pub(crate) static NAMESPACE_STATUS: Struct = structure(
    "io.k8s.api.core.v1.NamespaceStatus",
    "The observed state of a Namespace.",
    &[
        field("phase", 1, Text)
            .one_of(&["Active", "Terminating"])
            .doc("Terminating while the Namespace is being deleted."),
        field("conditions", 2, List(&Object(&NAMESPACE_CONDITION)))
            .keyed(&["type"])
            .doc("Conditions of the Namespace."),
    ],
);

pub(crate) static NAMESPACE_CONDITION: Struct = structure(
    "io.k8s.api.core.v1.NamespaceCondition",
    "One condition of a Namespace.",
    &[
        field("type", 1, Text).required().doc("Name of the condition."),
        field("status", 2, Text).required().doc("True, False or Unknown."),
        field("lastTransitionTime", 4, Time).doc("When the status last changed."),
        field("reason", 5, Text).doc("Reason of the last change, as one word."),
        field("message", 6, Text).doc("Description of the last change."),
    ],
);
