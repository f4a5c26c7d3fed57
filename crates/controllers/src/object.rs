//! References to objects, and the metadata that the controllers read.

use std::sync::Arc;

use portolan_api::Target;
use portolan_schema::Resource;
use portolan_store::{Store, StoredObject};
use serde::Deserialize;

/// Label that names the manager of a slice (`k8s.io/api/discovery/v1` `LabelManagedBy`).
pub(super) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`] for slices that mirror Endpoints.
pub(super) const MIRROR: &str = "endpointslicemirroring-controller.k8s.io";

/// A reference to one object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ObjectRef {
    pub(super) resource: Resource,
    /// The object's key in the store.
    pub(super) key: Arc<str>,
}

impl ObjectRef {
    pub(super) fn new(resource: Resource, key: &str) -> Self {
        Self { resource, key: key.into() }
    }

    /// Returns the namespace; empty for a cluster-scoped kind.
    pub(super) fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// Returns the name.
    pub(super) fn name(&self) -> &str {
        self.key.split_once('/').map_or(&self.key, |(_, name)| name)
    }

    /// Returns the target for a write.
    pub(super) fn target(&self) -> Target<'_> {
        Target { resource: self.resource, namespace: self.namespace(), name: self.name() }
    }

    /// Returns the published object.
    pub(super) fn get(&self, store: &dyn Store) -> Option<Arc<StoredObject>> {
        store.get(self.resource, &self.key)
    }
}

/// The metadata that decide whether an object is kept or deleted.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata {
    pub(super) uid: String,
    pub(super) deletion_timestamp: Option<String>,
    pub(super) finalizers: Vec<String>,
    pub(super) owner_references: Vec<OwnerReference>,
}

/// An owner reference.
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

    pub(super) fn is_being_deleted(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    pub(super) fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|it| it == finalizer)
    }

    /// Returns true if the object waits for its dependents to be deleted first.
    pub(super) fn waits_for_dependents(&self) -> bool {
        self.is_being_deleted() && self.has_finalizer(portolan_api::metadata::FOREGROUND)
    }
}
