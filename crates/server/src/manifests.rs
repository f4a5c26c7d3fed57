//! A folder of manifests that the objects are kept in step with: create, update, and prune what the folder made.
//!
//! Which objects the folder made is remembered in memory, as the objects themselves are. A document that cannot be
//! used gets one line in the log and never stops the others; as long as a file has an unreadable document, nothing
//! that the file made is pruned, since it may be what the document meant.

mod documents;
mod follow;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::Value;

use self::documents::Document;
pub(crate) use self::follow::Follower;
use crate::{
    api::{Api, Effect, Preconditions, Target, WriteOptions, resource_of},
    error::ApiError,
    json,
    resource::Resource,
};

#[cfg(test)]
mod tests;

/// What has been made of a folder so far.
#[derive(Debug)]
struct Folder {
    api: Arc<Api>,
    path: PathBuf,
    files: BTreeMap<PathBuf, File>,
}

/// One file as it was last read.
#[derive(Debug, Default)]
struct File {
    /// `None` if the file must be looked at again even if it stays the same.
    content: Option<Vec<u8>>,
    objects: HashSet<ObjectId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ObjectId {
    resource: Resource,
    namespace: String,
    name: String,
}

/// Why a document was not applied.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{0}")]
    Api(#[from] ApiError),
    #[error("the same object is already declared in {}", .0.display())]
    Duplicate(PathBuf),
    #[error("metadata.name: Required value: manifests name their objects")]
    NoName,
}

impl Folder {
    fn new(api: Arc<Api>, path: PathBuf) -> Self {
        Self { api, path, files: BTreeMap::new() }
    }

    /// Reads what has changed, applies it, and deletes what is no longer declared.
    async fn sync(&mut self) -> io::Result<()> {
        let paths = manifest_paths(&self.path)?;
        let before = std::mem::take(&mut self.files);
        let made: HashSet<ObjectId> = before.values().flat_map(|file| file.objects.iter().cloned()).collect();
        let mut before = before;
        let mut declared: HashMap<ObjectId, PathBuf> = HashMap::new();
        for path in paths {
            let old = before.remove(&path).unwrap_or_default();
            let file = self.sync_file(&path, old, &declared).await;
            declared.extend(file.objects.iter().map(|id| (id.clone(), path.clone())));
            self.files.insert(path, file);
            // Requests go on between the files of a large folder.
            tokio::task::yield_now().await;
        }
        for id in made.iter().filter(|id| !declared.contains_key(id)) {
            self.prune(id).await;
        }
        Ok(())
    }

    async fn sync_file(&self, path: &Path, old: File, declared: &HashMap<ObjectId, PathBuf>) -> File {
        let content = match fs::read(path) {
            Ok(content) => content,
            Err(error) => {
                tracing::error!(file = %path.display(), %error, "manifest file cannot be read");
                return File { content: None, ..old };
            }
        };
        if old.content.as_ref() == Some(&content) {
            return old;
        }
        let mut file = File::default();
        let (mut unreadable, mut duplicates) = (false, false);
        for document in documents::split(path, &content) {
            match self.apply(&document, path, declared, &mut file.objects).await {
                Ok(()) => {}
                Err(refusal) => {
                    log_refusal(path, &document, &refusal);
                    duplicates |= matches!(refusal, Refusal::Duplicate(_));
                    unreadable |= document.id().is_none();
                }
            }
        }
        if unreadable {
            file.objects.extend(old.objects);
        }
        file.content = (!duplicates).then_some(content);
        file
    }

    async fn apply(
        &self,
        document: &Document,
        path: &Path,
        declared: &HashMap<ObjectId, PathBuf>,
        own: &mut HashSet<ObjectId>,
    ) -> Result<(), Refusal> {
        let object = document.object.as_ref().map_err(Clone::clone)?;
        let id = object_id(object)?;
        if let Some(other) = declared.get(&id) {
            return Err(Refusal::Duplicate(other.clone()));
        }
        if !own.insert(id) {
            return Err(Refusal::Duplicate(path.to_owned()));
        }
        let outcome = self.api.apply(object.clone()).await?;
        for warning in outcome.warnings {
            tracing::warn!(file = %path.display(), document = document.index, warning, "manifest");
        }
        if outcome.effect != Effect::Unchanged {
            let revision = outcome.revision;
            tracing::info!(file = %path.display(), document = document.index, revision, "manifest applied");
        }
        Ok(())
    }

    async fn prune(&self, id: &ObjectId) {
        let target = Target { resource: id.resource, namespace: &id.namespace, name: &id.name };
        let kind = id.resource.info().kind;
        match self.api.delete(target, &Preconditions::default(), WriteOptions::default()).await {
            Ok(_) => {
                tracing::info!(kind, namespace = id.namespace, name = id.name, "pruned: no manifest has it");
            }
            Err(ApiError::NotFound { .. }) => {}
            Err(error) => {
                tracing::error!(kind, namespace = id.namespace, name = id.name, %error, "not pruned");
            }
        }
    }
}

impl Document {
    fn id(&self) -> Option<ObjectId> {
        object_id(self.object.as_ref().ok()?).ok()
    }
}

fn log_refusal(path: &Path, document: &Document, refusal: &Refusal) {
    let error = refusal.to_string();
    // A parser's message may go on with an excerpt; one line is what the log promises.
    let error = error.lines().next().unwrap_or_default();
    tracing::error!(
        file = %path.display(),
        document = document.index,
        line = document.line,
        item = document.item,
        error,
        "manifest not applied"
    );
}

fn object_id(object: &Value) -> Result<ObjectId, Refusal> {
    let wrong = ApiError::WrongType {
        field: "(the whole document)".to_owned(),
        expected: "an object",
        got: json::type_name(object),
    };
    let object = object.as_object().ok_or(wrong)?;
    let resource = resource_of(object)?;
    let metadata = json::object(object, "metadata").ok_or(Refusal::NoName)?;
    let name = json::text(metadata, "name").ok_or(Refusal::NoName)?.to_owned();
    let namespace = json::text(metadata, "namespace").unwrap_or("default");
    let namespace = if resource.info().namespaced { namespace.to_owned() } else { String::new() };
    Ok(ObjectId { resource, namespace, name })
}

/// The manifest files of a folder, sorted; hidden ones (`..data` among them) are left out.
fn manifest_paths(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let hidden = path.file_name().and_then(|name| name.to_str()).is_none_or(|name| name.starts_with('.'));
        let extension = path.extension().and_then(|extension| extension.to_str());
        if !hidden && matches!(extension, Some("yaml" | "yml" | "json")) && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}
