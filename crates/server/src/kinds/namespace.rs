//! Namespace: every one has a finalizer in `spec`, a phase, and its own name as a label.

use crate::json::{self, Object};

/// Label that every Namespace carries (`core/v1` `LabelMetadataName`).
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Finalizer in `spec` that stays until the Namespace is empty (`core/v1` `FinalizerKubernetes`).
pub(crate) const FINALIZER: &str = "kubernetes";

/// Fills in what every Namespace has; a new one is active.
pub(crate) fn prepare(object: &mut Object, is_new: bool) {
    if let Some(metadata) = json::object_mut(object, "metadata")
        && let Some(name) = json::text(metadata, "name").map(str::to_owned)
        && let Some(labels) = json::object_mut(metadata, "labels")
    {
        labels.insert(NAME_LABEL.to_owned(), name.into());
    }
    if !is_new {
        return;
    }
    if let Some(spec) = json::object_mut(object, "spec")
        && !json::texts(spec, "finalizers").any(|finalizer| finalizer == FINALIZER)
    {
        let mut finalizers = json::list(spec, "finalizers").to_vec();
        finalizers.push(FINALIZER.into());
        spec.insert("finalizers".to_owned(), finalizers.into());
    }
    set_phase(object, "Active");
}

/// Sets `status.phase`.
pub(crate) fn set_phase(object: &mut Object, phase: &str) {
    if let Some(status) = json::object_mut(object, "status") {
        status.insert("phase".to_owned(), phase.into());
    }
}
