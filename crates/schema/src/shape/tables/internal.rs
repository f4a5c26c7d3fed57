//! Internal kinds of the server, which clients do not see.

use super::network::IP_ADDRESS_SPEC;
use crate::shape::{
    Struct,
    Type::Object,
    field,
    meta::{API_VERSION, KIND, OBJECT_META},
    structure,
};

pub(crate) static NODE_PORT: Struct = structure(
    "portolan.internal.v1.NodePort",
    "A node port that is taken; its name is the number.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).doc("Standard metadata."),
        field("spec", 2, Object(&IP_ADDRESS_SPEC)).doc("The object that uses the port, as for an IPAddress."),
    ],
);
