//! What an applied object keeps of the stored one that it replaces, although the manifest does not have it.

use portolan_schema::json::{self, Object, Value};

/// Keeps the stored object's finalizers and owner references, unless the new object has its own.
pub(super) fn keep_finalizers_and_owners(object: &mut Object, stored: &Object) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    for key in ["finalizers", "ownerReferences"] {
        let kept = json::object(stored, "metadata").and_then(|metadata| metadata.get(key));
        if let Some(kept) = kept.filter(|_| !metadata.contains_key(key)) {
            metadata.insert(key.to_owned(), kept.clone());
        }
    }
}
