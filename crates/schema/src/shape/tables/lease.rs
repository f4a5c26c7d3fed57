//! Lease (`coordination/v1`).

use crate::shape::{
    Struct,
    Type::{Int32, MicroTime, Object, Text},
    field,
    meta::{API_VERSION, KIND, OBJECT_META},
    structure,
};

pub(crate) static LEASE: Struct = structure(
    "io.k8s.api.coordination.v1.Lease",
    "A claim that its holder renews; for elections and signs of life.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META), "Standard metadata."),
        field("spec", 2, Object(&LEASE_SPEC), "The claim."),
    ],
);

pub(crate) static LEASE_SPEC: Struct = structure(
    "io.k8s.api.coordination.v1.LeaseSpec",
    "A claim that its holder renews.",
    &[
        field("holderIdentity", 1, Text, "Who holds it.").pointer(),
        field(
            "leaseDurationSeconds",
            2,
            Int32,
            "Seconds after renewTime that others wait before they take it.",
        )
        .pointer(),
        field("acquireTime", 3, MicroTime, "When the holder took it.").pointer(),
        field("renewTime", 4, MicroTime, "When the holder last renewed it.").pointer(),
        field("leaseTransitions", 5, Int32, "How often the holder changed.").pointer(),
        field("strategy", 6, Text, "How a holder is chosen in a coordinated election.").pointer(),
        field("preferredHolder", 7, Text, "Who should get it in a coordinated election.").pointer(),
    ],
);
