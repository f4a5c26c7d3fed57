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
        field("metadata", 1, Object(&OBJECT_META)).doc("Standard metadata."),
        field("spec", 2, Object(&LEASE_SPEC)).doc("The claim."),
    ],
);

pub(crate) static LEASE_SPEC: Struct = structure(
    "io.k8s.api.coordination.v1.LeaseSpec",
    "A claim that its holder renews.",
    &[
        field("holderIdentity", 1, Text).pointer().doc("Who holds it."),
        field("leaseDurationSeconds", 2, Int32)
            .pointer()
            .doc("Seconds after renewTime that others wait before they take it."),
        field("acquireTime", 3, MicroTime).pointer().doc("When the holder took it."),
        field("renewTime", 4, MicroTime).pointer().doc("When the holder last renewed it."),
        field("leaseTransitions", 5, Int32).pointer().doc("How often the holder changed."),
        field("strategy", 6, Text).pointer().doc("How a holder is chosen in a coordinated election."),
        field("preferredHolder", 7, Text).pointer().doc("Who should get it in a coordinated election."),
    ],
);
