//! Questions of a client about itself (`authorization/v1`, `authentication/v1`). They are answered and not stored.

use crate::shape::{
    Struct,
    Type::{Bool, List, Object, Text},
    field,
    meta::{API_VERSION, KIND, OBJECT_META, TEXTS},
    structure,
};

pub(crate) static ACCESS_REVIEW: Struct = structure(
    "io.k8s.api.authorization.v1.SelfSubjectAccessReview",
    "Asks whether the client may send a request.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).doc("Standard metadata; must be empty."),
        field("spec", 2, Object(&ACCESS_REVIEW_SPEC)).required().doc("The request in question."),
        field("status", 3, Object(&ACCESS_REVIEW_STATUS)).doc("The answer; set by the server."),
    ],
);

pub(crate) static ACCESS_REVIEW_SPEC: Struct = structure(
    "io.k8s.api.authorization.v1.SelfSubjectAccessReviewSpec",
    "The request in question: one for objects, or one for another path.",
    &[
        field("resourceAttributes", 1, Object(&RESOURCE_ATTRIBUTES))
            .pointer()
            .doc("A request for objects. Not together with nonResourceAttributes."),
        field("nonResourceAttributes", 2, Object(&NON_RESOURCE_ATTRIBUTES))
            .pointer()
            .doc("A request for another path. Not together with resourceAttributes."),
    ],
);

pub(crate) static RESOURCE_ATTRIBUTES: Struct = structure(
    "io.k8s.api.authorization.v1.ResourceAttributes",
    "A request for objects of the API.",
    &[
        field("namespace", 1, Text).doc("Namespace of the objects; empty for all namespaces."),
        field("verb", 2, Text)
            .doc("get, list, watch, create, update, patch, delete, deletecollection, or * for every verb."),
        field("group", 3, Text).doc("API group; * for every group."),
        field("version", 4, Text).doc("Version of the API group; * for every version."),
        field("resource", 5, Text).doc("Plural name of the resource; * for every resource."),
        field("subresource", 6, Text).doc("Subresource, such as status; empty for the object itself."),
        field("name", 7, Text).doc("Name of the object; empty for all objects."),
        field("fieldSelector", 8, Object(&FIELD_SELECTOR))
            .pointer()
            .doc("Fields that the objects must have. Permissions of this server do not depend on it."),
        field("labelSelector", 9, Object(&LABEL_SELECTOR))
            .pointer()
            .doc("Labels that the objects must have. Permissions of this server do not depend on it."),
    ],
);

pub(crate) static FIELD_SELECTOR: Struct = structure(
    "io.k8s.api.authorization.v1.FieldSelectorAttributes",
    "A restriction of a request to objects with certain fields.",
    &[
        field("rawSelector", 1, Text).doc("The selector as in the query of a request."),
        field("requirements", 2, List(&Object(&FIELD_REQUIREMENT)))
            .atomic()
            .doc("The requirements of the selector. An object must meet all of them."),
    ],
);

pub(crate) static FIELD_REQUIREMENT: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldSelectorRequirement",
    "One requirement on a field.",
    &[
        field("key", 1, Text).required().doc("Path of the field."),
        field("operator", 2, Text).required().doc("In, NotIn, Exists or DoesNotExist."),
        field("values", 3, TEXTS).atomic().doc("Values for In and NotIn."),
    ],
);

pub(crate) static LABEL_SELECTOR: Struct = structure(
    "io.k8s.api.authorization.v1.LabelSelectorAttributes",
    "A restriction of a request to objects with certain labels.",
    &[
        field("rawSelector", 1, Text).doc("The selector as in the query of a request."),
        field("requirements", 2, List(&Object(&LABEL_REQUIREMENT)))
            .atomic()
            .doc("The requirements of the selector. An object must meet all of them."),
    ],
);

pub(crate) static LABEL_REQUIREMENT: Struct = structure(
    "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelectorRequirement",
    "One requirement on a label.",
    &[
        field("key", 1, Text).required().doc("Key of the label."),
        field("operator", 2, Text).required().doc("In, NotIn, Exists or DoesNotExist."),
        field("values", 3, TEXTS).atomic().doc("Values for In and NotIn."),
    ],
);

pub(crate) static NON_RESOURCE_ATTRIBUTES: Struct = structure(
    "io.k8s.api.authorization.v1.NonResourceAttributes",
    "A request for a path that does not lead to objects.",
    &[
        field("path", 1, Text).doc("The path, such as /metrics."),
        field("verb", 2, Text).doc("The HTTP method in lower case; * for every method."),
    ],
);

pub(crate) static ACCESS_REVIEW_STATUS: Struct = structure(
    "io.k8s.api.authorization.v1.SubjectAccessReviewStatus",
    "The answer to an access review.",
    &[
        field("allowed", 1, Bool).required().doc("True if the client may send the request."),
        field("denied", 4, Bool).doc("True if a rule forbids the request. This server has no such rules."),
        field("reason", 2, Text).doc("Why the request is allowed or not."),
        field("evaluationError", 3, Text).doc("An error while the answer was determined."),
    ],
);

pub(crate) static RULES_REVIEW: Struct = structure(
    "io.k8s.api.authorization.v1.SelfSubjectRulesReview",
    "Asks for everything that the client may do in a namespace.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).doc("Standard metadata; not used."),
        field("spec", 2, Object(&RULES_REVIEW_SPEC)).required().doc("The namespace in question."),
        field("status", 3, Object(&RULES_REVIEW_STATUS)).doc("The answer; set by the server."),
    ],
);

pub(crate) static RULES_REVIEW_SPEC: Struct = structure(
    "io.k8s.api.authorization.v1.SelfSubjectRulesReviewSpec",
    "The namespace in question.",
    &[field("namespace", 1, Text).doc("Name of the namespace; required.")],
);

pub(crate) static RULES_REVIEW_STATUS: Struct = structure(
    "io.k8s.api.authorization.v1.SubjectRulesReviewStatus",
    "The answer to a rules review.",
    &[
        field("resourceRules", 1, List(&Object(&RESOURCE_RULE)))
            .required()
            .atomic()
            .doc("Requests for objects that are allowed."),
        field("nonResourceRules", 2, List(&Object(&NON_RESOURCE_RULE)))
            .required()
            .atomic()
            .doc("Requests for other paths that are allowed."),
        field("incomplete", 3, Bool).required().doc("True if rules are missing in the answer."),
        field("evaluationError", 4, Text).doc("An error while the answer was determined."),
    ],
);

pub(crate) static RESOURCE_RULE: Struct = structure(
    "io.k8s.api.authorization.v1.ResourceRule",
    "Requests for objects that are allowed.",
    &[
        field("verbs", 1, TEXTS).required().atomic().doc("Verbs; * for every verb."),
        field("apiGroups", 2, TEXTS).atomic().doc("API groups; * for every group."),
        field("resources", 3, TEXTS).atomic().doc("Plural names of the resources; * for every resource."),
        field("resourceNames", 4, TEXTS).atomic().doc("Names of the objects; none for every object."),
    ],
);

pub(crate) static NON_RESOURCE_RULE: Struct = structure(
    "io.k8s.api.authorization.v1.NonResourceRule",
    "Requests for paths that are allowed.",
    &[
        field("verbs", 1, TEXTS).required().atomic().doc("HTTP methods in lower case; * for every method."),
        field("nonResourceURLs", 2, TEXTS).atomic().doc("Paths. A * at the end stands for everything below."),
    ],
);

pub(crate) static SELF_REVIEW: Struct = structure(
    "io.k8s.api.authentication.v1.SelfSubjectReview",
    "Asks who the client is.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).doc("Standard metadata; not used."),
        field("status", 2, Object(&SELF_REVIEW_STATUS)).doc("The answer; set by the server."),
    ],
);

pub(crate) static SELF_REVIEW_STATUS: Struct = structure(
    "io.k8s.api.authentication.v1.SelfSubjectReviewStatus",
    "The answer to a self review.",
    &[field("userInfo", 1, Object(&USER_INFO)).doc("The user that the client has authenticated as.")],
);

pub(crate) static USER_INFO: Struct = structure(
    "io.k8s.api.authentication.v1.UserInfo",
    "A user.",
    &[
        field("username", 1, Text).doc("Name of the user."),
        field("uid", 2, Text).doc("Identity of the user. This server does not use it."),
        field("groups", 3, TEXTS).atomic().doc("Groups of the user."),
    ],
);
