//! One synchronization: applies the documents in [turns](super::turn), prunes what no file declares, and tries what was
//! refused again as long as something else has changed: it may have asked for what another object still had.

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
    waiting: BTreeMap<Turn, Vec<Due>>,
    refused: Vec<Due>,
    /// True if an object was written or deleted since the refused documents were tried.
    has_changed: bool,
    /// The files that are applied, with their former complaints.
    applied: Vec<(PathBuf, Vec<String>)>,
}

/// A document to apply.
#[derive(Debug)]
struct Due {
    file: PathBuf,
    /// Number of the object in the file.
    position: usize,
    /// Number of its document in the file.
    document: usize,
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
        let mut pass = Pass::default();
        for (path, found) in contents {
            let old = before.remove(&path).unwrap_or_default();
            let file = self.sync_file(&path, found, old, (&declared, &mut pass)).await;
            declared.extend(file.objects.iter().map(|id| (id.clone(), path.clone())));
            self.files.insert(path, file);
            // Other tasks, such as requests, run between the files of a large folder.
            tokio::task::yield_now().await;
        }
        for due in mem::take(&mut pass.waiting).into_values().flatten() {
            self.apply_due(due, &mut pass).await;
        }
        let mut synced = Synced::Done;
        for id in made.into_iter().filter(|id| !declared.contains_key(id)) {
            synced = synced.max(self.prune(id, &mut pass).await);
        }
        while mem::take(&mut pass.has_changed) {
            for due in mem::take(&mut pass.refused) {
                self.apply_due(due, &mut pass).await;
            }
        }
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
            !is_same || old.refused.contains_key(&position) || old.missing.contains(id)
        };
        for (position, document) in documents.into_iter().enumerate() {
            match self.check(&document, path, declared, &mut file.objects) {
                Ok((id, object)) if is_due(position, &id) => {
                    let turn = Turn::of(&id, object, &**self.api.store());
                    let due = Due::new(path, position, &document, id);
                    if turn != Turn::First {
                        pass.wait(turn, due, object);
                    } else if let Err(refusal) = self.apply(&due, object.clone(), pass).await {
                        file.refused.insert(position, due.refused(&refusal));
                        pass.refuse(due, object);
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
        pass.applied.push((path.to_owned(), old.complaints));
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

    /// Applies a document whose turn is not the first, or that was refused, and notes the result.
    async fn apply_due(&mut self, due: Due, pass: &mut Pass) {
        let result = match due.object() {
            Ok(object) => self.apply(&due, object, pass).await,
            Err(error) => Err(error.into()),
        };
        let file = self.files.entry(due.file.clone()).or_default();
        match result {
            Ok(()) => {
                file.refused.remove(&due.position);
            }
            Err(refusal) => {
                file.refused.insert(due.position, due.refused(&refusal));
                pass.refused.push(due);
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
            pass.has_changed = true;
        }
        Ok(())
    }

    /// Deletes an object, unless its annotation was removed: another client has taken it over.
    async fn prune(&mut self, id: ObjectId, pass: &mut Pass) -> Synced {
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

    /// Notes the results of the files that were applied, and logs what is refused in them.
    fn settle(&mut self, pass: Pass) {
        for (path, former) in pass.applied {
            let Some(file) = self.files.get_mut(&path) else { continue };
            file.synced = file.refused.values().map(|it| it.may_pass).max().unwrap_or_default();
            file.complaints = file.refused.values().map(|it| it.complaint.clone()).collect();
            complain(&former, &file.complaints);
        }
    }
}

impl Pass {
    fn wait(&mut self, turn: Turn, due: Due, object: &Value) {
        self.waiting.entry(turn).or_default().push(due.with(object));
    }

    fn refuse(&mut self, due: Due, object: &Value) {
        self.refused.push(due.with(object));
    }
}

impl Due {
    fn new(file: &Path, position: usize, document: &Document, id: ObjectId) -> Self {
        let (file, place) = (file.to_owned(), place(file, document));
        Self { file, position, document: document.index, place, id, text: Vec::new() }
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
