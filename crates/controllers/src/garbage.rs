//! Garbage collection by owner references, with the rules of upstream's `pkg/controller/garbagecollector`.
//!
//! An object is deleted if all of its owners are gone. An owner that is deleted in the foreground waits for its
//! blocking dependents. An owner whose dependents are orphaned is removed once none of them refers to it. The
//! collector acts on a missing owner only after it has refreshed the store.

mod action;
mod graph;

use std::{collections::HashSet, sync::Arc, time::Duration};

use portolan_api::{
    Api, Propagation,
    events::Notice,
    metadata::{FOREGROUND, ORPHAN},
};
use portolan_schema::Resource;
use portolan_store::{Change, Scope, Store, StoredObject};

use self::{
    action::{Action, Done},
    graph::{Graph, Owner},
};
use super::{
    BATCH, all, boxed,
    feed::{Feed, Seen},
    object::{Metadata, ObjectRef},
    queue::Queue,
};

/// The controller's name in Events.
const NAME: &str = "garbage-collector-controller";
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// The garbage collector; see the module.
#[derive(Debug)]
pub(super) struct Collector {
    api: Arc<Api>,
    feed: Feed,
    graph: Graph,
    queue: Queue<ObjectRef>,
}

/// The owners of an object, by their state.
#[derive(Debug, Default)]
struct Owners {
    /// Number of owners that exist, or whose kind is not stored here so that this is unknown.
    solid: usize,
    /// Owners that do not exist.
    absent: Vec<Owner>,
    /// Owners that wait for their dependents to be deleted.
    waiting: Vec<Owner>,
    /// Namespaced owners of a cluster-scoped object.
    misplaced: Vec<Owner>,
}

impl Collector {
    pub(super) fn new(api: &Arc<Api>) -> Self {
        // Events have no owners and no dependents.
        let resources = Resource::kept().filter(|it| *it != Resource::Event);
        Self {
            api: Arc::clone(api),
            feed: Feed::new(api.store(), resources),
            graph: Graph::default(),
            queue: Queue::new(FIRST_DELAY, LONGEST_DELAY),
        }
    }

    /// Collects garbage. Never returns.
    pub(super) async fn run(mut self) {
        loop {
            self.observe();
            let batch = self.queue.take(BATCH);
            if !batch.is_empty() {
                self.collect(batch).await;
                tokio::task::yield_now().await;
            } else if !self.feed.has_more() {
                self.feed.changed_or_due(&self.queue).await;
            }
        }
    }

    fn observe(&mut self) {
        for seen in self.feed.take() {
            match seen {
                Seen::State(resource, objects) => self.state(resource, &objects),
                Seen::Change(resource, Change { new: Some(new), .. }) => self.is_there(resource, &new),
                Seen::Change(resource, Change { old: Some(old), .. }) => self.is_gone(resource, &old),
                Seen::Change(..) => {}
            }
        }
    }

    /// Applies the whole state of a resource. Any of its objects may have been created or deleted, so all objects
    /// with owners are queued.
    fn state(&mut self, resource: Resource, objects: &[Arc<StoredObject>]) {
        let present: HashSet<&str> = objects.iter().map(|object| object.key()).collect();
        let gone = self.graph.objects().filter(|it| it.resource == resource && !present.contains(&*it.key));
        for object in gone.cloned().collect::<Vec<_>>() {
            self.graph.set(&object, Vec::new());
        }
        for object in objects {
            self.is_there(resource, object);
        }
        for object in self.graph.objects() {
            self.queue.add(object.clone());
        }
    }

    fn is_there(&mut self, resource: Resource, stored: &StoredObject) {
        let object = ObjectRef::new(resource, stored.key());
        let metadata = Metadata::of(stored);
        let keeps = metadata.is_being_deleted()
            && (metadata.has_finalizer(FOREGROUND) || metadata.has_finalizer(ORPHAN));
        let owners: Vec<Owner> = metadata.owner_references.into_iter().map(Owner::from).collect();
        let has_owners = !owners.is_empty();
        let old = self.graph.set(&object, owners);
        let is_changed = old.as_slice() != self.graph.owners(&object);
        if is_changed {
            self.look_at_owners(&object, &old);
        }
        if keeps || has_owners && is_changed {
            self.queue.add(object);
        }
    }

    fn is_gone(&mut self, resource: Resource, stored: &StoredObject) {
        let object = ObjectRef::new(resource, stored.key());
        let owners = self.graph.set(&object, Vec::new());
        self.look_at_owners(&object, &owners);
        for dependent in self.graph.dependents(&Metadata::of(stored).uid) {
            self.queue.add(dependent.clone());
        }
    }

    /// Queues the owners that may have waited for this object.
    fn look_at_owners(&mut self, object: &ObjectRef, owners: &[Owner]) {
        for owner in owners.iter().filter(|owner| owner.blocks) {
            if let Some(place) = owner.place(object) {
                self.queue.add(place);
            }
        }
    }

    async fn collect(&mut self, batch: Vec<ObjectRef>) {
        let pending: Vec<ObjectRef> =
            batch.into_iter().filter(|it| !matches!(self.action(it), Action::Nothing)).collect();
        if pending.is_empty() {
            return;
        }
        if let Err(error) = self.catch_up().await {
            tracing::warn!(%error, "garbage collection waits for the store");
            for object in pending {
                self.queue.retry(object);
            }
            return;
        }
        let mut actions = Vec::new();
        for object in pending {
            match self.action(&object) {
                Action::Nothing => {}
                Action::Examine(dependents) => dependents.into_iter().for_each(|it| self.queue.add(it)),
                action => actions.push((object, action)),
            }
        }
        let api = Arc::clone(&self.api);
        let work = actions.into_iter().map(|(object, action)| {
            let notes = notes(&api, &self.graph, &object);
            let api = Arc::clone(&api);
            boxed(async move {
                for note in notes {
                    tell(&api, &object, note).await;
                }
                let done = action.carry_out(&api, &object).await;
                (object, done)
            })
        });
        for (object, done) in all(work.collect()).await {
            match done {
                Done::Well => self.queue.succeeded(&object),
                Done::Changed => self.queue.add(object),
                Done::Failed => self.queue.retry(object),
            }
        }
    }

    /// Brings the graph up to the current state of the store.
    async fn catch_up(&mut self) -> Result<(), portolan_store::CommitError> {
        let revision = self.api.store().refresh().await?;
        while self.feed.through() < revision {
            if self.api.store().revision() < revision {
                let reason = "it was replaced by an older one";
                return Err(portolan_store::CommitError::Unreadable(reason.to_owned()));
            }
            self.observe();
        }
        Ok(())
    }

    /// Returns what must be done about an object.
    fn action(&self, object: &ObjectRef) -> Action {
        let store = &**self.api.store();
        let Some(stored) = object.get(store) else { return Action::Nothing };
        let metadata = Metadata::of(&stored);
        if metadata.is_being_deleted() {
            return self.action_on_deletion(&metadata);
        }
        let owners = owners(store, object, self.graph.owners(object));
        let (uid, revision) = (metadata.uid.clone(), stored.revision());
        if owners.solid > 0 {
            let detach: HashSet<Box<str>> =
                owners.absent.into_iter().chain(owners.waiting).map(|owner| owner.uid).collect();
            return if detach.is_empty() { Action::Nothing } else { Action::Detach(detach) };
        }
        if owners.absent.is_empty() && owners.waiting.is_empty() {
            return if owners.misplaced.is_empty() { Action::Nothing } else { Action::Report };
        }
        let mut dependents = self.graph.dependents(&metadata.uid).peekable();
        let propagation =
            (!owners.waiting.is_empty() && dependents.peek().is_some()).then_some(Propagation::Foreground);
        // Owners in a cycle would wait for each other for ever.
        let is_circle = propagation.is_some()
            && dependents.any(|it| it.get(store).is_some_and(|it| Metadata::of(&it).waits_for_dependents()));
        if is_circle { Action::Unblock } else { Action::Delete { uid, revision, propagation } }
    }

    fn action_on_deletion(&self, metadata: &Metadata) -> Action {
        let uid = &metadata.uid;
        if metadata.has_finalizer(ORPHAN) {
            let dependents = self.graph.dependents(uid).cloned().collect();
            return Action::Orphan { uid: uid.as_str().into(), dependents };
        }
        if !metadata.has_finalizer(FOREGROUND) {
            return Action::Nothing;
        }
        let store = &**self.api.store();
        let blocking: Vec<ObjectRef> = self.graph.blocking(uid).cloned().collect();
        if blocking.is_empty() {
            return Action::RemoveFinalizer(FOREGROUND);
        }
        let is_being_deleted =
            |it: &ObjectRef| it.get(store).is_none_or(|it| Metadata::of(&it).is_being_deleted());
        let left: Vec<ObjectRef> = blocking.into_iter().filter(|it| !is_being_deleted(it)).collect();
        if left.is_empty() { Action::Nothing } else { Action::Examine(left) }
    }
}

fn owners(store: &dyn Store, object: &ObjectRef, named: &[Owner]) -> Owners {
    let mut owners = Owners::default();
    for owner in named {
        let Some(place) = owner.place(object) else {
            // Another API server may know an owner whose kind is not served here.
            if owner.resource.is_some() {
                owners.misplaced.push(owner.clone());
            }
            owners.solid += usize::from(owner.resource.is_none());
            continue;
        };
        let found = place.get(store).map(|found| Metadata::of(&found)).filter(|it| *it.uid == *owner.uid);
        match found {
            None => owners.absent.push(owner.clone()),
            Some(found) if found.waits_for_dependents() => owners.waiting.push(owner.clone()),
            Some(_) => owners.solid += 1,
        }
    }
    if !owners.misplaced.is_empty() {
        // The other owners are not considered: an object with an owner that cannot be found is never collected.
        (owners.absent, owners.waiting) = (Vec::new(), Vec::new());
    }
    owners
}

/// Returns the warnings about owners in a namespace where they cannot own the object.
fn notes(api: &Api, graph: &Graph, object: &ObjectRef) -> Vec<String> {
    let store = &**api.store();
    let namespaces = store.snapshot(Resource::Namespace, &Scope::default(), None);
    let namespaces = namespaces.map(|it| it.objects).unwrap_or_default();
    let found = owners(store, object, graph.owners(object));
    let is_elsewhere = |owner: &Owner| {
        let Some(resource) = owner.resource.filter(|it| it.info().namespaced) else { return false };
        namespaces.iter().any(|namespace| {
            let stored = store.get(resource, &format!("{}/{}", namespace.key(), owner.name));
            stored.is_some_and(|stored| *Metadata::of(&stored).uid == *owner.uid)
        })
    };
    let elsewhere = found.absent.iter().filter(|owner| is_elsewhere(owner));
    found.misplaced.iter().chain(elsewhere).map(|owner| note(object, owner)).collect()
}

fn note(object: &ObjectRef, owner: &Owner) -> String {
    let info = owner.resource.map(Resource::info);
    let (api_version, kind) = info.map_or(("", ""), |info| (info.api_version, info.kind));
    let (namespace, Owner { name, uid, .. }) = (object.namespace(), owner);
    format!(
        "ownerRef [{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}] does not exist in namespace {namespace:?}"
    )
}

async fn tell(api: &Api, object: &ObjectRef, note: String) {
    let notice = Notice {
        regarding: (object.resource, object.namespace(), object.name()),
        uid: None,
        is_warning: true,
        controller: NAME,
        reason: "OwnerRefInvalidNamespace",
        action: "CollectGarbage",
        note,
    };
    notice.send(api).await;
}
