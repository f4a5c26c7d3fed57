//! Checks that compare the parts of a write: the body with the URL, the client's version of the object with the
//! stored one, and the new object with the old one.

use std::collections::HashSet;

use portolan_schema::{
    Resource,
    json::{self, Object, Value, type_name},
};
use portolan_store::StoredObject;

use super::{Part, Preconditions, Target};
use crate::{
    error::{ApiError, FieldError},
    metadata,
};

/// Checks that the body's kind, namespace and name match the URL. A missing kind or namespace is filled in. The namespace
/// of a cluster-scoped object is dropped (apiserver, `EnsureObjectNamespaceMatchesRequestNamespace`). A missing name is an
/// error if the URL names an object (apiserver, `checkName`).
pub(super) fn match_url(
    resource: Resource,
    namespace: &str,
    name: Option<&str>,
    object: &mut Object,
) -> Result<(), ApiError> {
    let info = resource.info();
    for (field, url) in [("apiVersion", info.api_version), ("kind", info.kind)] {
        match given(object, field, field)? {
            Some(body) if body != url => return Err(ApiError::mismatch(field, body, url)),
            _ => object.insert(field.to_owned(), url.into()),
        };
    }
    if object.get("metadata").is_none_or(Value::is_null) {
        object.insert("metadata".to_owned(), Value::Object(Object::new()));
    }
    let Some(metadata) = json::object_mut(object, "metadata") else { return Err(wrong_metadata(object)) };
    let body = given(metadata, "namespace", "metadata.namespace")?;
    if !info.namespaced {
        metadata.remove("namespace");
    } else if let Some(body) = body.filter(|body| *body != namespace) {
        return Err(ApiError::mismatch("metadata.namespace", body, namespace));
    } else if !namespace.is_empty() {
        metadata.insert("namespace".to_owned(), namespace.into());
    }
    let Some(url) = name else { return Ok(()) };
    match given(metadata, "name", "metadata.name")? {
        Some(body) if body != url => Err(ApiError::mismatch("metadata.name", body, url)),
        Some(_) => Ok(()),
        // An object whose name a client left empty by mistake must not replace the object of the URL.
        None => Err(ApiError::NoName { url: url.to_owned() }),
    }
}

/// Returns the string at `key`; `None` if it is absent, null or empty. `field` is its path, for the error.
fn given<'a>(object: &'a Object, key: &str, field: &str) -> Result<Option<&'a str>, ApiError> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        Some(other) => {
            Err(ApiError::WrongType { field: field.to_owned(), expected: "a string", got: type_name(other) })
        }
    }
}

pub(super) fn wrong_metadata(object: &Object) -> ApiError {
    let got = object.get("metadata").map_or("nothing", type_name);
    ApiError::WrongType { field: "metadata".to_owned(), expected: "an object", got }
}

pub(super) fn conflict(target: Target<'_>, what: &'static str, given: &str, stored: &str) -> ApiError {
    ApiError::Conflict {
        resource: target.resource,
        name: target.name.to_owned(),
        what,
        given: given.to_owned(),
        stored: stored.to_owned(),
    }
}

/// Checks the client's uid and resourceVersion, if given, against the stored ones.
pub(super) fn check_preconditions(
    target: Target<'_>,
    stored: &StoredObject,
    old: &Object,
    new: &Object,
) -> Result<(), ApiError> {
    let empty = Object::new();
    let metadata = |object| json::object(object, "metadata").unwrap_or(&empty);
    if let Some(revision) = metadata::given_revision(metadata(new))?
        && revision != stored.revision()
    {
        let given = revision.to_string();
        return Err(conflict(target, "metadata.resourceVersion", &given, &stored.revision().to_string()));
    }
    let stored_uid = json::text(metadata(old), "uid").unwrap_or_default();
    match json::text(metadata(new), "uid") {
        Some(uid) if uid != stored_uid => Err(conflict(target, "metadata.uid", uid, stored_uid)),
        _ => Ok(()),
    }
}

/// Returns an error if a PUT has no resourceVersion and the kind requires one.
pub(super) fn check_unconditional(target: Target<'_>, new: &Object) -> Result<(), ApiError> {
    let metadata = json::object(new, "metadata");
    let given = metadata.map_or(Ok(None), metadata::given_revision)?;
    if given.is_some() || target.resource.info().unconditional_update {
        return Ok(());
    }
    let why = "must be specified for an update, which says on which version it is based";
    let error = FieldError::invalid("metadata.resourceVersion", 0, why);
    Err(ApiError::invalid(target.resource, target.name, vec![error]))
}

pub(super) fn check_delete(
    target: Target<'_>,
    stored: &StoredObject,
    object: &Object,
    preconditions: &Preconditions,
) -> Result<(), ApiError> {
    let uid =
        json::object(object, "metadata").and_then(|metadata| json::text(metadata, "uid")).unwrap_or_default();
    if let Some(given) = preconditions.uid.as_deref().filter(|given| *given != uid) {
        return Err(conflict(target, "metadata.uid", given, uid));
    }
    let revision = stored.revision().to_string();
    match preconditions.resource_version.as_deref() {
        Some(given) if given != revision => {
            Err(conflict(target, "metadata.resourceVersion", given, &revision))
        }
        _ => Ok(()),
    }
}

pub(super) fn update_metadata(target: Target<'_>, new: &mut Object, old: &Object) -> Result<(), ApiError> {
    let empty = Object::new();
    let old = json::object(old, "metadata").unwrap_or(&empty);
    let Some(metadata) = json::object_mut(new, "metadata") else { return Err(wrong_metadata(new)) };
    let mut errors = metadata::forbidden_changes(metadata, old);
    metadata::prepare_update(metadata, old);
    errors.extend(metadata::validate(target.resource, metadata, Some(old)));
    let stored: HashSet<&str> = json::texts(old, "finalizers").collect();
    if old.contains_key("deletionTimestamp")
        && json::texts(metadata, "finalizers").any(|finalizer| !stored.contains(finalizer))
    {
        errors.push(FieldError::forbidden(
            "metadata.finalizers",
            "none may be added to an object being deleted",
        ));
    }
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(target.resource, target.name, errors)) }
}

/// Returns true if the object is being deleted and has no finalizers left. Those of a Namespace are in `spec`, too.
pub(super) fn is_finished_deletion(resource: Resource, object: &Object) -> bool {
    let has_finalizers =
        |part| json::object(object, part).is_some_and(|part| !json::list(part, "finalizers").is_empty());
    json::object(object, "metadata").is_some_and(|metadata| metadata.contains_key("deletionTimestamp"))
        && !has_finalizers("metadata")
        && !(resource == Resource::Namespace && has_finalizers("spec"))
}

/// Restores everything in the new object that this endpoint may not change.
pub(super) fn restored(resource: Resource, part: Part, mut new: Object, old: &Object) -> Object {
    match part {
        Part::Status => {
            let mut object = old.clone();
            match new.remove("status") {
                Some(status) => object.insert("status".to_owned(), status),
                None => object.remove("status"),
            };
            if resource.info().status_writes_metadata {
                copy_metadata(&mut new, &mut object);
            }
            object
        }
        Part::Finalize => {
            let mut object = old.clone();
            copy_spec_finalizers(&new, &mut object);
            copy_metadata(&mut new, &mut object);
            object
        }
        Part::Main => {
            if resource.info().has_status {
                match old.get("status") {
                    Some(status) => new.insert("status".to_owned(), status.clone()),
                    None => new.remove("status"),
                };
            }
            if resource == Resource::Namespace {
                copy_spec_finalizers(old, &mut new);
            }
            new
        }
    }
}

fn copy_metadata(from: &mut Object, to: &mut Object) {
    if let Some(metadata) = from.remove("metadata") {
        to.insert("metadata".to_owned(), metadata);
    }
}

fn copy_spec_finalizers(from: &Object, to: &mut Object) {
    let finalizers = json::object(from, "spec").and_then(|spec| spec.get("finalizers")).cloned();
    if let Some(spec) = json::object_mut(to, "spec") {
        match finalizers {
            Some(finalizers) => spec.insert("finalizers".to_owned(), finalizers),
            None => spec.remove("finalizers"),
        };
    }
}

pub(super) fn bump_generation(object: &mut Object) {
    if let Some(metadata) = json::object_mut(object, "metadata") {
        let next = metadata.get("generation").and_then(Value::as_i64).unwrap_or(0).saturating_add(1);
        metadata.insert("generation".to_owned(), next.into());
    }
}
