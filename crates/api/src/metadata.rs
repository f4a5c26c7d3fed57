//! The rules of `metadata`: what the server fills in, what clients may change, and the syntax of names.

use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

use portolan_schema::{
    Resource,
    json::{self, Object, Value},
    shape::timestamp,
};

use crate::{
    error::{ApiError, FieldError, MOST_CAUSES},
    names,
    network::parse_address,
};

#[cfg(test)]
mod tests;

/// Finalizer of an object whose dependents must lose their reference to it before it is removed
/// (`metav1.FinalizerOrphanDependents`).
pub const ORPHAN: &str = "orphan";
/// Finalizer of an object whose blocking dependents must be deleted before it is removed
/// (`metav1.FinalizerDeleteDependents`).
pub const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer in the `spec` of Namespaces (`core/v1` `FinalizerKubernetes`).
const KUBERNETES: &str = "kubernetes";
/// The message for a finalizer that is neither standard nor has a domain.
pub(crate) const FINALIZER_RULE: &str =
    "is neither a standard finalizer name nor has it a prefix such as example.com/";
/// Most bytes of the keys and values of all annotations together (apimachinery `TotalAnnotationSizeLimitB`).
const ANNOTATIONS_LIMIT: usize = 256 * 1024;
/// Most bytes of the prefix in a generated name; a random suffix follows.
const GENERATED_PREFIX: usize = 58;
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Fills in the uid, the creationTimestamp and a generated name of a new object. Removes fields that clients may not
/// set.
pub(crate) fn prepare_create(resource: Resource, metadata: &mut Object) {
    for key in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "managedFields",
    ] {
        metadata.remove(key);
    }
    if json::text(metadata, "name").is_none()
        && let Some(prefix) = json::text(metadata, "generateName")
    {
        let name = format!("{}{}", cut(prefix, GENERATED_PREFIX), suffix());
        metadata.insert("name".to_owned(), name.into());
    }
    drop_empty(metadata);
    metadata.insert("uid".to_owned(), uid().into());
    metadata.insert("creationTimestamp".to_owned(), now().into());
    if resource == Resource::EndpointSlice {
        metadata.insert("generation".to_owned(), 1.into());
    }
}

/// Returns errors for changes of `metadata` that would be lost or would mean a deletion (apimachinery,
/// `ValidateObjectMetaAccessorUpdate`).
pub(crate) fn forbidden_changes(metadata: &Object, old: &Object) -> Vec<FieldError> {
    let given = |object: &Object, key| object.get(key).filter(|value| !value.is_null()).cloned();
    let why = "field is immutable; may only be changed via deletion";
    let mut errors = Vec::new();
    // A stored deletion timestamp is kept, whatever the client sends.
    if let (Some(new), None) = (given(metadata, "deletionTimestamp"), given(old, "deletionTimestamp")) {
        errors.push(FieldError::invalid("metadata.deletionTimestamp", new, why));
    }
    if let Some(new) = given(metadata, "deletionGracePeriodSeconds")
        && given(old, "deletionGracePeriodSeconds").as_ref() != Some(&new)
    {
        errors.push(FieldError::invalid("metadata.deletionGracePeriodSeconds", new, why));
    }
    errors
}

/// Removes repeated owner references that are equal in every field. Returns a warning for the client if there were
/// any.
pub(crate) fn drop_duplicate_owners(metadata: &mut Object) -> Option<String> {
    let owners = metadata.get_mut("ownerReferences")?.as_array_mut()?;
    let (mut seen, mut twice) = (HashSet::new(), None);
    owners.retain(|owner| {
        let is_new = seen.insert(canonical(owner));
        if !is_new && twice.is_none() {
            twice = owner.get("uid").and_then(Value::as_str).map(str::to_owned);
        }
        is_new
    });
    twice.map(|uid| {
        format!("metadata.ownerReferences names the owner with uid {uid:?} more than once; the first counts")
    })
}

/// Restores the fields that an update may not change.
pub(crate) fn prepare_update(metadata: &mut Object, old: &Object) {
    for key in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generateName",
        "generation",
    ] {
        match old.get(key) {
            Some(value) => metadata.insert(key.to_owned(), value.clone()),
            None => metadata.remove(key),
        };
    }
    metadata.remove("selfLink");
    metadata.remove("managedFields");
    drop_empty(metadata);
}

/// Removes empty maps and lists. They mean the same as absent ones, and clients would show them.
fn drop_empty(metadata: &mut Object) {
    for key in ["annotations", "labels"] {
        if json::object(metadata, key).is_some_and(Object::is_empty) {
            metadata.remove(key);
        }
    }
    for key in ["finalizers", "ownerReferences"] {
        if matches!(metadata.get(key), Some(Value::Array(list)) if list.is_empty()) {
            metadata.remove(key);
        }
    }
}

/// Returns everything that is wrong with the `metadata` of a new object whose name is generated already.
pub(crate) fn validate_new(resource: Resource, metadata: &Object) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = generate_name_error(resource, metadata).into_iter().collect();
    errors.extend(validate(resource, metadata, None));
    errors
}

/// Returns everything that is wrong with `metadata`. `old` is the stored one if this is an update. The fields are those that upstream names (apimachinery,
/// `pkg/api/validation/objectmeta.go`), which has no index in some lists.
pub(crate) fn validate(resource: Resource, metadata: &Object, old: Option<&Object>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    errors.extend(name_error(resource, metadata));
    let namespace = json::text(metadata, "namespace").unwrap_or_default();
    if resource.info().namespaced && !names::is_dns_label(namespace) {
        errors.push(FieldError::invalid("metadata.namespace", namespace, "must be a DNS-1123 label"));
    }
    if let Some(generation) = json::integer(metadata, "generation").filter(|number| *number < 0) {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("metadata.generation", generation, why));
    }
    errors.extend(label_errors(metadata, "labels", "metadata.labels"));
    errors.extend(annotation_errors(metadata));
    errors.extend(owner_errors(metadata));
    errors.extend(finalizer_errors(resource, metadata, old));
    errors
}

/// Returns the errors of the labels at `key`. The field is the whole map, as upstream: the message quotes the text.
pub(crate) fn label_errors(object: &Object, key: &str, field: &str) -> Vec<FieldError> {
    let labels = json::object(object, key).into_iter().flatten();
    let error = |(key, value): (&json::Text, &Value)| {
        if !names::is_qualified_name(key) {
            return Some(FieldError::invalid(field, key.as_str(), "the key must be a qualified name"));
        }
        let value = value.as_str().unwrap_or_default();
        let rule = "must be at most 63 of letters, digits, '-', '_' and '.', alphanumeric at both ends";
        (!names::is_label_value(value)).then(|| FieldError::invalid(field, value, rule))
    };
    labels.filter_map(error).take(MOST_CAUSES).collect()
}

/// Returns the `resourceVersion` of a body; `None` if it is absent, empty or `0`.
pub(crate) fn given_revision(metadata: &Object) -> Result<Option<u64>, ApiError> {
    let Some(text) = json::text(metadata, "resourceVersion") else { return Ok(None) };
    let revision = text.parse::<u64>().map_err(|_| ApiError::WrongType {
        field: "metadata.resourceVersion".to_owned(),
        expected: "a decimal number in a string",
        got: "other text",
    })?;
    Ok(Some(revision).filter(|revision| *revision != 0))
}

/// Returns the current time in whole seconds, as RFC 3339 in UTC.
pub fn now() -> String {
    timestamp::whole(since_epoch().0).unwrap_or_default()
}

/// Returns the current time in microseconds, in the format of a `MicroTime`.
pub fn now_micro() -> String {
    let (seconds, nanos) = since_epoch();
    timestamp::micro(seconds, nanos).unwrap_or_default()
}

/// Returns the seconds since 1970 of a Time as the API writes it, `2006-01-02T15:04:05Z`.
pub(crate) fn parse_time(text: &str) -> Option<u64> {
    timestamp::parse(text).and_then(|(seconds, _)| u64::try_from(seconds).ok())
}

fn since_epoch() -> (i64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (i64::try_from(since.as_secs()).unwrap_or_default(), since.subsec_nanos())
}

fn name_error(resource: Resource, metadata: &Object) -> Option<FieldError> {
    let Some(name) = json::text(metadata, "name") else {
        return Some(FieldError::required("metadata.name", "name or generateName is required"));
    };
    let (valid, rule) = name_rule(resource);
    (!valid(name) || !names::is_path_segment(name)).then(|| FieldError::invalid("metadata.name", name, rule))
}

/// Checks the prefix of generated names by the rule for names. A hyphen at its end is allowed: a suffix follows.
fn generate_name_error(resource: Resource, metadata: &Object) -> Option<FieldError> {
    let prefix = json::text(metadata, "generateName")?;
    let (valid, rule) = name_rule(resource);
    let is_valid = match prefix.strip_suffix('-').and_then(without_last) {
        // Upstream's `maskTrailingDash` checks the name with the last two characters replaced.
        Some(start) if resource != Resource::IpAddress => valid(&format!("{start}a")),
        _ => valid(prefix),
    };
    let is_valid = is_valid && !prefix.contains(['/', '%']);
    (!is_valid).then(|| FieldError::invalid("metadata.generateName", prefix, rule))
}

fn without_last(text: &str) -> Option<&str> {
    let (last, _) = text.char_indices().next_back()?;
    text.get(..last)
}

/// Returns the check for names of this kind, and its description.
fn name_rule(resource: Resource) -> (fn(&str) -> bool, &'static str) {
    match resource {
        Resource::Service | Resource::Namespace => (
            names::is_dns_label,
            "must be a DNS-1123 label: at most 63 lower-case letters, digits and inner hyphens",
        ),
        Resource::IpAddress => {
            (is_address_name, "must be an IP address in canonical form (RFC 5952 for IPv6)")
        }
        // core/v1 has fewer rules for Events than events.k8s.io.
        Resource::CoreEvent => (
            |name| !name.is_empty(),
            "must be usable as one segment of a path: not '.' or '..', without '/' and '%'",
        ),
        _ => (
            names::is_dns_subdomain,
            "must be a DNS-1123 subdomain: lower-case letters, digits, '-' and '.', at most 253",
        ),
    }
}

fn is_address_name(name: &str) -> bool {
    parse_address(name).is_some_and(|address| address.to_string() == name)
}

fn annotation_errors(metadata: &Object) -> Vec<FieldError> {
    let annotations = || json::object(metadata, "annotations").into_iter().flatten();
    let mut errors: Vec<FieldError> = annotations()
        .filter(|(key, _)| !names::is_qualified_name(&key.to_lowercase()))
        .map(|(key, _)| {
            FieldError::invalid("metadata.annotations", key.as_str(), "the key must be a qualified name")
        })
        .take(MOST_CAUSES)
        .collect();
    let size: usize = annotations().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > ANNOTATIONS_LIMIT {
        errors.push(FieldError::too_long("metadata.annotations", ANNOTATIONS_LIMIT));
    }
    errors
}

fn owner_errors(metadata: &Object) -> Vec<FieldError> {
    let field = "metadata.ownerReferences";
    let mut errors = Vec::new();
    let mut controllers = 0;
    for owner in json::list(metadata, "ownerReferences").iter().filter_map(Value::as_object) {
        if errors.len() >= MOST_CAUSES {
            break;
        }
        let text = |key| json::text(owner, key).unwrap_or_default();
        if version_of(text("apiVersion")).is_empty() {
            let why = "must be a group and a version, or a version alone";
            errors.push(FieldError::invalid(format!("{field}.apiVersion"), text("apiVersion"), why));
        }
        for key in ["kind", "name", "uid"].into_iter().filter(|key| text(key).is_empty()) {
            errors.push(FieldError::invalid(format!("{field}.{key}"), "", "must not be empty"));
        }
        if text("kind") == "Event" && text("apiVersion") == "v1" {
            errors.push(FieldError::invalid(field, "Event", "an Event may not own anything"));
        }
        controllers += usize::from(owner.get("controller").and_then(Value::as_bool) == Some(true));
    }
    if controllers > 1 {
        errors.push(FieldError::invalid(field, controllers, "only one may be the controller"));
    }
    errors
}

/// Returns the version in an `apiVersion`; empty if there is none.
fn version_of(api_version: &str) -> &str {
    match api_version.split_once('/') {
        Some((_, version)) if version.contains('/') => "",
        Some((_, version)) => version,
        None => api_version,
    }
}

/// Checks the finalizers that are not stored already, so that an object whose finalizers an earlier version has accepted
/// can be changed.
fn finalizer_errors(resource: Resource, metadata: &Object, old: Option<&Object>) -> Vec<FieldError> {
    let field = "metadata.finalizers";
    // Upstream checks these two kinds only by the rules of all objects.
    let needs_domain = !matches!(resource, Resource::Lease | Resource::CoreEvent);
    let stored: HashSet<&str> = old.into_iter().flat_map(|old| json::texts(old, "finalizers")).collect();
    let mut errors = Vec::new();
    for (index, finalizer) in json::texts(metadata, "finalizers").enumerate() {
        if errors.len() >= MOST_CAUSES {
            break;
        }
        if stored.contains(finalizer) {
            continue;
        }
        if !names::is_qualified_name(finalizer) {
            errors.push(FieldError::invalid(field, finalizer, "must be a qualified name"));
        }
        if needs_domain && !is_known_finalizer(finalizer) {
            let field = format!("{field}[{index}]");
            errors.push(FieldError::invalid(field, finalizer, FINALIZER_RULE));
        }
    }
    let has = |wanted| json::texts(metadata, "finalizers").any(|finalizer| finalizer == wanted);
    let both_stored = stored.contains(ORPHAN) && stored.contains(FOREGROUND);
    if has(ORPHAN) && has(FOREGROUND) && !both_stored {
        let why = "of orphan and foregroundDeletion only one can be set";
        errors.push(FieldError::invalid(field, ORPHAN, why));
    }
    errors
}

/// Returns true if the finalizer has a domain or is a standard one (`pkg/apis/core/helper`, `IsStandardFinalizerName`).
pub(crate) fn is_known_finalizer(finalizer: &str) -> bool {
    finalizer.contains('/') || [KUBERNETES, ORPHAN, FOREGROUND].contains(&finalizer)
}

/// Returns a text that is the same for equal owner references, whatever the order of their fields.
fn canonical(owner: &Value) -> String {
    owner.to_string()
}

/// Returns at most the first `length` bytes of `text`, cut between two characters.
fn cut(text: &str, length: usize) -> &str {
    let end = (0..=length.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

fn suffix() -> String {
    (0..5).filter_map(|_| fastrand::choice(SUFFIX_ALPHABET)).map(|byte| char::from(*byte)).collect()
}

/// Returns a random (version 4) UUID, RFC 9562 section 5.4.
fn uid() -> String {
    let random = fastrand::u128(..);
    let versioned = random & !(0xf << 76) | (0x4 << 76);
    let hex = format!("{:032x}", versioned & !(0x3 << 62) | (0x2 << 62));
    let part = |range| hex.get(range).unwrap_or_default();
    [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)].join("-")
}
