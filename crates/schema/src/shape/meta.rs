//! The types that all kinds share (`meta/v1`), and the objects that are sent but never stored.

use super::{
    Field, Struct, Type,
    Type::{Bool, FieldsV1, Int32, Int64, Json, List, Map, Object, Text, Time},
    field, structure,
};

pub(super) const TEXTS: Type = List(&Text);
pub(super) const TEXT_MAP: Type = Map(&Text);

/// Group and version of the kind. In protobuf it is part of the envelope.
pub(super) const API_VERSION: Field = field("apiVersion", 0, Text).doc("Group and version of the kind.");
/// The kind. In protobuf it is part of the envelope.
pub(super) const KIND: Field = field("kind", 0, Text).doc("Name of the kind.");

/// `metadata` of every object.
pub static OBJECT_META: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
    "What every stored object has: its name, identity, version and labels.",
    &[
        field("name", 1, Text).doc("Name, unique within the kind and namespace; cannot change."),
        field("generateName", 2, Text).doc("Prefix from which the server makes a name when none is given."),
        field("namespace", 3, Text).doc("Namespace that the object lives in; empty for cluster-wide kinds."),
        field("selfLink", 4, Text).doc("No longer filled."),
        field("uid", 5, Text)
            .doc("Identity given by the server; an object made again under the same name has another."),
        field("resourceVersion", 6, Text)
            .doc("Version of the object; for a write, the version that it is based on."),
        field("generation", 7, Int64).doc("Number of the wanted state; grows when that changes."),
        field("creationTimestamp", 8, Time).doc("When the object was made; set by the server."),
        field("deletionTimestamp", 9, Time)
            .pointer()
            .doc("When the object was asked to go; set by the server. It goes when no finalizer is left."),
        field("deletionGracePeriodSeconds", 10, Int64)
            .pointer()
            .doc("Seconds that the object was given to end by itself."),
        field("labels", 11, TEXT_MAP).doc("Pairs by which objects are selected."),
        field("annotations", 12, TEXT_MAP).doc("Pairs that tools keep with the object; not for selection."),
        field("ownerReferences", 13, List(&Object(&OWNER_REFERENCE)))
            .keyed(&["uid"])
            .doc("Objects that this one depends on; when all are gone, it is removed."),
        field("finalizers", 14, TEXTS).merged_set().doc("Who must still act before the object may go."),
        field("managedFields", 17, List(&Object(&MANAGED_FIELDS_ENTRY)))
            .atomic()
            .doc("Which writer owns which fields; kept by the server for server-side apply."),
    ],
);

pub(crate) static LIST_META: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta",
    "What every list has.",
    &[
        field("selfLink", 1, Text).doc("No longer filled."),
        field("resourceVersion", 2, Text).doc("Version of the whole list; a watch can start from it."),
        field("continue", 3, Text).doc("Token for the next page; empty on the last one."),
        field("remainingItemCount", 4, Int64)
            .pointer()
            .doc("How many objects come after this page; absent when a selector is in use."),
    ],
);

pub(crate) static OWNER_REFERENCE: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference",
    "A reference to the object that this one depends on; the same namespace, or cluster-wide.",
    &[
        field("apiVersion", 5, Text).required().doc("Group and version of the owner."),
        field("kind", 1, Text).required().doc("Kind of the owner."),
        field("name", 3, Text).required().doc("Name of the owner."),
        field("uid", 4, Text).required().doc("Identity of the owner."),
        field("controller", 6, Bool).pointer().doc("Whether the owner is the one that manages this object."),
        field("blockOwnerDeletion", 7, Bool)
            .pointer()
            .doc("Whether a foreground deletion of the owner waits for this object."),
    ],
)
.atomic();

pub(crate) static MANAGED_FIELDS_ENTRY: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry",
    "The fields that one writer owns.",
    &[
        field("manager", 1, Text).doc("Name of the writer."),
        field("operation", 2, Text).doc("How it wrote: Apply or Update."),
        field("apiVersion", 3, Text).doc("Group and version in which the fields are named."),
        field("time", 4, Time).pointer().doc("When the set of fields last changed."),
        field("fieldsType", 6, Text).doc("Format of the set; always FieldsV1."),
        field("fieldsV1", 7, FieldsV1).pointer().doc("The set of fields."),
        field("subresource", 8, Text).doc("Subresource that was written; empty for the object itself."),
    ],
);

pub(crate) static CONDITION: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.Condition",
    "One aspect of the state of an object.",
    &[
        field("type", 1, Text).required().doc("Name of the aspect."),
        field("status", 2, Text).required().doc("True, False or Unknown."),
        field("observedGeneration", 3, Int64).doc("Generation of the object that this was found for."),
        field("lastTransitionTime", 4, Time).required().doc("When the status last changed."),
        field("reason", 5, Text).required().doc("Why, in one word for programs."),
        field("message", 6, Text).required().doc("Why, in a sentence for people."),
    ],
);

pub(crate) static STATUS: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.Status",
    "The answer to a request that returns no object.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&LIST_META))
            .doc("List metadata; holds a token in answers about expired lists."),
        field("status", 2, Text).doc("Success or Failure."),
        field("message", 3, Text).doc("What happened, for people."),
        field("reason", 4, Text).doc("What happened, in one word for programs."),
        field("details", 5, Object(&STATUS_DETAILS)).pointer().doc("More about the reason."),
        field("code", 6, Int32).doc("HTTP status code."),
    ],
);

pub(crate) static STATUS_DETAILS: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.StatusDetails",
    "What a Status is about.",
    &[
        field("name", 1, Text).doc("Name of the object."),
        field("group", 2, Text).doc("API group of the object."),
        field("kind", 3, Text).doc("Kind or resource of the object."),
        field("uid", 6, Text).doc("Identity of the object."),
        field("causes", 4, List(&Object(&STATUS_CAUSE))).atomic().doc("The single errors."),
        field("retryAfterSeconds", 5, Int32).doc("Seconds after which the request may be tried again."),
    ],
);

pub(crate) static STATUS_CAUSE: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.StatusCause",
    "One error of several.",
    &[
        field("reason", 1, Text).doc("What is wrong, in one word for programs."),
        field("message", 2, Text).doc("What is wrong, for people."),
        field("field", 3, Text).doc("Path of the field at fault."),
    ],
);

pub(crate) static DELETE_OPTIONS: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
    "How an object is to be deleted.",
    &[
        API_VERSION,
        KIND,
        field("gracePeriodSeconds", 1, Int64)
            .pointer()
            .doc("Seconds that the object is given to end by itself."),
        field("preconditions", 2, Object(&PRECONDITIONS))
            .pointer()
            .doc("What must hold for the deletion to happen."),
        field("orphanDependents", 3, Bool).pointer().doc("Deprecated form of propagationPolicy."),
        field("propagationPolicy", 4, Text)
            .pointer()
            .doc("What becomes of dependents: Background, Foreground or Orphan."),
        field("dryRun", 5, TEXTS).atomic().doc("All: nothing is written."),
        field("ignoreStoreReadErrorWithClusterBreakingPotential", 6, Bool)
            .pointer()
            .doc("Delete even if the stored object cannot be read."),
    ],
);

pub(crate) static PRECONDITIONS: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.Preconditions",
    "What must hold for a deletion to happen.",
    &[
        field("uid", 1, Text).pointer().doc("Identity that the object must have."),
        field("resourceVersion", 2, Text).pointer().doc("Version that the object must have."),
    ],
);

pub(crate) static PARTIAL_OBJECT_METADATA: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.PartialObjectMetadata",
    "An object without anything but its metadata.",
    &[API_VERSION, KIND, field("metadata", 1, Object(&OBJECT_META)).doc("Metadata of the object.")],
);

pub(crate) static PARTIAL_OBJECT_METADATA_LIST: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.PartialObjectMetadataList",
    "A list of objects without anything but their metadata.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&LIST_META)).doc("Metadata of the list."),
        field("items", 2, List(&Object(&PARTIAL_OBJECT_METADATA))).required().doc("The objects."),
    ],
);

pub(crate) static OBJECT_REFERENCE: Struct = structure(
    "io.k8s.api.core.v1.ObjectReference",
    "A reference to an object, or to a part of it.",
    &[
        field("kind", 1, Text).doc("Kind of the object."),
        field("namespace", 2, Text).doc("Namespace of the object."),
        field("name", 3, Text).doc("Name of the object."),
        field("uid", 4, Text).doc("Identity of the object."),
        field("apiVersion", 5, Text).doc("Group and version of the object."),
        field("resourceVersion", 6, Text).doc("Version of the object."),
        field("fieldPath", 7, Text).doc("Part of the object that is meant."),
    ],
)
.atomic();

pub(crate) static WATCH_EVENT: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent",
    "One event of a watch.",
    &[
        field("type", 1, Text).required().doc("ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."),
        field("object", 2, Json)
            .required()
            .doc("The object after the change; before it for DELETED; a Status for ERROR."),
    ],
);
