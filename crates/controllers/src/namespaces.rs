//! Empties and removes Namespaces that are being deleted. Creates the Namespaces that every cluster has again.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use portolan_api::{
    Api, ApiError, DeleteOptions, Part, Preconditions, SYSTEM_NAMESPACES, WriteOptions,
    kinds::namespace::FINALIZER, metadata,
};
use portolan_schema::{
    Resource, json as fields,
    json::{Object, Value, json},
};
use portolan_store::{Change, Scope, StoredObject};

use super::{
    BATCH, all, boxed,
    feed::{Feed, Seen},
    object::{Metadata, ObjectRef},
    queue::Queue,
};

const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(60);
/// Delay after a change until the conditions of a Namespace are updated, while objects in it wait for finalizers.
const SETTLE: Duration = Duration::from_secs(1);

/// The controller of Namespaces; see the module.
#[derive(Debug)]
pub(super) struct Namespaces {
    api: Arc<Api>,
    feed: Feed,
    queue: Queue<Arc<str>>,
    /// The remaining objects of each Namespace that is being deleted.
    going: HashMap<Arc<str>, HashSet<ObjectRef>>,
}

/// The result of emptying a Namespace: the objects that remain, and the errors.
#[derive(Debug, Default)]
struct Emptied {
    left: HashSet<ObjectRef>,
    /// Number of remaining objects by kind, and by finalizer.
    kinds: BTreeMap<String, usize>,
    finalizers: BTreeMap<String, usize>,
    failures: Vec<String>,
}

impl Namespaces {
    pub(super) fn new(api: &Arc<Api>) -> Self {
        let feed = Feed::new(api.store(), contents().chain([Resource::Namespace]));
        let queue = Queue::new(FIRST_DELAY, LONGEST_DELAY);
        Self { api: Arc::clone(api), feed, queue, going: HashMap::new() }
    }

    /// Runs the controller. Never returns.
    pub(super) async fn run(mut self) {
        loop {
            self.observe();
            let batch = self.queue.take(BATCH);
            for name in &batch {
                match self.settle(name).await {
                    Ok(()) => self.queue.succeeded(name),
                    // Another client has changed the Namespace. The feed will report that change.
                    Err(ApiError::NotFound { .. } | ApiError::Conflict { .. }) => {}
                    Err(error) => {
                        tracing::warn!(namespace = &**name, %error, "the Namespace is not settled; will try again");
                        self.queue.retry(Arc::clone(name));
                    }
                }
            }
            if batch.is_empty() && !self.feed.has_more() {
                self.feed.changed_or_due(&self.queue).await;
            }
        }
    }

    fn observe(&mut self) {
        for seen in self.feed.take() {
            match seen {
                Seen::State(Resource::Namespace, objects) => {
                    let names = SYSTEM_NAMESPACES.into_iter().chain(objects.iter().map(|it| it.key()));
                    names.for_each(|name| self.queue.add(name.into()));
                }
                Seen::Change(Resource::Namespace, change) => {
                    if let Some(object) = change.new.or(change.old) {
                        self.queue.add(object.key().into());
                    }
                }
                Seen::State(..) => self.going.keys().for_each(|name| self.queue.add(Arc::clone(name))),
                Seen::Change(resource, change) => self.content_changed(resource, &change),
            }
        }
    }

    fn content_changed(&mut self, resource: Resource, change: &Change) {
        let Some(object) = change.new.as_ref().or(change.old.as_ref()) else { return };
        let Some((name, left)) = self.going.get_key_value(object.namespace()) else { return };
        let (name, id) = (Arc::clone(name), ObjectRef::new(resource, object.key()));
        let is_new = change.new.is_some() && !left.contains(&id);
        let Some(left) = self.going.get_mut(&name) else { return };
        let is_less = change.new.is_none() && left.remove(&id);
        if is_new || is_less && left.is_empty() {
            self.queue.add(name);
        } else if is_less {
            self.queue.add_after(name, SETTLE);
        }
    }

    async fn settle(&mut self, name: &Arc<str>) -> Result<(), ApiError> {
        let Some(namespace) = self.api.store().get(Resource::Namespace, name) else {
            self.going.remove(name);
            let is_needed = SYSTEM_NAMESPACES.contains(&&**name);
            return if is_needed { self.api.ensure_namespace(name).await } else { Ok(()) };
        };
        let object = namespace.decode();
        if !Metadata::of(&namespace).is_being_deleted() || !is_held(&object) {
            self.going.remove(name);
            return Ok(());
        }
        // No object can be created in the Namespace any more. The refresh makes all existing ones visible.
        self.api.store().refresh().await?;
        let emptied = self.empty(name).await?;
        if emptied.left.is_empty() {
            self.going.remove(name);
            return self.let_go(&namespace, object).await;
        }
        self.report(&namespace, &object, &emptied).await?;
        let has_failed = !emptied.failures.is_empty();
        self.going.insert(Arc::clone(name), emptied.left);
        if has_failed {
            self.queue.retry(Arc::clone(name));
        }
        Ok(())
    }

    /// Deletes all objects in a Namespace. Returns those that still exist afterwards.
    async fn empty(&self, name: &str) -> Result<Emptied, ApiError> {
        let mut emptied = Emptied::default();
        let work =
            self.contents(name).into_iter().filter(|(_, object)| !Metadata::of(object).is_being_deleted());
        let work = work.map(|(id, object)| boxed(delete(&self.api, id, Metadata::of(&object).uid)));
        for result in all(work.collect()).await {
            match result {
                Ok(()) | Err(ApiError::NotFound { .. } | ApiError::Conflict { .. }) => {}
                Err(error) => emptied.failures.push(error.to_string()),
            }
        }
        for (id, object) in self.contents(name) {
            let info = id.resource.info();
            let plural = [info.plural, info.group].join(".");
            *emptied.kinds.entry(plural).or_default() += 1;
            for finalizer in Metadata::of(&object).finalizers {
                *emptied.finalizers.entry(finalizer).or_default() += 1;
            }
            emptied.left.insert(id);
        }
        Ok(emptied)
    }

    fn contents(&self, name: &str) -> Vec<(ObjectRef, Arc<StoredObject>)> {
        let scope = Scope { namespace: Some(name), ..Scope::default() };
        let store = self.api.store();
        contents()
            .filter_map(|resource| Some((resource, store.snapshot(resource, &scope, None).ok()?)))
            .flat_map(|(resource, snapshot)| {
                let id = move |object: Arc<StoredObject>| (ObjectRef::new(resource, object.key()), object);
                snapshot.objects.into_iter().map(id)
            })
            .collect()
    }

    /// Removes the finalizer of an empty Namespace through the subresource `finalize`. The Namespace is then removed.
    async fn let_go(&self, namespace: &StoredObject, mut object: Object) -> Result<(), ApiError> {
        if let Some(spec) = fields::object_mut(&mut object, "spec") {
            let left = fields::texts(spec, "finalizers").filter(|it| *it != FINALIZER).map(Value::from);
            let left: Vec<Value> = left.collect();
            spec.insert("finalizers".to_owned(), left.into());
        }
        let id = ObjectRef::new(Resource::Namespace, namespace.key());
        self.api.update(id.target(), Part::Finalize, object, WriteOptions::default()).await?;
        tracing::info!(namespace = namespace.key(), "the Namespace is empty and gone");
        Ok(())
    }

    /// Writes the conditions that explain why a Namespace still exists.
    async fn report(
        &self,
        namespace: &StoredObject,
        object: &Object,
        emptied: &Emptied,
    ) -> Result<(), ApiError> {
        let old = fields::object(object, "status").map_or(&[][..], |it| fields::list(it, "conditions"));
        let conditions = conditions(emptied, old);
        if conditions == old {
            return Ok(());
        }
        let patch = json!({
            "metadata": {"resourceVersion": namespace.revision().to_string()},
            "status": {"conditions": conditions},
        });
        let Value::Object(patch) = patch else { return Ok(()) };
        let id = ObjectRef::new(Resource::Namespace, namespace.key());
        self.api.merge_patch(id.target(), Part::Status, patch, WriteOptions::default()).await?;
        Ok(())
    }
}

/// Returns the namespaced kinds, each once.
fn contents() -> impl Iterator<Item = Resource> {
    Resource::kept().filter(|it| it.info().namespaced)
}

fn is_held(namespace: &Object) -> bool {
    fields::object(namespace, "spec")
        .is_some_and(|spec| fields::texts(spec, "finalizers").any(|it| it == FINALIZER))
}

async fn delete(api: &Api, id: ObjectRef, uid: String) -> Result<(), ApiError> {
    let preconditions = Preconditions { uid: Some(uid), resource_version: None };
    let options = DeleteOptions { preconditions, ..DeleteOptions::default() };
    api.delete_with(id.target(), &options).await.map(drop)
}

/// Returns the conditions of a Namespace that is being deleted, in the words of upstream's namespace controller.
fn conditions(emptied: &Emptied, old: &[Value]) -> Vec<Value> {
    let listed = |counts: &BTreeMap<String, usize>, what: &str| {
        let counts = counts.iter().map(|(name, count)| format!("{name} {what} {count} resource instances"));
        counts.collect::<Vec<_>>().join(", ")
    };
    let failure = emptied.failures.first().map(|first| {
        let count = emptied.failures.len();
        format!("Failed to delete all resource types, {count} remaining: {first}")
    });
    let remaining = format!("Some resources are remaining: {}", listed(&emptied.kinds, "has"));
    let held = format!(
        "Some content in the namespace has finalizers remaining: {}",
        listed(&emptied.finalizers, "in")
    );
    let held = (!emptied.finalizers.is_empty()).then_some(held);
    let no_failure = "All content successfully deleted, may be waiting on finalization";
    [
        condition(
            "NamespaceDeletionDiscoveryFailure",
            None,
            ("ResourcesDiscovered", "All resources successfully discovered"),
        ),
        condition(
            "NamespaceDeletionGroupVersionParsingFailure",
            None,
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
        ),
        condition(
            "NamespaceDeletionContentFailure",
            failure.map(|it| ("ContentDeletionFailed", it)),
            ("ContentDeleted", no_failure),
        ),
        condition(
            "NamespaceContentRemaining",
            Some(("SomeResourcesRemain", remaining)),
            ("ContentRemoved", ""),
        ),
        condition(
            "NamespaceFinalizersRemaining",
            held.map(|it| ("SomeFinalizersRemain", it)),
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        ),
    ]
    .into_iter()
    .map(|new| with_time(new, old))
    .collect()
}

fn condition(kind: &str, problem: Option<(&str, String)>, fine: (&str, &str)) -> Value {
    let (status, reason, message) = match problem {
        Some((reason, message)) => ("True", reason, message),
        None => ("False", fine.0, fine.1.to_owned()),
    };
    json!({"type": kind, "status": status, "reason": reason, "message": message})
}

/// Sets the time of the last transition. A condition whose status is unchanged keeps its time.
fn with_time(mut new: Value, old: &[Value]) -> Value {
    let before = old.iter().find(|it| it.get("type") == new.get("type"));
    let before = before.filter(|it| it.get("status") == new.get("status"));
    let time = before.and_then(|it| it.get("lastTransitionTime")).cloned();
    if let Some(new) = new.as_object_mut() {
        new.insert("lastTransitionTime".to_owned(), time.unwrap_or_else(|| metadata::now().into()));
    }
    new
}
