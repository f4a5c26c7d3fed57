//! The types that kinds share (`meta/v1`), and the objects that are only ever sent.

use super::{
    Field, Struct, Type,
    Type::{Bool, FieldsV1, Int32, Int64, Json, List, Map, Object, Text, Time},
    field, structure,
};

pub(super) const TEXTS: Type = List(&Text);
pub(super) const TEXT_MAP: Type = Map(&Text);

/// The version of the kind; in protobuf it is in the envelope.
pub(super) const API_VERSION: Field = field("apiVersion", 0, Text, "Group and version of the kind.");
/// The kind; in protobuf it is in the envelope.
pub(super) const KIND: Field = field("kind", 0, Text, "Name of the kind.");

/// `metadata` of every object.
pub static OBJECT_META: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
    "What every stored object has: its name, identity, version and labels.",
    &[
        field("name", 1, Text, "Name, unique within the kind and namespace; cannot change."),
        field("generateName", 2, Text, "Prefix from which the server makes a name when none is given."),
        field("namespace", 3, Text, "Namespace that the object lives in; empty for cluster-wide kinds."),
        field("selfLink", 4, Text, "No longer filled."),
        field(
            "uid",
            5,
            Text,
            "Identity given by the server; differs for an object that is made again under the same name.",
        ),
        field(
            "resourceVersion",
            6,
            Text,
            "Version of the object; for a write, the version that it is based on.",
        ),
        field("generation", 7, Int64, "Number of the wanted state; grows when that changes."),
        field("creationTimestamp", 8, Time, "When the object was made; set by the server."),
        field(
            "deletionTimestamp",
            9,
            Time,
            "When the object was asked to go; set by the server. It goes when no finalizer is left.",
        )
        .pointer(),
        field("deletionGracePeriodSeconds", 10, Int64, "Seconds that the object was given to end by itself.")
            .pointer(),
        field("labels", 11, TEXT_MAP, "Pairs by which objects are selected."),
        field("annotations", 12, TEXT_MAP, "Pairs that tools keep with the object; not for selection."),
        field(
            "ownerReferences",
            13,
            List(&Object(&OWNER_REFERENCE)),
            "Objects that this one depends on; when all are gone, it is removed.",
        )
        .keyed(&["uid"]),
        field("finalizers", 14, TEXTS, "Who must still act before the object may go.").merged_set(),
        field(
            "managedFields",
            17,
            List(&Object(&MANAGED_FIELDS_ENTRY)),
            "Which writer owns which fields; kept by the server for server-side apply.",
        )
        .atomic(),
    ],
);

pub(crate) static LIST_META: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta",
    "What every list has.",
    &[
        field("selfLink", 1, Text, "No longer filled."),
        field("resourceVersion", 2, Text, "Version of the whole list; a watch can start from it."),
        field("continue", 3, Text, "Token for the next page; empty on the last one."),
        field(
            "remainingItemCount",
            4,
            Int64,
            "How many objects come after this page; absent when a selector is in use.",
        )
        .pointer(),
    ],
);

pub(crate) static OWNER_REFERENCE: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference",
    "A reference to the object that this one depends on; the same namespace, or cluster-wide.",
    &[
        field("apiVersion", 5, Text, "Group and version of the owner.").required(),
        field("kind", 1, Text, "Kind of the owner.").required(),
        field("name", 3, Text, "Name of the owner.").required(),
        field("uid", 4, Text, "Identity of the owner.").required(),
        field("controller", 6, Bool, "Whether the owner is the one that manages this object.").pointer(),
        field(
            "blockOwnerDeletion",
            7,
            Bool,
            "Whether a foreground deletion of the owner waits for this object.",
        )
        .pointer(),
    ],
)
.atomic();

pub(crate) static MANAGED_FIELDS_ENTRY: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry",
    "The fields that one writer owns.",
    &[
        field("manager", 1, Text, "Name of the writer."),
        field("operation", 2, Text, "How it wrote: Apply or Update."),
        field("apiVersion", 3, Text, "Group and version in which the fields are named."),
        field("time", 4, Time, "When the set of fields last changed.").pointer(),
        field("fieldsType", 6, Text, "Format of the set; always FieldsV1."),
        field("fieldsV1", 7, FieldsV1, "The set of fields.").pointer(),
        field("subresource", 8, Text, "Subresource that was written; empty for the object itself."),
    ],
);

pub(crate) static CONDITION: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.Condition",
    "One aspect of the state of an object.",
    &[
        field("type", 1, Text, "Name of the aspect.").required(),
        field("status", 2, Text, "True, False or Unknown.").required(),
        field("observedGeneration", 3, Int64, "Generation of the object that this was found for."),
        field("lastTransitionTime", 4, Time, "When the status last changed.").required(),
        field("reason", 5, Text, "Why, in one word for programs.").required(),
        field("message", 6, Text, "Why, in a sentence for people.").required(),
    ],
);

pub(crate) static STATUS: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.Status",
    "The answer to a request that returns no object.",
    &[
        API_VERSION,
        KIND,
        field(
            "metadata",
            1,
            Object(&LIST_META),
            "List metadata; holds a token in answers about expired lists.",
        ),
        field("status", 2, Text, "Success or Failure."),
        field("message", 3, Text, "What happened, for people."),
        field("reason", 4, Text, "What happened, in one word for programs."),
        field("details", 5, Object(&STATUS_DETAILS), "More about the reason.").pointer(),
        field("code", 6, Int32, "HTTP status code."),
    ],
);

pub(crate) static STATUS_DETAILS: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.StatusDetails",
    "What a Status is about.",
    &[
        field("name", 1, Text, "Name of the object."),
        field("group", 2, Text, "API group of the object."),
        field("kind", 3, Text, "Kind or resource of the object."),
        field("uid", 6, Text, "Identity of the object."),
        field("causes", 4, List(&Object(&STATUS_CAUSE)), "The single errors.").atomic(),
        field("retryAfterSeconds", 5, Int32, "Seconds after which the request may be tried again."),
    ],
);

pub(crate) static STATUS_CAUSE: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.StatusCause",
    "One error of several.",
    &[
        field("reason", 1, Text, "What is wrong, in one word for programs."),
        field("message", 2, Text, "What is wrong, for people."),
        field("field", 3, Text, "Path of the field at fault."),
    ],
);

pub(crate) static DELETE_OPTIONS: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
    "How an object is to be deleted.",
    &[
        API_VERSION,
        KIND,
        field("gracePeriodSeconds", 1, Int64, "Seconds that the object is given to end by itself.").pointer(),
        field("preconditions", 2, Object(&PRECONDITIONS), "What must hold for the deletion to happen.")
            .pointer(),
        field("orphanDependents", 3, Bool, "Deprecated form of propagationPolicy.").pointer(),
        field("propagationPolicy", 4, Text, "What becomes of dependents: Background, Foreground or Orphan.")
            .pointer(),
        field("dryRun", 5, TEXTS, "All: nothing is written.").atomic(),
        field(
            "ignoreStoreReadErrorWithClusterBreakingPotential",
            6,
            Bool,
            "Delete even if the stored object cannot be read.",
        )
        .pointer(),
    ],
);

pub(crate) static PRECONDITIONS: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.Preconditions",
    "What must hold for a deletion to happen.",
    &[
        field("uid", 1, Text, "Identity that the object must have.").pointer(),
        field("resourceVersion", 2, Text, "Version that the object must have.").pointer(),
    ],
);

pub(crate) static PARTIAL_OBJECT_METADATA: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.PartialObjectMetadata",
    "An object without anything but its metadata.",
    &[API_VERSION, KIND, field("metadata", 1, Object(&OBJECT_META), "Metadata of the object.")],
);

pub(crate) static PARTIAL_OBJECT_METADATA_LIST: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.PartialObjectMetadataList",
    "A list of objects without anything but their metadata.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&LIST_META), "Metadata of the list."),
        field("items", 2, List(&Object(&PARTIAL_OBJECT_METADATA)), "The objects.").required(),
    ],
);

pub(crate) static OBJECT_REFERENCE: Struct = structure(
    "io.k8s.api.core.v1.ObjectReference",
    "A reference to an object, or to a part of it.",
    &[
        field("kind", 1, Text, "Kind of the object."),
        field("namespace", 2, Text, "Namespace of the object."),
        field("name", 3, Text, "Name of the object."),
        field("uid", 4, Text, "Identity of the object."),
        field("apiVersion", 5, Text, "Group and version of the object."),
        field("resourceVersion", 6, Text, "Version of the object."),
        field("fieldPath", 7, Text, "Part of the object that is meant."),
    ],
)
.atomic();

pub(crate) static WATCH_EVENT: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent",
    "One event of a watch.",
    &[
        field("type", 1, Text, "ADDED, MODIFIED, DELETED, BOOKMARK or ERROR.").required(),
        field("object", 2, Json, "The object after the change; before it for DELETED; a Status for ERROR.")
            .required(),
    ],
);
