//! The steps of a write, under the write lock.

use std::sync::Arc;

use futures::FutureExt as _;
use serde_json::Value;

use super::{Api, Change, Effect, Outcome, Part, Preconditions, Target, WriteOptions};
use crate::{
    allocate::Allocator,
    error::{ApiError, FieldError},
    json::{self, Object, type_name},
    kinds::{
        self,
        service::{self, claims::Claims},
    },
    metadata,
    resource::Resource,
    schema::{self, FieldValidation},
    store::{CommitError, Committed, Transaction},
    store::{Draft, StoredObject},
};

/// How often a generated name is tried anew when it is taken.
const NAME_TRIES: usize = 8;

impl Api {
    pub(super) fn create_locked(
        &self,
        allocator: &mut dyn Allocator,
        resource: Resource,
        namespace: &str,
        mut object: Object,
        options: WriteOptions,
    ) -> Result<Outcome, ApiError> {
        match_url(resource, namespace, None, &mut object)?;
        let warnings = self.conform(resource, &mut object, options)?;
        if !resource.info().create_keeps_status {
            object.remove("status");
        }
        let key = self.fresh_name(resource, namespace, &mut object)?;
        self.prepare(resource, &mut object, None)?;
        let held = Claims::default();
        self.allocate(allocator, resource, &mut object, &held, &key)?;
        let draft = Draft::new(resource, &object);
        if options.dry_run {
            claims(resource, &object).release_except(&held, allocator, &key);
            return Ok(outcome(&draft.at(self.store.revision()), Effect::Created, warnings));
        }
        if let Ok(stored) = self.put(resource, draft, None) {
            Ok(outcome(&stored, Effect::Created, warnings))
        } else {
            claims(resource, &object).release_except(&held, allocator, &key);
            Err(ApiError::AlreadyExists { resource, name: name_of(&object).to_owned() })
        }
    }

    pub(super) fn change_locked(
        &self,
        allocator: &mut dyn Allocator,
        target: Target<'_>,
        part: Part,
        change: Change,
        options: WriteOptions,
    ) -> Result<Outcome, ApiError> {
        let resource = target.resource;
        let Some(stored) = self.store.get(resource, &target.key()) else {
            return self.create_on_update(allocator, target, part, change, options);
        };
        let old = stored.decode();
        let mut new = match change {
            Change::Replace(object) => object,
            Change::Merge(patch) => merged(&old, patch),
        };
        match_url(resource, target.namespace, Some(target.name), &mut new)?;
        check_preconditions(target, &stored, &old, &new)?;
        let warnings = self.conform(resource, &mut new, options)?;
        let new = restored(resource, part, new, &old);
        self.store_update(allocator, target, (&stored, &old), new, (options, warnings))
    }

    pub(super) fn delete_locked(
        &self,
        allocator: &mut dyn Allocator,
        target: Target<'_>,
        preconditions: &Preconditions,
        options: WriteOptions,
    ) -> Result<Outcome, ApiError> {
        let stored = self.store.get(target.resource, &target.key()).ok_or_else(|| target.not_found())?;
        let mut object = stored.decode();
        check_delete(target, &stored, &object, preconditions)?;
        let Some(metadata) = json::object_mut(&mut object, "metadata") else {
            return Err(target.not_found());
        };
        if json::list(metadata, "finalizers").is_empty() {
            return self.remove(allocator, target, &stored, &object, options);
        }
        if metadata.contains_key("deletionTimestamp") {
            return Ok(outcome(&stored, Effect::Unchanged, Vec::new()));
        }
        metadata.insert("deletionTimestamp".to_owned(), metadata::now().into());
        metadata.insert("deletionGracePeriodSeconds".to_owned(), 0.into());
        let draft = Draft::new(target.resource, &object);
        self.put_update(target, &stored, draft, options, Vec::new())
    }

    fn create_on_update(
        &self,
        allocator: &mut dyn Allocator,
        target: Target<'_>,
        part: Part,
        change: Change,
        options: WriteOptions,
    ) -> Result<Outcome, ApiError> {
        match change {
            Change::Replace(mut object) if target.resource.info().create_on_update && part == Part::Main => {
                match_url(target.resource, target.namespace, Some(target.name), &mut object)?;
                let uid = json::object(&object, "metadata").and_then(|metadata| json::text(metadata, "uid"));
                if let Some(uid) = uid {
                    return Err(conflict(target, "metadata.uid", uid, "none: it does not exist"));
                }
                self.create_locked(allocator, target.resource, target.namespace, object, options)
            }
            _ => Err(target.not_found()),
        }
    }

    /// In a store of this process, whose commits are done when they return.
    pub(super) fn commit(&self, transaction: Transaction) -> Result<Committed, CommitError> {
        let unknown = || Err(CommitError::Unknown("it did not end in time".to_owned()));
        self.store.commit(transaction).now_or_never().unwrap_or_else(unknown)
    }

    fn put(
        &self,
        resource: Resource,
        draft: Draft,
        expected: Option<u64>,
    ) -> Result<Arc<StoredObject>, CommitError> {
        let committed = self.commit(Transaction::put(resource, draft, expected))?;
        let missing = || CommitError::Unknown("the store did not return the object".to_owned());
        committed.objects.into_iter().next().ok_or_else(missing)
    }

    /// Checks types and drops unknown fields; with validation off, of metadata only.
    fn conform(
        &self,
        resource: Resource,
        object: &mut Object,
        options: WriteOptions,
    ) -> Result<Vec<String>, ApiError> {
        let unknown = if self.validate {
            schema::conform(resource, object)?
        } else {
            schema::conform_metadata(object)?
        };
        match options.field_validation {
            FieldValidation::Strict if !unknown.is_empty() => {
                Err(ApiError::UnknownFields { fields: unknown })
            }
            FieldValidation::Ignore => Ok(Vec::new()),
            _ => Ok(unknown.into_iter().map(|field| format!("unknown field \"{field}\"")).collect()),
        }
    }

    /// Fills in metadata and settles the name; returns the key.
    fn fresh_name(
        &self,
        resource: Resource,
        namespace: &str,
        object: &mut Object,
    ) -> Result<String, ApiError> {
        let generated = name_of(object).is_empty();
        let mut tries = if generated { NAME_TRIES } else { 1 };
        loop {
            let Some(metadata) = json::object_mut(object, "metadata") else {
                return Err(wrong_metadata(object));
            };
            if generated {
                metadata.remove("name");
            }
            metadata::prepare_create(resource, metadata);
            let errors = metadata::validate(resource, metadata);
            if !errors.is_empty() {
                return Err(ApiError::invalid(resource, name_of(object), errors));
            }
            let key = Target { resource, namespace, name: name_of(object) }.key();
            tries -= 1;
            if self.store.get(resource, &key).is_none() {
                return Ok(key);
            }
            if tries == 0 {
                return Err(ApiError::AlreadyExists { resource, name: name_of(object).to_owned() });
            }
        }
    }

    /// Defaults and validates; `old` is the stored object on update.
    fn prepare(&self, resource: Resource, object: &mut Object, old: Option<&Object>) -> Result<(), ApiError> {
        let mut errors = Vec::new();
        if resource == Resource::Service {
            errors.extend(self.prepare_service(object, old));
        } else {
            kinds::set_defaults(resource, object);
        }
        if self.validate && errors.is_empty() {
            errors = kinds::validate(resource, object, old);
        }
        // Addresses come after validation, so that an invalid Service never takes one.
        if self.validate && !errors.is_empty() {
            return Err(ApiError::invalid(resource, name_of(object), errors));
        }
        Ok(())
    }

    fn prepare_service(&self, object: &mut Object, old: Option<&Object>) -> Option<FieldError> {
        if let Some(old) = old {
            service::carry_over(object, old);
        }
        let old_spec = old.and_then(|old| json::object(old, "spec"));
        let spec = json::object_mut(object, "spec")?;
        service::normalise(spec, old_spec);
        let undecided = service::families::decide(spec, old_spec, &self.families).err();
        service::set_defaults(object);
        undecided
    }

    fn allocate(
        &self,
        allocator: &mut dyn Allocator,
        resource: Resource,
        object: &mut Object,
        held: &Claims,
        owner: &str,
    ) -> Result<(), ApiError> {
        if resource != Resource::Service {
            return Ok(());
        }
        let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
        service::claims::allocate(spec, held, allocator, owner, !self.validate)
            .map_err(|errors| ApiError::invalid(resource, name_of(object), errors))
    }

    fn store_update(
        &self,
        allocator: &mut dyn Allocator,
        target: Target<'_>,
        (stored, old): (&StoredObject, &Object),
        mut new: Object,
        (options, warnings): (WriteOptions, Vec<String>),
    ) -> Result<Outcome, ApiError> {
        let resource = target.resource;
        update_metadata(target, &mut new, old)?;
        if is_finished_deletion(&new, old) {
            return self.remove(allocator, target, stored, old, options);
        }
        self.prepare(resource, &mut new, Some(old))?;
        let owner = target.key();
        let held = claims(resource, old);
        self.allocate(allocator, resource, &mut new, &held, &owner)?;
        if kinds::bumps_generation(resource, &new, old) {
            bump_generation(&mut new);
        }
        let now_held = claims(resource, &new);
        let draft = Draft::new(resource, &new);
        let result = self.put_update(target, stored, draft, options, warnings);
        if result.is_ok() && !options.dry_run {
            held.release_except(&now_held, allocator, &owner);
        } else {
            now_held.release_except(&held, allocator, &owner);
        }
        result
    }

    fn put_update(
        &self,
        target: Target<'_>,
        stored: &StoredObject,
        draft: Draft,
        options: WriteOptions,
        warnings: Vec<String>,
    ) -> Result<Outcome, ApiError> {
        if draft.is_same_as(stored) {
            return Ok(outcome(stored, Effect::Unchanged, warnings));
        }
        if options.dry_run {
            return Ok(outcome(&draft.at(stored.revision()), Effect::Updated, warnings));
        }
        let put = self.put(target.resource, draft, Some(stored.revision()));
        let stored: Arc<StoredObject> = put.map_err(|error| superseded(target, stored.revision(), &error))?;
        Ok(outcome(&stored, Effect::Updated, warnings))
    }

    fn remove(
        &self,
        allocator: &mut dyn Allocator,
        target: Target<'_>,
        stored: &StoredObject,
        object: &Object,
        options: WriteOptions,
    ) -> Result<Outcome, ApiError> {
        let mut outcome = outcome(stored, Effect::Deleted, Vec::new());
        if options.dry_run {
            return Ok(outcome);
        }
        let key = target.key();
        let removed = self
            .commit(Transaction::remove(target.resource, &key, stored.revision()))
            .map(|done| done.revision);
        outcome.revision = removed.map_err(|error| superseded(target, stored.revision(), &error))?;
        outcome.object = stored.body_at(outcome.revision);
        claims(target.resource, object).release_except(&Claims::default(), allocator, &key);
        Ok(outcome)
    }
}

fn outcome(stored: &StoredObject, effect: Effect, warnings: Vec<String>) -> Outcome {
    Outcome { object: stored.body().clone(), revision: stored.revision(), effect, warnings }
}

fn name_of(object: &Object) -> &str {
    json::object(object, "metadata").and_then(|metadata| json::text(metadata, "name")).unwrap_or_default()
}

fn claims(resource: Resource, object: &Object) -> Claims {
    match json::object(object, "spec") {
        Some(spec) if resource == Resource::Service => Claims::of(spec),
        _ => Claims::default(),
    }
}

/// What the body says of kind, namespace and name must be what the URL says; what it leaves out is filled in.
fn match_url(
    resource: Resource,
    namespace: &str,
    name: Option<&str>,
    object: &mut Object,
) -> Result<(), ApiError> {
    let info = resource.info();
    for (field, url) in [("apiVersion", info.api_version), ("kind", info.kind)] {
        match json::text(object, field) {
            Some(body) if body != url => return Err(mismatch(field, body, url)),
            _ => object.insert(field.to_owned(), url.into()),
        };
    }
    if object.get("metadata").is_none_or(Value::is_null) {
        object.insert("metadata".to_owned(), Value::Object(Object::new()));
    }
    let Some(metadata) = json::object_mut(object, "metadata") else { return Err(wrong_metadata(object)) };
    for (field, key, url) in
        [("metadata.namespace", "namespace", Some(namespace)), ("metadata.name", "name", name)]
    {
        let Some(url) = url else { continue };
        match json::text(metadata, key) {
            Some(body) if body != url => return Err(mismatch(field, body, url)),
            None if !url.is_empty() => {
                metadata.insert(key.to_owned(), url.into());
            }
            _ => {}
        }
    }
    Ok(())
}

fn mismatch(field: &'static str, body: &str, url: &str) -> ApiError {
    ApiError::Mismatch { field, body: body.to_owned(), url: url.to_owned() }
}

fn wrong_metadata(object: &Object) -> ApiError {
    let got = object.get("metadata").map_or("nothing", type_name);
    ApiError::WrongType { field: "metadata".to_owned(), expected: "an object", got }
}

fn conflict(target: Target<'_>, what: &'static str, given: &str, stored: &str) -> ApiError {
    ApiError::Conflict {
        resource: target.resource,
        name: target.name.to_owned(),
        what,
        given: given.to_owned(),
        stored: stored.to_owned(),
    }
}

fn superseded(target: Target<'_>, expected: u64, error: &CommitError) -> ApiError {
    let actual = match error {
        CommitError::Conflict { actual, .. } => *actual,
        _ => None,
    };
    let actual = actual.map_or_else(|| "none".to_owned(), |revision| revision.to_string());
    conflict(target, "metadata.resourceVersion", &expected.to_string(), &actual)
}

/// The client's uid and resourceVersion, where it gave them, must be the stored ones.
fn check_preconditions(
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

fn check_delete(
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

fn update_metadata(target: Target<'_>, new: &mut Object, old: &Object) -> Result<(), ApiError> {
    let empty = Object::new();
    let old = json::object(old, "metadata").unwrap_or(&empty);
    let Some(metadata) = json::object_mut(new, "metadata") else { return Err(wrong_metadata(new)) };
    metadata::prepare_update(metadata, old);
    let mut errors = metadata::validate(target.resource, metadata);
    let stored: Vec<&str> = json::texts(old, "finalizers").collect();
    if old.contains_key("deletionTimestamp")
        && json::texts(metadata, "finalizers").any(|finalizer| !stored.contains(&finalizer))
    {
        errors.push(FieldError::forbidden(
            "metadata.finalizers",
            "none may be added to an object being deleted",
        ));
    }
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(target.resource, target.name, errors)) }
}

/// Whether this update removes the last finalizer of an object being deleted.
fn is_finished_deletion(new: &Object, old: &Object) -> bool {
    let metadata = |object| json::object(object, "metadata");
    metadata(old).is_some_and(|old| old.contains_key("deletionTimestamp"))
        && metadata(new).is_some_and(|new| json::list(new, "finalizers").is_empty())
}

/// The new object with everything that this endpoint may not change put back.
fn restored(resource: Resource, part: Part, mut new: Object, old: &Object) -> Object {
    match part {
        Part::Status => {
            let mut object = old.clone();
            match new.remove("status") {
                Some(status) => object.insert("status".to_owned(), status),
                None => object.remove("status"),
            };
            object
        }
        Part::Finalize => {
            let finalizers = json::object(&new, "spec").and_then(|spec| spec.get("finalizers")).cloned();
            let mut object = old.clone();
            if let Some(spec) = json::object_mut(&mut object, "spec") {
                match finalizers {
                    Some(finalizers) => spec.insert("finalizers".to_owned(), finalizers),
                    None => spec.remove("finalizers"),
                };
            }
            object
        }
        Part::Main => {
            if resource.info().has_status {
                match old.get("status") {
                    Some(status) => new.insert("status".to_owned(), status.clone()),
                    None => new.remove("status"),
                };
            }
            new
        }
    }
}

fn bump_generation(object: &mut Object) {
    if let Some(metadata) = json::object_mut(object, "metadata") {
        let next = metadata.get("generation").and_then(Value::as_i64).unwrap_or(0).saturating_add(1);
        metadata.insert("generation".to_owned(), next.into());
    }
}

/// RFC 7386: null removes, objects merge, everything else replaces.
fn merged(old: &Object, patch: Object) -> Object {
    let mut result = old.clone();
    merge(&mut result, patch);
    result
}

fn merge(target: &mut Object, patch: Object) {
    for (key, value) in patch {
        match value {
            Value::Null => {
                target.remove(&key);
            }
            Value::Object(patch) => {
                let entry = target.entry(key).or_insert_with(|| Value::Object(Object::new()));
                if !entry.is_object() {
                    *entry = Value::Object(Object::new());
                }
                if let Value::Object(inner) = entry {
                    merge(inner, patch);
                }
            }
            other => {
                target.insert(key, other);
            }
        }
    }
}
