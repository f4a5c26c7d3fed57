//! Objects as the controllers name them, and what they look at in any object.

use std::sync::Arc;

use serde::Deserialize;

use crate::{
    api::Target,
    resource::Resource,
    store::{Store, StoredObject},
};

/// One object by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ObjectRef {
    pub(super) resource: Resource,
    /// Its key in the store.
    pub(super) key: Arc<str>,
}

impl ObjectRef {
    pub(super) fn new(resource: Resource, key: &str) -> Self {
        Self { resource, key: key.into() }
    }

    /// Its namespace; empty for cluster-scoped kinds.
    pub(super) fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        self.key.split_once('/').map_or(&self.key, |(_, name)| name)
    }

    /// For a write.
    pub(super) fn target(&self) -> Target<'_> {
        Target { resource: self.resource, namespace: self.namespace(), name: self.name() }
    }

    /// The object as it is published.
    pub(super) fn get(&self, store: &dyn Store) -> Option<Arc<StoredObject>> {
        store.get(self.resource, &self.key)
    }
}

/// What decides about life and death of an object.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata {
    pub(super) uid: String,
    pub(super) deletion_timestamp: Option<String>,
    pub(super) finalizers: Vec<String>,
    pub(super) owner_references: Vec<OwnerReference>,
}

/// An owner as an object names it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct OwnerReference {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) block_owner_deletion: bool,
}

impl Metadata {
    pub(super) fn of(object: &StoredObject) -> Self {
        object.metadata().unwrap_or_default()
    }

    pub(super) fn is_going(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    pub(super) fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|it| it == finalizer)
    }

    /// Whether it waits for the objects that it owns to go first.
    pub(super) fn waits_for_dependents(&self) -> bool {
        self.is_going() && self.has_finalizer(crate::metadata::FOREGROUND)
    }
}
