//! Deletion. An object without finalizers is removed at once. Any other object is marked with a deletion timestamp,
//! and removed when its last finalizer is removed.

use std::sync::Arc;

use portolan_schema::{
    Resource,
    json::{self, Object, Value},
};
use portolan_store::{Draft, Step, StoredObject};

use super::{
    Api, Effect, Target, WriteOptions,
    checks::{bump_generation, check_delete, is_finished_deletion},
    commit::{Decision, Exchange, Write},
    namespaces::check_deletable,
    write::{outcome, service_key},
};
use crate::{allocate::Ledger, error::ApiError, kinds, metadata};

/// Options of a deletion.
#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    /// Conditions that the object must meet.
    pub preconditions: Preconditions,
    /// What happens to the object's dependents. If `None`, its finalizers decide; without any of these, the
    /// dependents are deleted in the background.
    pub propagation: Option<Propagation>,
    /// Decides the deletion, but does not store it.
    pub dry_run: bool,
}

/// Conditions that an object must meet to be deleted.
#[derive(Debug, Clone, Default)]
pub struct Preconditions {
    /// The uid, if given.
    pub uid: Option<String>,
    /// The resourceVersion, if given.
    pub resource_version: Option<String>,
}

/// What happens to the dependents of a deleted object (`propagationPolicy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// The dependents are deleted after the object.
    Background,
    /// The dependents whose owner reference has `blockOwnerDeletion` are deleted before the object.
    Foreground,
    /// The dependents stay, and their references to the object are removed.
    Orphan,
}

impl Api {
    pub(super) fn decide_delete(
        &self,
        ledger: &mut Ledger,
        target: Target<'_>,
        options: &DeleteOptions,
    ) -> Result<Decision, ApiError> {
        let resource = target.resource;
        check_deletable(resource, target.name)?;
        let stored = self.store.latest(resource.stored(), &target.key()).ok_or_else(|| target.not_found())?;
        let object = stored.decode();
        check_delete(target, &stored, &object, &options.preconditions)?;
        let marked = marked(resource, object.clone(), options.propagation);
        if is_finished_deletion(resource, &marked) {
            return Ok(self.decide_removal(ledger, target, stored, &object, options.dry_run));
        }
        let draft = Draft::new(resource.stored(), &marked);
        let write = WriteOptions { dry_run: options.dry_run, ..WriteOptions::default() };
        Ok(self.decide_put(ledger, target, &stored, draft, (write, Vec::new(), Exchange::default())))
    }

    /// Decides the removal of an object. Removing a Service also releases its addresses and ports, and removes the
    /// Endpoints of the same name (as upstream's Service storage does).
    pub(super) fn decide_removal(
        &self,
        ledger: &Ledger,
        target: Target<'_>,
        stored: Arc<StoredObject>,
        object: &Object,
        dry_run: bool,
    ) -> Decision {
        if dry_run {
            return Decision::Done(outcome(&stored, Effect::Deleted, Vec::new()));
        }
        let mut exchange = Exchange::default();
        if target.resource == Resource::Service {
            let spec = ledger.stored_spec(object);
            let owner = service_key(object);
            exchange.release = ledger.plan_removal(&*self.store, &owner, &spec);
            exchange.release.load_balancer = Ledger::held_load_balancer(&*self.store, &owner, object);
        }
        let key = stored.key().into();
        let step = Step::Remove { resource: target.resource.stored(), key, expected: stored.revision() };
        let mut transaction = self.transaction(ledger, stored.key(), &exchange, step);
        if target.resource == Resource::Service {
            transaction.steps.splice(0..0, self.endpoints_of(stored.key()));
        }
        Decision::Write(Write {
            transaction,
            effect: Effect::Deleted,
            removed: Some(stored),
            warnings: Vec::new(),
            exchange,
        })
    }

    /// Returns the step that removes a Service's Endpoints, unless these have finalizers.
    fn endpoints_of(&self, service: &str) -> Option<Step> {
        let endpoints = self.store.latest(Resource::Endpoints, service)?;
        let is_kept = json::object(&endpoints.decode(), "metadata")
            .is_some_and(|metadata| !json::list(metadata, "finalizers").is_empty());
        let (key, expected) = (endpoints.key().into(), endpoints.revision());
        (!is_kept).then_some(Step::Remove { resource: Resource::Endpoints, key, expected })
    }
}

/// Returns the object with its deletion timestamp and the finalizers of the policy.
fn marked(resource: Resource, mut object: Object, propagation: Option<Propagation>) -> Object {
    let Some(metadata) = json::object_mut(&mut object, "metadata") else { return object };
    settle_finalizers(metadata, propagation);
    if metadata.contains_key("deletionTimestamp") {
        return object;
    }
    metadata.insert("deletionTimestamp".to_owned(), metadata::now().into());
    metadata.insert("deletionGracePeriodSeconds".to_owned(), 0.into());
    let has_generation = metadata.get("generation").and_then(Value::as_i64).is_some_and(|it| it > 0);
    if has_generation {
        bump_generation(&mut object);
    }
    if resource == Resource::Namespace {
        kinds::namespace::set_phase(&mut object, "Terminating");
    }
    object
}

/// Sets the finalizer that the policy needs, and removes that of any other policy.
fn settle_finalizers(metadata: &mut Object, propagation: Option<Propagation>) {
    let wanted = match propagation {
        None => return,
        Some(Propagation::Background) => None,
        Some(Propagation::Foreground) => Some(metadata::FOREGROUND),
        Some(Propagation::Orphan) => Some(metadata::ORPHAN),
    };
    let mut finalizers: Vec<Value> = json::list(metadata, "finalizers").to_vec();
    finalizers.retain(|finalizer| {
        let finalizer = finalizer.as_str();
        ![Some(metadata::FOREGROUND), Some(metadata::ORPHAN)].contains(&finalizer) || finalizer == wanted
    });
    if let Some(wanted) = wanted
        && !finalizers.iter().any(|finalizer| finalizer == wanted)
    {
        finalizers.push(wanted.into());
    }
    if finalizers.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".to_owned(), finalizers.into());
    }
}
