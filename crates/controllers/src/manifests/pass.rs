//! One synchronization. The documents are applied in [turns](super::turn):
//!
//! 1. Those of the first turn are applied while the files are read.
//! 2. What no file declares is pruned, but for EndpointSlices.
//! 3. What was refused is tried again until nothing changes: it may need what another object has had so far. The Services
//!    that leave something to the server follow.
//! 4. EndpointSlices are applied, then pruned, so a renamed one is there before the old one goes.
//!
//! If the store refuses a document, the turns that follow wait for the next synchronization: they rely on that document.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt, mem,
    path::{Path, PathBuf},
};

use portolan_api::{ApiError, DeleteOptions, Effect, Preconditions};
use portolan_schema::{
    Resource,
    json::{self, Value},
};

use super::{
    File, Folder, ObjectId, Refusal, Refused, Synced,
    contents::{Contents, Found},
    documents::{self, Document},
    elsewhere::elsewhere,
    marker, object_id,
    turn::Turn,
};
use crate::object::{MANAGED_BY, MIRROR};

/// What is left to do in a synchronization.
#[derive(Debug, Default)]
struct Pass {
    /// The documents that wait for their turn, and those that were refused, by turn.
    queue: BTreeMap<Turn, Vec<Due>>,
    /// True if there was a change since the refused documents were tried. The creation of a Service does not count: no refused
    /// document waits for it.
    has_changed: bool,
    /// True if the store has refused a document.
    lacks_store: bool,
    /// The files that are applied, with the complaints that were logged of each.
    logged: BTreeMap<PathBuf, Vec<String>>,
}

/// A document to apply.
#[derive(Debug)]
struct Due {
    turn: Turn,
    file: PathBuf,
    /// Number of the object in the file.
    position: usize,
    /// Number of its document in the file.
    document: usize,
    /// File, document and line, for the log.
    place: String,
    id: ObjectId,
    /// The object in JSON, which takes less memory than its values.
    text: Vec<u8>,
}

impl Folder {
    /// Applies the files that have changed, and those of which something was refused. Deletes the objects that no file
    /// declares.
    pub(super) async fn sync(&mut self, contents: Contents) -> Synced {
        let mut before = mem::take(&mut self.files);
        let mut made = mem::take(&mut self.leftover);
        made.extend(before.values().flat_map(|file| file.objects.iter().cloned()));
        let mut declared = self.reserved.0.clone();
        let mut doubted = HashSet::new();
        let mut pass = Pass::default();
        for (path, found) in contents {
            let old = before.remove(&path).unwrap_or_default();
            let is_missing = matches!(found, Found::Missing);
            let file = self.sync_file(&path, found, old, (&declared, &mut pass)).await;
            if is_missing {
                doubted.extend(file.objects.iter().cloned());
            } else {
                declared.extend(file.objects.iter().map(|id| (id.clone(), path.clone())));
            }
            self.files.insert(path, file);
            // Other tasks, such as requests, run between the files of a large folder.
            tokio::task::yield_now().await;
        }
        made.retain(|id| !declared.contains_key(id) && !doubted.contains(id));
        let (slices, others): (Vec<_>, Vec<_>) =
            made.into_iter().partition(|id| id.resource == Resource::EndpointSlice);
        let mut synced = self.prune_all(others, &mut pass).await;
        self.try_services(&mut pass).await;
        self.try_turn(Turn::Last, &mut pass).await;
        if pass.lacks_store {
            self.leftover.extend(slices);
            synced = Synced::TryAgain;
        } else {
            synced = synced.max(self.prune_all(slices, &mut pass).await);
        }
        self.postpone(&mut pass);
        self.settle(pass);
        self.files.values().map(|file| file.synced).fold(synced, Synced::max)
    }

    /// Applies the documents of the file whose turn is first, and notes the others. If the file has not changed, only the
    /// documents that were refused and those of missing objects: other clients may have edited the other objects since.
    async fn sync_file(
        &self,
        path: &Path,
        found: Found,
        old: File,
        (declared, pass): (&HashMap<ObjectId, PathBuf>, &mut Pass),
    ) -> File {
        let content = match found {
            Found::Content(content) => content,
            Found::Unfinished | Found::Missing => {
                return File { content: None, synced: Synced::Done, ..old };
            }
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
        pass.logged.insert(path.to_owned(), old.complaints);
        let is_due = |position: usize, id: &ObjectId| {
            !is_same || old.refused.contains_key(&position) || old.missing.contains(id)
        };
        for (position, document) in documents.into_iter().enumerate() {
            match self.check(&document, path, declared, &mut file.objects) {
                Ok((id, object)) if is_due(position, &id) => {
                    let turn = Turn::of(&id, object, &**self.api.store());
                    let due = Due::new(turn, path, position, &document, id);
                    if turn != Turn::First {
                        pass.queue(due.with(object));
                    } else if let Err(refusal) = self.apply(&due, object.clone(), pass).await {
                        file.refused.insert(position, pass.refuse(due.with(object), &refusal));
                    }
                }
                Ok(_) => {}
                Err(refusal) => {
                    unreadable |= document.id().is_none();
                    file.refused.insert(position, refused(&place(path, &document), &document, &refusal));
                }
            }
        }
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

    /// Applies the Services whose turn is not the first, and tries what was refused until nothing changes. After each change the
    /// former turns come first: a Service that gets what is free could get what a refused one names.
    async fn try_services(&mut self, pass: &mut Pass) {
        let has_changed = mem::take(&mut pass.has_changed);
        let mut turn = if has_changed { Turn::First } else { Turn::Partly };
        while turn < Turn::Last {
            let has_changed = self.try_turn(turn, pass).await;
            turn = if has_changed { Turn::First } else { turn.next() };
        }
    }

    /// Applies the documents of a turn, up to one after which others come first again. Does nothing if the store has refused one.
    /// Returns true if something has changed.
    async fn try_turn(&mut self, turn: Turn, pass: &mut Pass) -> bool {
        if pass.lacks_store {
            return false;
        }
        let mut due = pass.queue.remove(&turn).unwrap_or_default().into_iter();
        let is_free = matches!(turn, Turn::Partly | Turn::Free);
        for next in due.by_ref() {
            self.apply_due(next, pass).await;
            if pass.lacks_store || is_free && pass.has_changed && pass.has_refused(turn) {
                break;
            }
        }
        pass.queue.entry(turn).or_default().extend(due);
        mem::take(&mut pass.has_changed)
    }

    /// Notes the documents that were not tried, because the store has refused another one.
    fn postpone(&mut self, pass: &mut Pass) {
        for due in mem::take(&mut pass.queue).into_values().flatten() {
            let complaint = format!("{}: waits until the store accepts another document", due.place);
            let refused = Refused { complaint, may_pass: Synced::TryAgain };
            self.files.entry(due.file).or_default().refused.entry(due.position).or_insert(refused);
        }
    }

    /// Applies a document of the queue, and notes the result.
    async fn apply_due(&mut self, due: Due, pass: &mut Pass) {
        let result = match due.object() {
            Ok(object) => self.apply(&due, object, pass).await,
            Err(error) => Err(error.into()),
        };
        let file = self.files.entry(due.file.clone()).or_default();
        let position = due.position;
        match result {
            Ok(()) => {
                file.refused.remove(&position);
            }
            Err(refusal) => {
                file.refused.insert(position, pass.refuse(due, &refusal));
            }
        }
        tokio::task::yield_now().await;
    }

    /// Applies an object.
    async fn apply(&self, due: &Due, object: Value, pass: &mut Pass) -> Result<(), Refusal> {
        let Due { file, document, id, .. } = due;
        let outcome = self.api.apply(marker::marked(object, id, file)).await?;
        let deprecated = id.resource.info().deprecated.map(str::to_owned);
        for warning in deprecated.into_iter().chain(outcome.warnings) {
            tracing::warn!(file = %file.display(), document, warning, "manifest");
        }
        if outcome.effect != Effect::Unchanged {
            let revision = outcome.revision;
            tracing::info!(file = %file.display(), document, revision, "manifest applied");
            pass.has_changed |= id.resource != Resource::Service || outcome.effect != Effect::Created;
        }
        Ok(())
    }

    async fn prune_all(&mut self, objects: Vec<ObjectId>, pass: &mut Pass) -> Synced {
        let mut synced = Synced::Done;
        for id in objects {
            synced = synced.max(self.prune(id, pass).await);
        }
        synced
    }

    /// Deletes an object, unless its annotation was removed: another client has taken it over.
    async fn prune(&mut self, id: ObjectId, pass: &mut Pass) -> Synced {
        let (kind, namespace, name) = (id.resource.info().kind, id.namespace.clone(), id.name.clone());
        let Some(stored) = self.api.store().get(id.resource, &id.target().key()) else { return Synced::Done };
        if self.file_of(id.resource, &stored).is_none() {
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
                pass.has_changed = true;
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

    /// Notes the results of the files that were applied, and logs what is refused in them and was not logged yet.
    fn settle(&mut self, pass: Pass) {
        for (path, logged) in pass.logged {
            let Some(file) = self.files.get_mut(&path) else { continue };
            file.synced = file.refused.values().map(|it| it.may_pass).max().unwrap_or_default();
            file.complaints = file.refused.values().map(|it| it.complaint.clone()).collect();
            complain(&logged, &file.complaints);
        }
    }
}

impl Pass {
    fn queue(&mut self, due: Due) {
        self.queue.entry(due.turn).or_default().push(due);
    }

    /// Notes that a document was refused. It is tried again in this synchronization, unless the store is the reason. This reason
    /// is logged at once: each document that follows may wait for the store.
    fn refuse(&mut self, due: Due, refusal: &Refusal) -> Refused {
        let refused = due.refused(refusal);
        if refusal.is_of_store() {
            self.lacks_store = true;
            let logged = self.logged.entry(due.file).or_default();
            complain(logged, std::slice::from_ref(&refused.complaint));
            logged.push(refused.complaint.clone());
        } else {
            self.queue(due);
        }
        refused
    }

    /// Returns true if the queue has documents of this turn or one before it. During this turn, these were refused.
    fn has_refused(&self, turn: Turn) -> bool {
        self.queue.range(..=turn).any(|(_, due)| !due.is_empty())
    }
}

impl Due {
    fn new(turn: Turn, file: &Path, position: usize, document: &Document, id: ObjectId) -> Self {
        let (file, place) = (file.to_owned(), place(file, document));
        Self { turn, file, position, document: document.index, place, id, text: Vec::new() }
    }

    fn with(self, object: &Value) -> Self {
        Self { text: object.to_string().into_bytes(), ..self }
    }

    fn object(&self) -> Result<Value, ApiError> {
        serde_json::from_slice(&self.text).map_err(|error| documents::undecodable("JSON", &error))
    }

    fn refused(&self, refusal: &Refusal) -> Refused {
        Refused { complaint: complaint(&self.place, refusal), may_pass: refusal.may_pass() }
    }
}

impl Document {
    fn id(&self) -> Option<ObjectId> {
        object_id(self.object.as_ref().ok()?).ok()
    }
}

/// Returns what is noted of a document that must not be applied.
fn refused(place: &str, document: &Document, refusal: &Refusal) -> Refused {
    let may_pass = if document.id().is_some() { refusal.may_pass() } else { Synced::Done };
    Refused { complaint: complaint(place, refusal), may_pass }
}

/// Returns a document's position.
fn place(path: &Path, document: &Document) -> String {
    let Document { index, line, item, .. } = document;
    let item = item.map_or_else(String::new, |item| format!(", item {}", item + 1));
    format!("{}: document {}{item}, line {line}", path.display(), index + 1)
}

/// Returns one line that says where a document is and what is wrong with it.
fn complaint(place: &str, refusal: &Refusal) -> String {
    let error = refusal.to_string();
    // A parser's message may continue with an excerpt.
    format!("{place}: {}", error.lines().next().unwrap_or_default())
}

/// Returns the file as it was last read, with a complaint that it cannot be read.
fn unread(path: &Path, old: File, error: &dyn fmt::Display, synced: Synced) -> File {
    let complaints = vec![complaint_of_file(path, error)];
    complain(&old.complaints, &complaints);
    File { content: None, synced, complaints, ..old }
}

pub(super) fn complaint_of_file(path: &Path, error: &dyn fmt::Display) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_store_refuses_is_not_tried_again_at_once() {
        let contended = ApiError::Contended { resource: Resource::Service, name: "a".into() };
        for (error, is_tried) in [
            (ApiError::Unavailable("away".into()), false),
            (ApiError::Unconfirmed("away".into()), false),
            (contended, false),
            (ApiError::Internal("other".into()), true),
        ] {
            let id = ObjectId { resource: Resource::Service, namespace: "default".into(), name: "a".into() };
            let (file, place, text) = ("a.yaml".into(), "here".into(), Vec::new());
            let due = Due { turn: Turn::Free, file, position: 0, document: 0, place, id, text };
            let mut pass = Pass::default();
            let refused = pass.refuse(due, &Refusal::Api(error));
            assert_eq!(pass.has_refused(Turn::Free), is_tried, "{}", refused.complaint);
            let logged: Vec<_> = pass.logged.into_values().flatten().collect();
            assert_eq!(logged.contains(&refused.complaint), !is_tried);
        }
    }
}
