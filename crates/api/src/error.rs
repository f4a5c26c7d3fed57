//! The errors of a request, and the `Status` object that reports them.
//!
//! Clients act on `reason`, then on `code`. The HTTP status equals `code`.

use portolan_schema::{
    Resource,
    json::{Value, json},
    patch::PatchError,
};
use portolan_store::CommitError;
use thiserror::Error;

use texts::{conflict_message, invalid_message, qualified};

mod texts;

/// The reason why a request was refused.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ApiError {
    /// The object does not exist.
    #[error("{} \"{name}\" not found", qualified(*.resource))]
    NotFound {
        /// The resource of the object.
        resource: Resource,
        /// Its name.
        name: String,
    },
    /// The path does not exist.
    #[error("the server could not find the requested resource")]
    UnknownPath,
    /// A part of the path is empty, as when a script leaves a variable empty.
    #[error(
        "the path {path:?} has nothing between two slashes or behind the last one, where a name belongs; is a variable of the caller empty?"
    )]
    EmptySegment {
        /// The path as it was sent, at most its first 256 bytes.
        path: String,
    },
    /// The path exists, but does not support this method.
    #[error("the server does not allow {method} on the requested resource")]
    MethodNotAllowed {
        /// The HTTP method.
        method: String,
    },
    /// The name of a new object is taken.
    #[error("{} \"{name}\" already exists", qualified(*.resource))]
    AlreadyExists {
        /// The resource of the object.
        resource: Resource,
        /// Its name.
        name: String,
    },
    /// The Namespace of a new object is being deleted.
    #[error(
        "{} \"{name}\" is forbidden: unable to create new content in namespace {namespace} because it is being terminated",
        qualified(*.resource)
    )]
    Terminating {
        /// The resource of the object.
        resource: Resource,
        /// Its name; empty if it was to be generated.
        name: String,
        /// The Namespace.
        namespace: String,
    },
    /// The object may not be deleted.
    #[error("{} \"{name}\" is forbidden: this namespace may not be deleted", qualified(*.resource))]
    Protected {
        /// The resource of the object.
        resource: Resource,
        /// Its name.
        name: String,
    },
    /// The object differs from the version that the client names.
    #[error("{}", conflict_message(*.resource, .name, .what, .given, .stored))]
    Conflict {
        /// The resource of the object.
        resource: Resource,
        /// Its name.
        name: String,
        /// `metadata.uid` or `metadata.resourceVersion`.
        what: &'static str,
        /// The client's value.
        given: String,
        /// The stored value.
        stored: String,
    },
    /// Fields have values that the API does not allow.
    #[error("{}", invalid_message(*.resource, .name, .errors))]
    Invalid {
        /// The resource of the object.
        resource: Resource,
        /// Its name.
        name: String,
        /// The fields, and what is wrong with each.
        errors: Vec<FieldError>,
    },
    /// A field has the wrong JSON type.
    #[error("{field}: expected {expected}, got {got}")]
    WrongType {
        /// Path of the field.
        field: String,
        /// The expected type.
        expected: &'static str,
        /// The type in the body.
        got: &'static str,
    },
    /// The body has unknown fields, under `fieldValidation=Strict`.
    #[error("strict decoding error: unknown field {}", .fields.iter().map(|field| format!("\"{field}\"")).collect::<Vec<_>>().join(", unknown field "))]
    UnknownFields {
        /// Paths of the fields.
        fields: Vec<String>,
    },
    /// The body is not in the format that its Content-Type names.
    #[error("the body cannot be decoded as {format}: {reason}")]
    Undecodable {
        /// `JSON`, `YAML` or `protobuf`.
        format: &'static str,
        /// The decoder's message, with the position of the error.
        reason: String,
    },
    /// The body contradicts the URL.
    #[error("{field} \"{body}\" in the body does not match \"{url}\" in the URL")]
    Mismatch {
        /// Path of the field.
        field: &'static str,
        /// The body's value.
        body: String,
        /// The URL's value.
        url: String,
    },
    /// The object has no name, but the URL has one.
    #[error(
        "metadata.name is missing: the name of the object ({url} based on URL) was undeterminable: name must be provided"
    )]
    NoName {
        /// The URL's value.
        url: String,
    },
    /// The patch is malformed, cannot be applied, or conflicts with other field managers.
    #[error(transparent)]
    Patch(PatchError),
    /// A query parameter is invalid.
    #[error("query parameter {parameter}: {reason}: \"{value}\"")]
    BadParameter {
        /// Name of the parameter.
        parameter: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Query parameters or delete options are invalid, or may not be combined.
    #[error("{what} is invalid: {error}")]
    InvalidOptions {
        /// The kind of the options, such as `ListOptions`.
        what: &'static str,
        /// The option, and what is wrong with it.
        error: FieldError,
    },
    /// The requested revision is older than the history.
    #[error("too old resource version: {requested} ({oldest})")]
    Expired {
        /// The requested revision.
        requested: u64,
        /// The oldest revision that can be served.
        oldest: u64,
        /// A token that continues the list at the current revision.
        continue_token: Option<String>,
    },
    /// The requested revision is newer than the store's.
    #[error("Too large resource version: {requested}, current: {current}")]
    FutureRevision {
        /// The requested revision.
        requested: u64,
        /// The store's current revision.
        current: u64,
    },
    /// The body is larger than the server accepts.
    #[error("the request body is larger than {limit} bytes")]
    TooLarge {
        /// Limit in bytes.
        limit: usize,
    },
    /// The decoded object would take more memory than the server allows for one.
    #[error(
        "the body would take more than {limit} bytes of memory when decoded: send fewer values at a time"
    )]
    TooLargeDecoded {
        /// Limit in bytes.
        limit: usize,
    },
    /// The bodies of the requests under way take all the memory that is reserved for bodies.
    #[error("the bodies of other requests take all memory that is meant for bodies; try again")]
    Busy,
    /// The object is larger than the store accepts.
    #[error("{0}")]
    TooLargeToStore(String),
    /// Other clients kept changing an object that the write depends on, until the deadline.
    #[error("Operation cannot be fulfilled on {} \"{name}\": others keep changing what it depends on; try again", qualified(*.resource))]
    Contended {
        /// The resource that other clients changed.
        resource: Resource,
        /// Its name.
        name: String,
    },
    /// An internal error, which the client cannot fix.
    #[error("Internal error occurred: {0}")]
    Internal(String),
    /// The store cannot be written or read at present.
    #[error("{0}; try again")]
    Unavailable(String),
    /// The result of the write is unknown.
    #[error("{0}; read the object to find out")]
    Unconfirmed(String),
    /// The body's media type is not supported.
    #[error("the body of the request was in an unknown format: Content-Type {got} is not one of {accepted}")]
    UnsupportedMediaType {
        /// The request's Content-Type.
        got: String,
        /// The media types that are accepted.
        accepted: &'static str,
    },
    /// None of the media types that the client accepts can be produced.
    #[error(
        "only the following media types are produced: application/json, application/yaml, application/vnd.kubernetes.protobuf"
    )]
    NotAcceptable,
    /// The object cannot be encoded in the requested format.
    #[error("{0}")]
    Unencodable(String),
}

impl From<portolan_schema::ShapeError> for ApiError {
    fn from(error: portolan_schema::ShapeError) -> Self {
        Self::WrongType { field: error.field, expected: error.expected, got: error.got }
    }
}

impl From<CommitError> for ApiError {
    fn from(error: CommitError) -> Self {
        let text = error.to_string();
        match error {
            CommitError::Conflict { resource, key, .. } => {
                let name = key.rsplit('/').next().unwrap_or_default().to_owned();
                Self::Contended { resource, name }
            }
            CommitError::TooLarge(_) => Self::TooLargeToStore(text),
            CommitError::Unavailable(_) | CommitError::Unreadable(_) => Self::Unavailable(text),
            CommitError::Unknown(_) => Self::Unconfirmed(text),
        }
    }
}

/// Most causes in one error. A body can contain a million faults, and each cause takes more memory than the faulty
/// part of the body.
pub(crate) const MOST_CAUSES: usize = 100;
/// Most bytes that a message quotes from a body. A name in a body can be as long as the body.
const MOST_QUOTED: usize = 1000;
/// Most characters of a body's name that a message about the URL repeats.
const MOST_OF_A_NAME: usize = 300;

fn shortened(mut text: String) -> String {
    if text.len() > MOST_QUOTED {
        let end = (0..=MOST_QUOTED).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
        text.shrink_to_fit();
    }
    text
}

/// One field and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// The kind of mistake.
    pub reason: CauseReason,
    /// Path, such as `spec.ports[0].nodePort`.
    pub field: String,
    /// The value, and why it is wrong.
    pub message: String,
}

/// The kind of mistake in a [`FieldError`]. The names are those of `metav1.CauseType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the API")]
pub enum CauseReason {
    FieldValueRequired,
    FieldValueInvalid,
    FieldValueNotSupported,
    FieldValueDuplicate,
    FieldValueForbidden,
    FieldValueTooLong,
    FieldValueTooMany,
}

impl FieldError {
    /// Returns the error for a missing value.
    pub fn required(field: impl Into<String>, why: &str) -> Self {
        Self::new(CauseReason::FieldValueRequired, field, format!("Required value: {why}"))
    }

    /// Returns the error for a value that is not allowed.
    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, why: &str) -> Self {
        Self::new(CauseReason::FieldValueInvalid, field, format!("Invalid value: {}: {why}", value.into()))
    }

    /// Returns the error for a value that is not one of a fixed set.
    pub fn not_supported(field: impl Into<String>, value: &str, supported: &[&str]) -> Self {
        let supported = supported.iter().map(|text| format!("\"{text}\"")).collect::<Vec<_>>().join(", ");
        let message = format!("Unsupported value: \"{value}\": supported values: {supported}");
        Self::new(CauseReason::FieldValueNotSupported, field, message)
    }

    /// Returns the error for a value that occurs twice.
    pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(CauseReason::FieldValueDuplicate, field, format!("Duplicate value: {}", value.into()))
    }

    /// Returns the error for a field that may not be set here.
    pub fn forbidden(field: impl Into<String>, why: &str) -> Self {
        Self::new(CauseReason::FieldValueForbidden, field, format!("Forbidden: {why}"))
    }

    /// Returns the error for texts with too many bytes.
    pub fn too_long(field: impl Into<String>, limit: usize) -> Self {
        let message = format!("Too long: may not be more than {limit} bytes");
        Self::new(CauseReason::FieldValueTooLong, field, message)
    }

    /// Returns the error for a list that is too long.
    pub fn too_many(field: impl Into<String>, count: usize, limit: usize) -> Self {
        let message = format!("Too many: {count}: must have at most {limit} items");
        Self::new(CauseReason::FieldValueTooMany, field, message)
    }

    /// Returns what tests compare: the reason without its prefix, and the field.
    #[cfg(test)]
    pub(crate) fn brief(&self) -> String {
        let reason = format!("{:?}", self.reason);
        format!("{} {}", reason.trim_start_matches("FieldValue"), self.field)
    }

    fn new(reason: CauseReason, field: impl Into<String>, message: String) -> Self {
        Self { reason, field: shortened(field.into()), message: shortened(message) }
    }
}

impl ApiError {
    /// Returns the error for an object with invalid fields. Only the first 100 are reported.
    pub fn invalid(resource: Resource, name: &str, mut errors: Vec<FieldError>) -> Self {
        errors.truncate(MOST_CAUSES);
        Self::Invalid { resource, name: shortened(name.chars().take(MOST_QUOTED).collect()), errors }
    }

    /// Returns the error for a field of the body that contradicts the URL.
    pub fn mismatch(field: &'static str, body: &str, url: &str) -> Self {
        // A name in the body can be as long as the body itself.
        Self::Mismatch { field, body: body.chars().take(MOST_OF_A_NAME).collect(), url: url.to_owned() }
    }

    /// Returns the HTTP status.
    pub fn code(&self) -> u16 {
        self.reason_and_code().1
    }

    /// Returns the machine-readable reason.
    pub fn reason(&self) -> &'static str {
        self.reason_and_code().0
    }

    /// Returns the seconds after which a retry may succeed, for the `Retry-After` header.
    pub fn retry_after_seconds(&self) -> Option<u32> {
        matches!(self, Self::FutureRevision { .. } | Self::Unavailable(_) | Self::Busy).then_some(1)
    }

    /// Returns the `Status` object.
    pub fn to_status(&self) -> Value {
        let mut metadata = json!({});
        if let Self::Expired { continue_token: Some(token), .. } = self {
            metadata = json!({"continue": token});
        }
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.to_string(),
            "reason": self.reason(),
            "code": self.code(),
        });
        if let (Some(details), Some(status)) = (self.details(), status.as_object_mut()) {
            status.insert("details".to_owned(), details);
        }
        status
    }

    fn reason_and_code(&self) -> (&'static str, u16) {
        match self {
            Self::WrongType { .. }
            | Self::UnknownFields { .. }
            | Self::Undecodable { .. }
            | Self::Mismatch { .. }
            | Self::NoName { .. }
            | Self::EmptySegment { .. }
            | Self::BadParameter { .. } => ("BadRequest", 400),
            Self::Terminating { .. } | Self::Protected { .. } => ("Forbidden", 403),
            Self::Patch(error) => match error {
                PatchError::Malformed(_) | PatchError::Shape(_) => ("BadRequest", 400),
                PatchError::TooLarge(_) => ("RequestEntityTooLarge", 413),
                PatchError::Failed(_) => ("Invalid", 422),
                PatchError::Conflicts(_) => ("Conflict", 409),
            },
            Self::NotFound { .. } | Self::UnknownPath => ("NotFound", 404),
            Self::MethodNotAllowed { .. } => ("MethodNotAllowed", 405),
            Self::NotAcceptable | Self::Unencodable(_) => ("NotAcceptable", 406),
            Self::AlreadyExists { .. } => ("AlreadyExists", 409),
            Self::Conflict { .. } | Self::Contended { .. } => ("Conflict", 409),
            Self::Expired { .. } => ("Expired", 410),
            Self::TooLarge { .. } | Self::TooLargeDecoded { .. } | Self::TooLargeToStore(_) => {
                ("RequestEntityTooLarge", 413)
            }
            Self::UnsupportedMediaType { .. } => ("UnsupportedMediaType", 415),
            Self::Invalid { .. } | Self::InvalidOptions { .. } => ("Invalid", 422),
            Self::Busy => ("TooManyRequests", 429),
            Self::Internal(_) => ("InternalError", 500),
            Self::Unavailable(_) => ("ServiceUnavailable", 503),
            Self::FutureRevision { .. } | Self::Unconfirmed(_) => ("Timeout", 504),
        }
    }

    fn details(&self) -> Option<Value> {
        match self {
            Self::NotFound { resource, name }
            | Self::AlreadyExists { resource, name }
            | Self::Protected { resource, name }
            | Self::Conflict { resource, name, .. }
            | Self::Contended { resource, name } => Some(named(*resource, name)),
            Self::Terminating { resource, name, namespace } => {
                let info = resource.info();
                let cause = json!({
                    "reason": "NamespaceTerminating", "field": "metadata.namespace",
                    "message": format!("namespace {namespace} is being terminated"),
                });
                Some(json!({"name": name, "group": info.group, "kind": info.plural, "causes": [cause]}))
            }
            Self::Invalid { resource, name, errors } => {
                let info = resource.info();
                let causes: Vec<Value> = errors.iter().map(cause).collect();
                Some(json!({"name": name, "group": info.group, "kind": info.kind, "causes": causes}))
            }
            // kubectl shows the causes of an invalid object, not the message.
            Self::Patch(PatchError::Failed(message)) => {
                let cause = json!({"reason": "FieldValueInvalid", "message": message, "field": "patch"});
                Some(json!({"causes": [cause]}))
            }
            Self::Patch(PatchError::Conflicts(conflicts)) => {
                let causes = conflicts.iter().map(|conflict| {
                    let message = format!("conflict with {}", conflict.owner);
                    json!({"reason": "FieldManagerConflict", "message": message, "field": conflict.field})
                });
                Some(json!({"causes": causes.collect::<Vec<_>>()}))
            }
            Self::InvalidOptions { what, error } => {
                Some(json!({"group": "meta.k8s.io", "kind": what, "causes": [cause(error)]}))
            }
            Self::FutureRevision { .. } => {
                let cause =
                    json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
                Some(json!({"causes": [cause], "retryAfterSeconds": 1}))
            }
            Self::Busy => Some(json!({"retryAfterSeconds": 1})),
            _ => None,
        }
    }
}

fn named(resource: Resource, name: &str) -> Value {
    let info = resource.info();
    json!({"name": name, "group": info.group, "kind": info.plural})
}

fn cause(error: &FieldError) -> Value {
    json!({"reason": format!("{:?}", error.reason), "message": error.message, "field": error.field})
}
