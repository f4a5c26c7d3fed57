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
    "A lock with a holder that renews it. For the election of leaders, and to show that a program runs.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).doc("Standard metadata."),
        field("spec", 2, Object(&LEASE_SPEC)).doc("Holder and times of the lock."),
    ],
);

pub(crate) static LEASE_SPEC: Struct = structure(
    "io.k8s.api.coordination.v1.LeaseSpec",
    "Holder and times of a lock.",
    &[
        field("holderIdentity", 1, Text).pointer().doc("Identity of the holder."),
        field("leaseDurationSeconds", 2, Int32).pointer().doc(
            "Seconds after renewTime at which the Lease expires, so that another candidate may acquire it.",
        ),
        field("acquireTime", 3, MicroTime).pointer().doc("Time at which the holder acquired the Lease."),
        field("renewTime", 4, MicroTime).pointer().doc("Time at which the holder last renewed the Lease."),
        field("leaseTransitions", 5, Int32).pointer().doc("Number of changes of the holder."),
        field("strategy", 6, Text).pointer().doc("Strategy of a coordinated election."),
        field("preferredHolder", 7, Text)
            .pointer()
            .doc("Identity of the candidate that should become the holder in a coordinated election."),
    ],
);
