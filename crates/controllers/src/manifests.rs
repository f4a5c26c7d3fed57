//! A folder of manifests whose objects are kept in sync with the store: objects are created, updated, and pruned when
//! no manifest declares them.
//!
//! In: the contents of the folder. Out: writes through [`Api`].
//!
//! Every object that the folder creates has an annotation that names its file. So an object that no manifest declares
//! is pruned even if its manifest was removed while no server was running. A document that cannot be used is logged
//! in one line, and does not affect the other documents. While a file has an unreadable document, nothing that the
//! file created is pruned: the document may declare that object.

mod comebacks;
mod contents;
mod documents;
mod elsewhere;
mod events;
mod follow;
mod given;
mod marker;
mod reading;
mod retry;
mod unsure;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use portolan_api::{Api, ApiError, DeleteOptions, Effect, Preconditions, Target, resource_of};
use portolan_schema::{
    Resource,
    json::{self, Value},
};
use portolan_store::{Scope, StoredObject};
use tokio::time::Instant;

pub use self::follow::Follower;
pub use self::given::{Given, GivenError, Keeper};
pub(crate) use self::marker::MARKER;
pub use self::reading::{Declared, Read, parse, read, read_stream};
use self::{
    comebacks::Comebacks,
    contents::{Contents, Found},
    documents::Document,
    elsewhere::elsewhere,
};
use crate::{
    Seen,
    object::{MANAGED_BY, MIRROR},
};

#[cfg(test)]
mod tests;

/// The objects and files of a folder, as of the last synchronization.
#[derive(Debug)]
struct Folder {
    api: Arc<Api>,
    /// The absolute path.
    path: PathBuf,
    files: BTreeMap<PathBuf, File>,
    /// Objects that could not be pruned yet.
    leftover: HashSet<ObjectId>,
    reserved: Reserved,
    comebacks: Comebacks,
}

/// The objects of one source, which another one must not declare, with the place where each is declared.
#[derive(Debug, Default)]
pub struct Reserved(HashMap<ObjectId, PathBuf>);

/// A file as it was last read.
#[derive(Debug, Default)]
struct File {
    /// The content that was applied. `None` if it could not be read.
    content: Option<Vec<u8>>,
    /// Objects of the file that have to be created again.
    missing: HashSet<ObjectId>,
    /// Positions of the documents that were refused.
    refused: HashSet<usize>,
    /// The result of the last try.
    synced: Synced,
    objects: HashSet<ObjectId>,
    /// The errors in the file that have been logged.
    complaints: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ObjectId {
    resource: Resource,
    namespace: String,
    name: String,
}

/// The reason why a document was not applied.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{0}")]
    Api(#[from] ApiError),
    #[error("the same object is already declared in {}", .0.display())]
    Duplicate(PathBuf),
    #[error("metadata.name: Required value: manifests name their objects")]
    NoName,
    #[error(
        "metadata.labels[endpointslice.kubernetes.io/managed-by]: this server makes the EndpointSlices of Endpoints, and deletes \
         others with this label; leave the EndpointSlice out, or remove the label"
    )]
    Mirrored,
    #[error("another client deletes the object each time; it is created again less and less often")]
    Waiting,
}

/// The result of a synchronization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Synced {
    /// Everything is in sync, except for errors that only a change of the folder can fix.
    #[default]
    Done,
    /// Something was refused, perhaps because of another object.
    Refused,
    /// Not everything is in sync. A retry may succeed soon.
    TryAgain,
}

/// Returns true if the store has objects that the folder created before this process started.
pub fn has_made(api: &Arc<Api>, folder: &Path) -> bool {
    let path = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    !Folder::new(Arc::clone(api), path).files.is_empty()
}

impl Folder {
    /// Creates the folder's state, with the objects that the folder created before this process started.
    fn new(api: Arc<Api>, path: PathBuf) -> Self {
        let (files, leftover) = (BTreeMap::new(), HashSet::new());
        let (reserved, comebacks) = (Reserved::default(), Comebacks::default());
        let mut folder = Self { api, path, files, leftover, reserved, comebacks };
        for resource in Resource::kept() {
            let snapshot = folder.api.store().snapshot(resource, &Scope::default(), None);
            for object in snapshot.into_iter().flat_map(|it| it.objects) {
                if let Some(file) = marker::file_of(resource, &object, &folder.path) {
                    let id = ObjectId::of(resource, &object);
                    folder.files.entry(file).or_default().objects.insert(id);
                }
            }
        }
        folder
    }

    /// Does the same as [`Folder::sync`] if the folder has changed, or an object has to be created again.
    async fn sync_changed(&mut self, contents: Contents) -> Option<Synced> {
        let is_same = |(path, found): (&PathBuf, &Found)| match (self.files.get(path), found) {
            (_, Found::Unfinished) => true,
            (None, _) => false,
            (Some(file), Found::Content(content)) => {
                file.missing.is_empty() && file.content.as_ref() == Some(content)
            }
            (Some(file), Found::Unreadable(error)) => file.complaints == [complaint_of_file(path, error)],
        };
        let is_all_there = self.files.keys().all(|path| contents.contains_key(path));
        if is_all_there && contents.iter().all(is_same) { None } else { Some(self.sync(contents).await) }
    }

    /// Applies the files that have changed, and those of which something was refused. Deletes the objects that no file
    /// declares.
    async fn sync(&mut self, contents: Contents) -> Synced {
        let mut before = std::mem::take(&mut self.files);
        let mut made = std::mem::take(&mut self.leftover);
        made.extend(before.values().flat_map(|file| file.objects.iter().cloned()));
        let mut declared = self.reserved.0.clone();
        let mut synced = Synced::Done;
        for (path, found) in contents {
            let old = before.remove(&path).unwrap_or_default();
            let file = self.sync_file(&path, found, old, &declared).await;
            synced = synced.max(file.synced);
            declared.extend(file.objects.iter().map(|id| (id.clone(), path.clone())));
            self.files.insert(path, file);
            // Other tasks, such as requests, run between the files of a large folder.
            tokio::task::yield_now().await;
        }
        for id in made.into_iter().filter(|id| !declared.contains_key(id)) {
            synced = synced.max(self.prune(id).await);
        }
        synced
    }

    /// Processes changes of the stored objects. Returns true if an object that a file declares was deleted and may be
    /// created again.
    fn observe(&mut self, seen: Vec<Seen>, now: Instant) -> bool {
        let mut gone: HashSet<ObjectId> = HashSet::new();
        for seen in seen {
            match seen {
                Seen::Change(resource, change) if change.new.is_none() => {
                    gone.extend(change.old.map(|old| ObjectId::of(resource, &old)));
                }
                Seen::Change(..) => {}
                Seen::State(resource, objects) => {
                    let present: HashSet<ObjectId> =
                        objects.iter().map(|object| ObjectId::of(resource, object)).collect();
                    let declared = self.files.values().flat_map(|file| &file.objects);
                    gone.extend(
                        declared.filter(|id| id.resource == resource && !present.contains(id)).cloned(),
                    );
                }
            }
        }
        gone.retain(|id| self.files.values().any(|file| file.objects.contains(id)));
        gone.retain(|id| self.comebacks.deleted(id, now));
        self.miss(&gone)
    }

    /// Returns when an object that was deleted again and again may be created again.
    fn due(&self) -> Option<Instant> {
        self.comebacks.due()
    }

    /// Lets objects be created again of which it is time.
    fn release(&mut self, now: Instant) {
        let released = self.comebacks.release(now).into_iter().collect();
        self.miss(&released);
    }

    /// Marks the files that declare one of the objects. Returns true if there is one.
    fn miss(&mut self, objects: &HashSet<ObjectId>) -> bool {
        let mut is_any = false;
        for File { missing, objects: declared, .. } in self.files.values_mut() {
            missing.extend(objects.intersection(declared).cloned());
            is_any |= !objects.is_disjoint(declared);
        }
        is_any
    }

    /// Applies the file. If it has not changed, applies only the documents that were refused and those of missing objects:
    /// other clients may have edited the other objects since.
    async fn sync_file(
        &self,
        path: &Path,
        found: Found,
        old: File,
        declared: &HashMap<ObjectId, PathBuf>,
    ) -> File {
        let content = match found {
            Found::Content(content) => content,
            Found::Unfinished => return File { content: None, synced: Synced::Done, ..old },
            Found::Unreadable(error) => return unread(path, old, &error, Synced::Done),
        };
        let is_same = old.content.as_ref() == Some(&content);
        if is_same && old.missing.is_empty() && old.synced == Synced::Done {
            return old;
        }
        let owned = path.to_owned();
        let split = elsewhere(move || (documents::split(&owned, &content), content));
        let (documents, content) = match split.await {
            Ok(split) => split,
            Err(error) => return unread(path, old, &error, Synced::TryAgain),
        };
        let mut file = File { content: Some(content), ..File::default() };
        let mut unreadable = false;
        let is_due = |position: usize, id: &ObjectId| {
            !is_same || old.refused.contains(&position) || old.missing.contains(id)
        };
        for (position, document) in documents.into_iter().enumerate() {
            let result = match self.check(&document, path, declared, &mut file.objects) {
                Ok((id, object)) if is_due(position, &id) => {
                    self.apply(id, object, path, document.index).await
                }
                checked => checked.map(drop),
            };
            let Err(refusal) = result else { continue };
            file.refused.insert(position);
            file.complaints.push(complaint(path, &document, &refusal));
            unreadable |= document.id().is_none();
            if document.id().is_some() {
                file.synced = file.synced.max(refusal.may_pass());
            }
        }
        complain(&old.complaints, &file.complaints);
        if unreadable {
            file.objects.extend(old.objects);
        }
        file
    }

    /// Returns the object of a document, unless it must not be applied.
    fn check<'a>(
        &self,
        document: &'a Document,
        path: &Path,
        declared: &HashMap<ObjectId, PathBuf>,
        own: &mut HashSet<ObjectId>,
    ) -> Result<(ObjectId, &'a Value), Refusal> {
        let object = document.object.as_ref().map_err(Clone::clone)?;
        let id = object_id(object)?;
        if let Some(other) = declared.get(&id) {
            return Err(Refusal::Duplicate(other.clone()));
        }
        if is_mirrored(id.resource, object) {
            return Err(Refusal::Mirrored);
        }
        if !own.insert(id.clone()) {
            return Err(Refusal::Duplicate(path.to_owned()));
        }
        if self.comebacks.is_waiting(&id) {
            return Err(Refusal::Waiting);
        }
        Ok((id, object))
    }

    /// Applies an object. `document` is the number of its document in the file.
    async fn apply(&self, id: ObjectId, object: &Value, path: &Path, document: usize) -> Result<(), Refusal> {
        let outcome = self.api.apply(marker::marked(object.clone(), &id, path)).await?;
        let deprecated = id.resource.info().deprecated.map(str::to_owned);
        for warning in deprecated.into_iter().chain(outcome.warnings) {
            tracing::warn!(file = %path.display(), document, warning, "manifest");
        }
        if outcome.effect != Effect::Unchanged {
            let revision = outcome.revision;
            tracing::info!(file = %path.display(), document, revision, "manifest applied");
        }
        Ok(())
    }

    /// Deletes an object, unless its annotation was removed: another client has taken it over.
    async fn prune(&mut self, id: ObjectId) -> Synced {
        let (kind, namespace, name) = (id.resource.info().kind, id.namespace.clone(), id.name.clone());
        let Some(stored) = self.api.store().get(id.resource, &id.target().key()) else { return Synced::Done };
        if marker::file_of(id.resource, &stored, &self.path).is_none() {
            tracing::info!(
                kind,
                namespace,
                name,
                "not pruned: it is no longer marked as made by this folder"
            );
            return Synced::Done;
        }
        let preconditions =
            Preconditions { uid: None, resource_version: Some(stored.revision().to_string()) };
        let options = DeleteOptions { preconditions, ..DeleteOptions::default() };
        match self.api.delete_with(id.target(), &options).await {
            Ok(_) => {
                tracing::info!(kind, namespace, name, "pruned: no manifest has it");
                Synced::Done
            }
            Err(ApiError::NotFound { .. }) => Synced::Done,
            Err(error) => {
                tracing::error!(kind, namespace, name, %error, "not pruned");
                let synced = Refusal::Api(error).may_pass();
                if synced != Synced::TryAgain {
                    return Synced::Done;
                }
                self.leftover.insert(id);
                synced
            }
        }
    }
}

impl Refusal {
    /// Returns whether the same document may be accepted later, without a change of the folder.
    fn may_pass(&self) -> Synced {
        match self {
            Self::Api(
                ApiError::Terminating { .. }
                | ApiError::AlreadyExists { .. }
                | ApiError::Conflict { .. }
                | ApiError::Contended { .. }
                | ApiError::Unavailable(_)
                | ApiError::Unconfirmed(_)
                | ApiError::Internal(_),
            ) => Synced::TryAgain,
            Self::Api(_) | Self::Duplicate(_) => Synced::Refused,
            Self::NoName | Self::Mirrored | Self::Waiting => Synced::Done,
        }
    }
}

impl ObjectId {
    fn of(resource: Resource, object: &StoredObject) -> Self {
        Self { resource, namespace: object.namespace().to_owned(), name: object.name().to_owned() }
    }

    fn target(&self) -> Target<'_> {
        Target { resource: self.resource, namespace: &self.namespace, name: &self.name }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.resource.info().kind, self.target().key())
    }
}

impl Document {
    fn id(&self) -> Option<ObjectId> {
        object_id(self.object.as_ref().ok()?).ok()
    }
}

/// Returns one line that names the document's position and what is wrong with it.
fn complaint(path: &Path, document: &Document, refusal: &Refusal) -> String {
    let error = refusal.to_string();
    // A parser's message may continue with an excerpt.
    let error = error.lines().next().unwrap_or_default();
    let Document { index, line, item, .. } = document;
    let item = item.map_or_else(String::new, |item| format!(", item {}", item + 1));
    format!("{}: document {}{item}, line {line}: {error}", path.display(), index + 1)
}

/// Returns the file as it was last read, with a complaint that it cannot be read.
fn unread(path: &Path, old: File, error: &dyn fmt::Display, synced: Synced) -> File {
    let complaints = vec![complaint_of_file(path, error)];
    complain(&old.complaints, &complaints);
    File { content: None, synced, complaints, ..old }
}

fn complaint_of_file(path: &Path, error: &dyn fmt::Display) -> String {
    format!("{}: {error}", path.display())
}

/// Logs the complaints that have not been logged before.
fn complain(old: &[String], new: &[String]) {
    for complaint in new.iter().filter(|it| !old.contains(it)) {
        tracing::error!(complaint, "manifest not applied");
    }
}

/// Returns true if the controller that mirrors Endpoints would take the object for one of its own.
fn is_mirrored(resource: Resource, object: &Value) -> bool {
    let labels =
        object.as_object().and_then(|object| json::object(json::object(object, "metadata")?, "labels"));
    resource == Resource::EndpointSlice
        && labels.and_then(|labels| json::text(labels, MANAGED_BY)) == Some(MIRROR)
}

fn object_id(object: &Value) -> Result<ObjectId, Refusal> {
    let wrong = ApiError::WrongType {
        field: "(the whole document)".to_owned(),
        expected: "an object",
        got: json::type_name(object),
    };
    let object = object.as_object().ok_or(wrong)?;
    // An Event has two forms. Only one is stored.
    let resource = resource_of(object)?.stored();
    let metadata = json::object(object, "metadata").ok_or(Refusal::NoName)?;
    let name = json::text(metadata, "name").ok_or(Refusal::NoName)?.to_owned();
    let namespace = json::text(metadata, "namespace").unwrap_or("default");
    let namespace = if resource.info().namespaced { namespace.to_owned() } else { String::new() };
    Ok(ObjectId { resource, namespace, name })
}
