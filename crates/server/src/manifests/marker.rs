//! The mark on what a folder made: which object it is, and which file has it. The first part keeps a copy of the object
//! under another name from being taken for it.

use std::path::{Path, PathBuf};

use crate::json::Value;
use serde::Deserialize;

use super::ObjectId;
use crate::{json, resource::Resource, store::StoredObject};

/// Annotation of every object that comes from a manifest.
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

/// The object with its mark; one that is not of the right shape stays as it is, and is refused as such.
pub(super) fn marked(mut object: Value, id: &ObjectId, file: &Path) -> Value {
    let metadata = object.as_object_mut().and_then(|object| json::object_mut(object, "metadata"));
    if let Some(metadata) = metadata {
        if metadata.get("annotations").is_some_and(Value::is_null) {
            metadata.remove("annotations");
        }
        if let Some(annotations) = json::object_mut(metadata, "annotations") {
            annotations.insert(MARKER.to_owned(), format!("{id} in {}", file.display()).into());
        }
    }
    object
}

/// The file of `folder` that made the object, if one did.
pub(super) fn file_of(resource: Resource, object: &StoredObject, folder: &Path) -> Option<PathBuf> {
    let marked: Marked<'_> = object.metadata()?;
    let id = ObjectId::of(resource, object).to_string();
    let file = marked.annotations.marker.strip_prefix(&id)?.strip_prefix(" in ")?;
    let file = PathBuf::from(file);
    (file.parent() == Some(folder)).then_some(file)
}
