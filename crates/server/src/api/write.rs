//! The steps of a write, under the write lock. Nothing here is stored or taken for good: a decision says what would be.

use std::sync::Arc;

use serde_json::Value;

use super::{
    Api, Change, Effect, Outcome, Part, Preconditions, Target, WriteOptions,
    checks::{
        bump_generation, check_delete, check_preconditions, conflict, is_finished_deletion, match_url,
        restored, update_metadata, wrong_metadata,
    },
    commit::{Decision, Exchange, Write},
};
use crate::{
    allocate::Allocator,
    error::{ApiError, FieldError},
    json::{self, Object},
    kinds::{
        self,
        service::{self, claims::Claims},
    },
    metadata,
    resource::Resource,
    schema::{self, FieldValidation},
    store::{Draft, StoredObject, Transaction},
};

/// How often a generated name is tried anew when it is taken.
const NAME_TRIES: usize = 8;

impl Api {
    pub(super) fn decide_create(
        &self,
        allocator: &mut dyn Allocator,
        resource: Resource,
        namespace: &str,
        mut object: Object,
        options: WriteOptions,
    ) -> Result<Decision, ApiError> {
        match_url(resource, namespace, None, &mut object)?;
        let warnings = self.conform(resource, &mut object, options)?;
        if !resource.info().create_keeps_status {
            object.remove("status");
        }
        let key = self.fresh_name(resource, namespace, &mut object)?;
        self.prepare(resource, &mut object, None)?;
        let before = Claims::default();
        self.allocate(allocator, resource, &mut object, &before, &key)?;
        let draft = Draft::new(resource, &object);
        let after = claims(resource, &object);
        if options.dry_run {
            after.release_except(&before, allocator, &key);
            let outcome = outcome(&draft.at(self.store.revision()), Effect::Created, warnings);
            return Ok(Decision::Done(outcome));
        }
        Ok(Decision::Write(Write {
            transaction: Transaction::put(resource, draft, None),
            effect: Effect::Created,
            removed: None,
            warnings,
            exchange: Exchange { owner: key, before, after },
        }))
    }

    pub(super) fn decide_change(
        &self,
        allocator: &mut dyn Allocator,
        target: Target<'_>,
        part: Part,
        change: Change,
        options: WriteOptions,
    ) -> Result<Decision, ApiError> {
        let resource = target.resource;
        let Some(stored) = self.store.latest(resource, &target.key()) else {
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
        self.decide_update(allocator, target, (stored, &old), new, (options, warnings))
    }

    pub(super) fn decide_delete(
        &self,
        target: Target<'_>,
        preconditions: &Preconditions,
        options: WriteOptions,
    ) -> Result<Decision, ApiError> {
        let stored = self.store.latest(target.resource, &target.key()).ok_or_else(|| target.not_found())?;
        let mut object = stored.decode();
        check_delete(target, &stored, &object, preconditions)?;
        let Some(metadata) = json::object_mut(&mut object, "metadata") else {
            return Err(target.not_found());
        };
        if json::list(metadata, "finalizers").is_empty() {
            return Ok(decide_removal(target, stored, &object, options));
        }
        if metadata.contains_key("deletionTimestamp") {
            return Ok(Decision::Done(outcome(&stored, Effect::Unchanged, Vec::new())));
        }
        metadata.insert("deletionTimestamp".to_owned(), metadata::now().into());
        metadata.insert("deletionGracePeriodSeconds".to_owned(), 0.into());
        let draft = Draft::new(target.resource, &object);
        Ok(decide_put(target, &stored, draft, options, (Vec::new(), Exchange::default())))
    }

    fn create_on_update(
        &self,
        allocator: &mut dyn Allocator,
        target: Target<'_>,
        part: Part,
        change: Change,
        options: WriteOptions,
    ) -> Result<Decision, ApiError> {
        match change {
            Change::Replace(mut object) if target.resource.info().create_on_update && part == Part::Main => {
                match_url(target.resource, target.namespace, Some(target.name), &mut object)?;
                let uid = json::object(&object, "metadata").and_then(|metadata| json::text(metadata, "uid"));
                if let Some(uid) = uid {
                    return Err(conflict(target, "metadata.uid", uid, "none: it does not exist"));
                }
                self.decide_create(allocator, target.resource, target.namespace, object, options)
            }
            _ => Err(target.not_found()),
        }
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
            if self.store.latest(resource, &key).is_none() {
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

    fn decide_update(
        &self,
        allocator: &mut dyn Allocator,
        target: Target<'_>,
        (stored, old): (Arc<StoredObject>, &Object),
        mut new: Object,
        (options, warnings): (WriteOptions, Vec<String>),
    ) -> Result<Decision, ApiError> {
        let resource = target.resource;
        update_metadata(target, &mut new, old)?;
        if is_finished_deletion(&new, old) {
            return Ok(decide_removal(target, stored, old, options));
        }
        self.prepare(resource, &mut new, Some(old))?;
        let owner = target.key();
        let before = claims(resource, old);
        self.allocate(allocator, resource, &mut new, &before, &owner)?;
        if kinds::bumps_generation(resource, &new, old) {
            bump_generation(&mut new);
        }
        let after = claims(resource, &new);
        if options.dry_run {
            after.release_except(&before, allocator, &owner);
        }
        let draft = Draft::new(resource, &new);
        Ok(decide_put(target, &stored, draft, options, (warnings, Exchange { owner, before, after })))
    }
}

fn decide_put(
    target: Target<'_>,
    stored: &StoredObject,
    draft: Draft,
    options: WriteOptions,
    (warnings, exchange): (Vec<String>, Exchange),
) -> Decision {
    if draft.is_same_as(stored) {
        return Decision::Done(outcome(stored, Effect::Unchanged, warnings));
    }
    if options.dry_run {
        return Decision::Done(outcome(&draft.at(stored.revision()), Effect::Updated, warnings));
    }
    Decision::Write(Write {
        transaction: Transaction::put(target.resource, draft, Some(stored.revision())),
        effect: Effect::Updated,
        removed: None,
        warnings,
        exchange,
    })
}

fn decide_removal(
    target: Target<'_>,
    stored: Arc<StoredObject>,
    object: &Object,
    options: WriteOptions,
) -> Decision {
    if options.dry_run {
        return Decision::Done(outcome(&stored, Effect::Deleted, Vec::new()));
    }
    let owner = target.key();
    Decision::Write(Write {
        transaction: Transaction::remove(target.resource, &owner, stored.revision()),
        effect: Effect::Deleted,
        removed: Some(stored),
        warnings: Vec::new(),
        exchange: Exchange { owner, before: claims(target.resource, object), after: Claims::default() },
    })
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
