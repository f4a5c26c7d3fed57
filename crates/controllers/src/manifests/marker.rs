//! The annotation of objects from a manifest: the object's identity and its file. The identity keeps a copy of the
//! object under another name from being pruned.

use std::path::{Path, PathBuf};

use portolan_schema::{
    Resource,
    json::{self, Value},
};
use portolan_store::StoredObject;
use serde::Deserialize;

use super::ObjectId;

/// Annotation of every object from a manifest.
pub(crate) const MARKER: &str = "portolan.internal/manifest";

#[derive(Deserialize)]
struct Marked<'a> {
    #[serde(borrow)]
    annotations: Annotations<'a>,
}

#[derive(Deserialize)]
struct Annotations<'a> {
    #[serde(borrow, rename = "portolan.internal/manifest")]
    marker: std::borrow::Cow<'a, str>,
}

/// Returns the object with the annotation and without owners: a manifest that was exported names them by UIDs of another
/// server, and garbage is what has no owner. An object of the wrong shape is returned unchanged; the API refuses it
/// later.
pub(super) fn marked(mut object: Value, id: &ObjectId, file: &Path) -> Value {
    let metadata = object.as_object_mut().and_then(|object| json::object_mut(object, "metadata"));
    if let Some(metadata) = metadata {
        metadata.remove("ownerReferences");
        if metadata.get("annotations").is_some_and(Value::is_null) {
            metadata.remove("annotations");
        }
        if let Some(annotations) = json::object_mut(metadata, "annotations") {
            annotations.insert(MARKER.to_owned(), format!("{id} in {}", file.display()).into());
        }
    }
    object
}

/// Returns the file that the object came from; `None` if it came from no manifest.
pub(super) fn file_of(resource: Resource, object: &StoredObject) -> Option<PathBuf> {
    let marked: Marked<'_> = object.metadata()?;
    let id = ObjectId::of(resource, object).to_string();
    let file = marked.annotations.marker.strip_prefix(&id)?.strip_prefix(" in ")?;
    Some(PathBuf::from(file))
}
