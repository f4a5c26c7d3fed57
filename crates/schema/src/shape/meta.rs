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
    "Name, identity, version and labels of an object.",
    &[
        field("name", 1, Text).doc("Name, unique within the kind and namespace. Immutable."),
        field("generateName", 2, Text).doc("Prefix of the name that the server generates if name is empty."),
        field("namespace", 3, Text).doc("Namespace of the object; empty for cluster-scoped kinds."),
        field("selfLink", 4, Text).doc("Not used."),
        field("uid", 5, Text).doc(
            "Unique identity, set by the server. An object that is deleted and created again has \
                 another one.",
        ),
        field("resourceVersion", 6, Text)
            .doc("Version of the object. In a write, the version that the write is based on."),
        field("generation", 7, Int64)
            .doc("Number of the wanted state. The server increments it when the wanted state changes."),
        field("creationTimestamp", 8, Time).doc("Time at which the object was created; set by the server."),
        field("deletionTimestamp", 9, Time).pointer().doc(
            "Time at which the deletion was requested; set by the server. The object is removed when \
                 no finalizer is left.",
        ),
        field("deletionGracePeriodSeconds", 10, Int64)
            .pointer()
            .doc("Seconds for the object to end gracefully."),
        field("labels", 11, TEXT_MAP).doc("Keys and values by which objects can be selected."),
        field("annotations", 12, TEXT_MAP)
            .doc("Keys and values that programs store with the object. They cannot be selected by."),
        field("ownerReferences", 13, List(&Object(&OWNER_REFERENCE)))
            .keyed(&["uid"])
            .doc("Objects that this one depends on. It is deleted when all of them are deleted."),
        field("finalizers", 14, TEXTS)
            .merged_set()
            .doc("Names of the steps that must be done before the object is removed."),
        field("managedFields", 17, List(&Object(&MANAGED_FIELDS_ENTRY)))
            .atomic()
            .doc("Fields by their managers, for server-side apply; set by the server."),
    ],
);

pub(crate) static LIST_META: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta",
    "Version and page of a list.",
    &[
        field("selfLink", 1, Text).doc("Not used."),
        field("resourceVersion", 2, Text).doc("Version of the list, from which a watch can start."),
        field("continue", 3, Text).doc("Token for the next page; empty on the last one."),
        field("remainingItemCount", 4, Int64)
            .pointer()
            .doc("Number of objects after this page. Not set if the list is restricted by a selector."),
    ],
);

pub(crate) static OWNER_REFERENCE: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference",
    "A reference to an object that this one depends on. The object is in the same namespace or cluster-scoped.",
    &[
        field("apiVersion", 5, Text).required().doc("Group and version of the owner."),
        field("kind", 1, Text).required().doc("Kind of the owner."),
        field("name", 3, Text).required().doc("Name of the owner."),
        field("uid", 4, Text).required().doc("uid of the owner."),
        field("controller", 6, Bool).pointer().doc("True if the owner manages this object. At most one owner does."),
        field("blockOwnerDeletion", 7, Bool)
            .pointer()
            .doc("True if a foreground deletion of the owner waits for this object."),
    ],
)
.atomic();

pub(crate) static MANAGED_FIELDS_ENTRY: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry",
    "The fields of one manager.",
    &[
        field("manager", 1, Text).doc("Name of the manager."),
        field("operation", 2, Text).doc("Kind of the write: Apply or Update."),
        field("apiVersion", 3, Text).doc("Group and version in which the fields are named."),
        field("time", 4, Time).pointer().doc("Time at which the set of fields last changed."),
        field("fieldsType", 6, Text).doc("Format of the set; always FieldsV1."),
        field("fieldsV1", 7, FieldsV1).pointer().doc("The set of fields."),
        field("subresource", 8, Text).doc("Subresource of the write; empty for the object itself."),
    ],
);

pub(crate) static CONDITION: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.Condition",
    "One condition of an object.",
    &[
        field("type", 1, Text).required().doc("Name of the condition."),
        field("status", 2, Text).required().doc("True, False or Unknown."),
        field("observedGeneration", 3, Int64).doc("Generation of the object that the condition is about."),
        field("lastTransitionTime", 4, Time).required().doc("Time at which the status last changed."),
        field("reason", 5, Text).required().doc("Reason of the last change, as one word."),
        field("message", 6, Text).required().doc("Description of the last change."),
    ],
);

pub(crate) static STATUS: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.Status",
    "The answer to a request that returns no object.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&LIST_META))
            .doc("List metadata. For an expired list it has a token to continue with."),
        field("status", 2, Text).doc("Success or Failure."),
        field("message", 3, Text).doc("Description of what happened."),
        field("reason", 4, Text).doc("Reason, as one word."),
        field("details", 5, Object(&STATUS_DETAILS)).pointer().doc("More about the reason."),
        field("code", 6, Int32).doc("HTTP status code."),
    ],
);

pub(crate) static STATUS_DETAILS: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.StatusDetails",
    "The object and the causes of a Status.",
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
        field("reason", 1, Text).doc("Kind of the error, as one word."),
        field("message", 2, Text).doc("Description of the error."),
        field("field", 3, Text).doc("Path of the field."),
    ],
);

pub(crate) static DELETE_OPTIONS: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
    "Options of a deletion.",
    &[
        API_VERSION,
        KIND,
        field("gracePeriodSeconds", 1, Int64)
            .pointer()
            .doc("Seconds for the object to end gracefully. The kinds of this server are deleted at once."),
        field("preconditions", 2, Object(&PRECONDITIONS))
            .pointer()
            .doc("Conditions that the object must meet, or it is not deleted."),
        field("orphanDependents", 3, Bool).pointer().doc("Deprecated form of propagationPolicy."),
        field("propagationPolicy", 4, Text).pointer().doc(
            "What happens to dependents. Background: deleted after the object. Foreground: deleted \
                 before the object. Orphan: kept.",
        ),
        field("dryRun", 5, TEXTS).atomic().doc("All: nothing is written."),
        field("ignoreStoreReadErrorWithClusterBreakingPotential", 6, Bool)
            .pointer()
            .doc("Delete even if the stored object cannot be read."),
    ],
);

pub(crate) static PRECONDITIONS: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.Preconditions",
    "Conditions that an object must meet to be deleted.",
    &[
        field("uid", 1, Text).pointer().doc("uid of the object."),
        field("resourceVersion", 2, Text).pointer().doc("Version of the object."),
    ],
);

pub(crate) static PARTIAL_OBJECT_METADATA: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.PartialObjectMetadata",
    "The metadata of an object.",
    &[API_VERSION, KIND, field("metadata", 1, Object(&OBJECT_META)).doc("Metadata of the object.")],
);

pub(crate) static PARTIAL_OBJECT_METADATA_LIST: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.PartialObjectMetadataList",
    "A list of the metadata of objects.",
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
        field("fieldPath", 7, Text).doc("Path of a part of the object."),
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
