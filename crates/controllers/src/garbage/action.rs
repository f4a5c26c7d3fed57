//! The actions of the garbage collector and their results. Every write is conditional on the uid that was examined,
//! and on the revision where the action depends on more than the uid.

use std::collections::HashSet;

use portolan_api::{
    Api, ApiError, DeleteOptions, Part, Preconditions, Propagation, WriteOptions, metadata::ORPHAN,
};
use portolan_schema::{
    json as fields,
    json::{Object, Value, json},
};
use portolan_store::StoredObject;

use super::super::object::{Metadata, ObjectRef};

/// An action on an object.
#[derive(Debug)]
pub(super) enum Action {
    /// Do nothing.
    Nothing,
    /// Only report that an owner is in the wrong namespace.
    Report,
    /// Examine these dependents first.
    Examine(Vec<ObjectRef>),
    /// Delete the object: it has no owners left.
    Delete { uid: String, revision: u64, propagation: Option<Propagation> },
    /// Remove the references to these owners, by uid.
    Detach(HashSet<Box<str>>),
    /// Remove `blockOwnerDeletion` from the object's owner references.
    Unblock,
    /// Remove the dependents' references to the object, then its finalizer `orphan`.
    Orphan { uid: Box<str>, dependents: Vec<ObjectRef> },
    /// Remove this finalizer: no dependent blocks the object.
    RemoveFinalizer(&'static str),
}

/// The result of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    /// The action is done, by this server or by another client.
    Well,
    /// The object has changed and must be examined again.
    Changed,
    /// The action failed and must be retried later.
    Failed,
}

impl Action {
    pub(super) async fn carry_out(self, api: &Api, object: &ObjectRef) -> Done {
        let result = match self {
            Self::Nothing | Self::Report | Self::Examine(_) => Ok(()),
            Self::Delete { uid, revision, propagation } => {
                delete(api, object, uid, revision, propagation).await
            }
            Self::Detach(owners) => detach(api, object, &owners).await,
            Self::Unblock => unblock(api, object).await,
            Self::Orphan { uid, dependents } => orphan(api, object, uid, dependents).await,
            Self::RemoveFinalizer(finalizer) => remove_finalizer(api, object, finalizer).await,
        };
        match result {
            Ok(()) | Err(ApiError::NotFound { .. }) => Done::Well,
            Err(ApiError::Conflict { .. } | ApiError::Contended { .. }) => Done::Changed,
            Err(error) => {
                let kind = object.resource.info().kind;
                tracing::warn!(kind, object = &*object.key, %error, "garbage could not be collected; will try again");
                Done::Failed
            }
        }
    }
}

async fn delete(
    api: &Api,
    object: &ObjectRef,
    uid: String,
    revision: u64,
    propagation: Option<Propagation>,
) -> Result<(), ApiError> {
    let preconditions = Preconditions { uid: Some(uid), resource_version: Some(revision.to_string()) };
    let options = DeleteOptions { preconditions, propagation, dry_run: false };
    api.delete_with(object.target(), &options).await?;
    tracing::info!(kind = object.resource.info().kind, object = &*object.key, "deleted: its owners are gone");
    Ok(())
}

async fn orphan(
    api: &Api,
    object: &ObjectRef,
    uid: Box<str>,
    dependents: Vec<ObjectRef>,
) -> Result<(), ApiError> {
    let owner = HashSet::from([uid]);
    for dependent in dependents {
        match detach(api, &dependent, &owner).await {
            Ok(()) | Err(ApiError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    remove_finalizer(api, object, ORPHAN).await
}

async fn detach(api: &Api, object: &ObjectRef, owners: &HashSet<Box<str>>) -> Result<(), ApiError> {
    let is_kept = |owner: &Object| !owners.contains(fields::text(owner, "uid").unwrap_or_default());
    change_owners(api, object, |all| all.retain(|owner| owner.as_object().is_none_or(is_kept))).await
}

async fn unblock(api: &Api, object: &ObjectRef) -> Result<(), ApiError> {
    change_owners(api, object, |all| {
        for owner in all.iter_mut().filter_map(Value::as_object_mut) {
            owner.insert("blockOwnerDeletion".to_owned(), false.into());
        }
    })
    .await
}

async fn change_owners(
    api: &Api,
    object: &ObjectRef,
    change: impl FnOnce(&mut Vec<Value>) + Send,
) -> Result<(), ApiError> {
    let Some(stored) = object.get(&**api.store()) else { return Ok(()) };
    let decoded = stored.decode();
    let Some(metadata) = fields::object(&decoded, "metadata") else { return Ok(()) };
    let mut owners = fields::list(metadata, "ownerReferences").to_vec();
    change(&mut owners);
    patch(api, object, &stored, "ownerReferences", owners).await
}

async fn remove_finalizer(api: &Api, object: &ObjectRef, finalizer: &str) -> Result<(), ApiError> {
    let Some(stored) = object.get(&**api.store()) else { return Ok(()) };
    let left = Metadata::of(&stored).finalizers.into_iter().filter(|it| it != finalizer);
    patch(api, object, &stored, "finalizers", left.map(Value::from).collect()).await
}

/// Sets a list in `metadata`, if the object still has this revision.
async fn patch(
    api: &Api,
    object: &ObjectRef,
    stored: &StoredObject,
    field: &str,
    list: Vec<Value>,
) -> Result<(), ApiError> {
    let list = if list.is_empty() { Value::Null } else { list.into() };
    let patch = json!({"metadata": {
        "uid": Metadata::of(stored).uid, "resourceVersion": stored.revision().to_string(), field: list,
    }});
    let Value::Object(patch) = patch else { return Ok(()) };
    api.merge_patch(object.target(), Part::Main, patch, WriteOptions::default()).await?;
    Ok(())
}
