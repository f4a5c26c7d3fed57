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
mod pass;
mod reading;
mod retry;
mod turn;
mod unsure;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use portolan_api::{Api, ApiError, Target, resource_of};
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
    pass::complaint_of_file,
};
use crate::Seen;

#[cfg(test)]
mod tests;

/// The objects and files of a folder, as of the last synchronization.
#[derive(Debug)]
struct Folder {
    api: Arc<Api>,
    /// The absolute path, or the text in its place.
    path: PathBuf,
    /// What texts in place of a path begin with whose objects are those of this folder, too.
    takes_over: Option<String>,
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
    /// The documents that were refused, by their position.
    refused: BTreeMap<usize, Refused>,
    /// The result of the last try.
    synced: Synced,
    objects: HashSet<ObjectId>,
    /// The errors in the file that have been logged.
    complaints: Vec<String>,
}

/// A document that was refused.
#[derive(Debug)]
struct Refused {
    /// One line that says where the document is and what is wrong with it.
    complaint: String,
    /// Whether it may be accepted later.
    may_pass: Synced,
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
        Self::taking_over(api, path, None)
    }

    /// Does the same as [`Folder::new`] for a text in place of a path, which may take over the objects of other such texts.
    fn taking_over(api: Arc<Api>, path: PathBuf, takes_over: Option<String>) -> Self {
        let (files, leftover) = (BTreeMap::new(), HashSet::new());
        let (reserved, comebacks) = (Reserved::default(), Comebacks::default());
        let mut folder = Self { api, path, takes_over, files, leftover, reserved, comebacks };
        for resource in Resource::kept() {
            let snapshot = folder.api.store().snapshot(resource, &Scope::default(), None);
            for object in snapshot.into_iter().flat_map(|it| it.objects) {
                if let Some(file) = folder.file_of(resource, &object) {
                    let id = ObjectId::of(resource, &object);
                    folder.files.entry(file).or_default().objects.insert(id);
                }
            }
        }
        folder
    }

    /// Returns true if the store has an object of the folder.
    fn has_stored(&self) -> bool {
        let mut objects = self.files.values().flat_map(|file| &file.objects);
        objects.any(|id| {
            let stored = self.api.store().get(id.resource, &id.target().key());
            stored.is_some_and(|stored| self.file_of(id.resource, &stored).is_some())
        })
    }

    /// Returns the file of this folder that the object came from; `None` if it did not come from this folder.
    fn file_of(&self, resource: Resource, object: &StoredObject) -> Option<PathBuf> {
        let file = marker::file_of(resource, object)?;
        let folder = file.parent()?;
        let is_taken_over =
            |begin: &String| folder.to_str().is_some_and(|folder| folder.starts_with(begin.as_str()));
        let is_own = folder == self.path || self.takes_over.as_ref().is_some_and(is_taken_over);
        file.file_name().filter(|_| is_own).map(|name| self.path.join(name))
    }

    /// Does the same as [`Folder::sync`] if the folder has changed, or an object has to be created again.
    async fn sync_changed(&mut self, contents: Contents) -> Option<Synced> {
        let is_same = |(path, found): (&PathBuf, &Found)| match (self.files.get(path), found) {
            (_, Found::Unfinished | Found::Missing) => true,
            (None, _) => false,
            (Some(file), Found::Content(content)) => {
                file.missing.is_empty() && file.content.as_ref() == Some(content)
            }
            (Some(file), Found::Unreadable(error)) => file.complaints == [complaint_of_file(path, error)],
        };
        let is_all_there = self.files.keys().all(|path| contents.contains_key(path));
        if is_all_there && contents.iter().all(is_same) { None } else { Some(self.sync(contents).await) }
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
}

impl Refusal {
    /// Returns true if the store is the reason. Each try may wait for the store for seconds.
    fn is_of_store(&self) -> bool {
        matches!(
            self,
            Self::Api(ApiError::Unavailable(_) | ApiError::Unconfirmed(_) | ApiError::Contended { .. })
        )
    }

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
