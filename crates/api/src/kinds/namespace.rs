//! Namespace: Active until it is deleted, then Terminating until its finalizers are removed. Source:
//! `pkg/registry/core/namespace/strategy.go`, `pkg/apis/core/validation/validation.go`.

use portolan_schema::json::{self, Object, Value};

use crate::{error::FieldError, metadata, names};

/// Finalizer in `spec` that is kept until the Namespace is empty (`core/v1` `FinalizerKubernetes`).
pub const FINALIZER: &str = "kubernetes";
/// Label of every Namespace (`core/v1` `LabelMetadataName`).
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Sets the label with the name. A new Namespace also gets its phase and its finalizer.
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
    set_phase(object, "Active");
    if let Some(spec) = json::object_mut(object, "spec")
        && !json::texts(spec, "finalizers").any(|finalizer| finalizer == FINALIZER)
    {
        let mut finalizers = json::list(spec, "finalizers").to_vec();
        finalizers.push(FINALIZER.into());
        spec.insert("finalizers".to_owned(), finalizers.into());
    }
}

/// Sets `status.phase`.
pub(crate) fn set_phase(object: &mut Object, phase: &str) {
    if let Some(status) = json::object_mut(object, "status") {
        status.insert("phase".to_owned(), phase.into());
    }
}

/// Returns everything that is wrong with a Namespace. Upstream names the index of a finalizer only when a stored
/// Namespace is finalized.
pub(super) fn validate(object: &Object, is_new: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let finalizers = json::object(object, "spec").map_or(&[][..], |spec| json::list(spec, "finalizers"));
    for (index, name) in finalizers.iter().filter_map(Value::as_str).enumerate() {
        let index = if is_new { String::new() } else { format!("[{index}]") };
        let field = format!("spec.finalizers{index}");
        if !names::is_qualified_name(name) {
            errors.push(FieldError::invalid(&field, name, "must be a qualified name"));
        }
        if !metadata::is_known_finalizer(name) {
            errors.push(FieldError::invalid(field, name, metadata::FINALIZER_RULE));
        }
    }
    let is_being_deleted =
        json::object(object, "metadata").is_some_and(|it| it.contains_key("deletionTimestamp"));
    let phase = json::object(object, "status").and_then(|status| json::text(status, "phase"));
    let (wanted, why) = if is_being_deleted {
        ("Terminating", "may only be Terminating while deletionTimestamp is set")
    } else {
        ("Active", "may only be Active while deletionTimestamp is not set")
    };
    if phase != Some(wanted) {
        errors.push(FieldError::invalid("status.Phase", phase.unwrap_or_default(), why));
    }
    errors
}

#[cfg(test)]
mod tests {
    use portolan_schema::json::json;

    use super::*;

    fn object(value: &Value) -> Object {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn a_new_one_is_active_and_has_its_finalizer_and_label() {
        let mut namespace = object(&json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["x.y/z"]}}));
        prepare(&mut namespace, true);
        assert_eq!(
            Value::from(namespace.clone()),
            json!({
                "metadata": {"name": "a", "labels": {"kubernetes.io/metadata.name": "a"}},
                "spec": {"finalizers": ["x.y/z", "kubernetes"]},
                "status": {"phase": "Active"},
            })
        );
        assert_eq!(validate(&namespace, true), []);
        let mut update = object(&json!({"metadata": {"name": "a", "labels": {}}}));
        prepare(&mut update, false);
        assert_eq!(update["metadata"]["labels"]["kubernetes.io/metadata.name"], "a");
        assert_eq!(update.get("spec"), None, "the API takes it from the stored object");
    }

    #[test]
    fn each_rule() {
        let namespace = |finalizer: &str, deleted: bool, phase: &str| {
            let mut metadata = json!({"name": "a"});
            if deleted {
                metadata["deletionTimestamp"] = "2026-11-21T21:03:57Z".into();
            }
            let spec = json!({"finalizers": [finalizer]});
            object(&json!({"metadata": metadata, "spec": spec, "status": {"phase": phase}}))
        };
        for (namespace, field) in [
            (namespace("a/b c", false, "Active"), "spec.finalizers[0]"),
            (namespace("other", false, "Active"), "spec.finalizers[0]"),
            (namespace("kubernetes", false, "Terminating"), "status.Phase"),
            (namespace("kubernetes", true, "Active"), "status.Phase"),
            (namespace("kubernetes", false, ""), "status.Phase"),
        ] {
            let errors = validate(&namespace, false);
            let fields: Vec<String> = errors.into_iter().map(|error| error.field).collect();
            assert_eq!(fields, [field], "{namespace:?}");
        }
        assert_eq!(validate(&namespace("example.com/a", true, "Terminating"), false), []);
        let fields =
            validate(&namespace("other", false, "Active"), true).into_iter().map(|error| error.field);
        assert_eq!(fields.collect::<Vec<_>>(), ["spec.finalizers"]);
    }
}
