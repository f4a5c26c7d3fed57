//! Pod (`core/v1`). There are none in this server, so the table has only the fields that selectors can name.

use crate::shape::{
    Struct,
    Type::{Bool, Object, Text},
    field,
    meta::{API_VERSION, KIND, OBJECT_META},
    structure,
};

pub(crate) static POD: Struct = structure(
    "io.k8s.api.core.v1.Pod",
    "Containers that run together on a node. This server has no Pods: every list is empty.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).doc("Standard metadata."),
        field("spec", 2, Object(&POD_SPEC)).doc("The wanted behaviour."),
        field("status", 3, Object(&POD_STATUS)).doc("The observed state."),
    ],
);

pub(crate) static POD_SPEC: Struct = structure(
    "io.k8s.api.core.v1.PodSpec",
    "The wanted behaviour of a Pod.",
    &[
        field("restartPolicy", 3, Text)
            .one_of(&["Always", "Never", "OnFailure"])
            .doc("When containers that end are started again."),
        field("serviceAccountName", 8, Text).doc("ServiceAccount of the Pod."),
        field("nodeName", 10, Text).doc("Node on which the Pod runs."),
        field("hostNetwork", 11, Bool).doc("True if the Pod has the addresses of its node."),
        field("schedulerName", 19, Text).doc("Scheduler that selects the node."),
    ],
);

pub(crate) static POD_STATUS: Struct = structure(
    "io.k8s.api.core.v1.PodStatus",
    "The observed state of a Pod.",
    &[
        field("phase", 1, Text)
            .one_of(&["Failed", "Pending", "Running", "Succeeded", "Unknown"])
            .doc("Stage in the life of the Pod."),
        field("podIP", 6, Text).doc("Address of the Pod."),
        field("nominatedNodeName", 11, Text).doc("Node that makes room for the Pod."),
    ],
);
