//! Mirrors the Endpoints of Services without a selector to EndpointSlices, by the rules of upstream's
//! `pkg/controller/endpointslicemirroring`. Proxies read only EndpointSlices.

mod plan;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc, time::Duration};

use portolan_api::{Api, ApiError, DeleteOptions, Part, Preconditions, WriteOptions, events::Notice};
use portolan_schema::{Resource, SERVICE_NAME, json::Object};
use portolan_store::{Scope, StoredObject};

use self::plan::{MAX_ADDRESSES, Wanted, Write, is_mirrored};
use super::{
    BATCH, all, boxed,
    feed::{Feed, Seen},
    object::{MANAGED_BY, MIRROR, Metadata, ObjectRef},
    queue::Queue,
};

/// The controller's name in Events.
const NAME: &str = "endpoint-slice-mirroring-controller";
// The delays of upstream's mirroring controller.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(100);
/// Names to try for a new slice while slices of other owners have them.
const NAME_TRIES: usize = 3;

/// The mirroring controller; see the module.
#[derive(Debug)]
pub(super) struct Mirror {
    api: Arc<Api>,
    feed: Feed,
    /// Keys of Endpoints, which are also those of their Services.
    queue: Queue<Arc<str>>,
    /// The mirrored slices, by the key of their Endpoints.
    slices: HashMap<Arc<str>, Vec<ObjectRef>>,
}

impl Mirror {
    pub(super) fn new(api: &Arc<Api>) -> Self {
        let resources = [Resource::Endpoints, Resource::Service, Resource::EndpointSlice];
        Self {
            api: Arc::clone(api),
            feed: Feed::new(api.store(), resources),
            queue: Queue::new(FIRST_DELAY, LONGEST_DELAY),
            slices: HashMap::new(),
        }
    }

    /// Mirrors Endpoints. Never returns.
    pub(super) async fn run(mut self) {
        loop {
            self.observe();
            let batch = self.queue.take(BATCH);
            if batch.is_empty() {
                if !self.feed.has_more() {
                    self.feed.changed_or_due(&self.queue).await;
                }
                continue;
            }
            self.mirror(batch).await;
            tokio::task::yield_now().await;
        }
    }

    fn observe(&mut self) {
        for seen in self.feed.take() {
            match seen {
                Seen::State(resource, objects) => self.state(resource, &objects),
                Seen::Change(Resource::EndpointSlice, change) => {
                    if let Some(old) = change.old.filter(|it| is_ours(it)) {
                        self.forget(&old);
                    }
                    if let Some(new) = change.new.filter(|it| is_ours(it)) {
                        self.learn(&new);
                    }
                }
                Seen::Change(resource, change) => {
                    if let Some(object) = change.new.or(change.old) {
                        self.look_at(resource, object.key());
                    }
                }
            }
        }
    }

    fn state(&mut self, resource: Resource, objects: &[Arc<StoredObject>]) {
        if resource == Resource::EndpointSlice {
            self.slices.drain().for_each(|(key, _)| self.queue.add(key));
            objects.iter().filter(|it| is_ours(it)).for_each(|slice| self.learn(slice));
            return;
        }
        self.slices.keys().for_each(|key| self.queue.add(Arc::clone(key)));
        for object in objects {
            self.look_at(resource, object.key());
        }
        if resource == Resource::Service {
            // Deleted Services are not in the list, but their Endpoints may still exist.
            let endpoints = self.api.store().snapshot(Resource::Endpoints, &Scope::default(), None);
            endpoints.iter().flat_map(|it| &it.objects).for_each(|it| self.queue.add(it.key().into()));
        }
    }

    /// Queues the key. A Service is queued only if there are Endpoints or mirrored slices of its name.
    fn look_at(&mut self, resource: Resource, key: &str) {
        let matters = resource == Resource::Endpoints
            || self.slices.contains_key(key)
            || self.api.store().get(Resource::Endpoints, key).is_some();
        if matters {
            self.queue.add(key.into());
        }
    }

    fn learn(&mut self, slice: &StoredObject) {
        let key = mirrored_key(slice);
        let slices = self.slices.entry(Arc::clone(&key)).or_default();
        let id = ObjectRef::new(Resource::EndpointSlice, slice.key());
        if !slices.contains(&id) {
            slices.push(id);
            // The order is the same on every server.
            slices.sort_unstable();
        }
        self.queue.add(key);
    }

    fn forget(&mut self, slice: &StoredObject) {
        let key = mirrored_key(slice);
        if let Some(slices) = self.slices.get_mut(&key) {
            slices.retain(|it| *it.key != *slice.key());
            if slices.is_empty() {
                self.slices.remove(&key);
            }
        }
        self.queue.add(key);
    }

    async fn mirror(&mut self, keys: Vec<Arc<str>>) {
        let work = keys.into_iter().map(|key| {
            let slices = self.slices.get(&key).cloned().unwrap_or_default();
            let api = &*self.api;
            boxed(async move {
                let result = mirror(api, &key, &slices).await;
                (key, result)
            })
        });
        for (key, result) in all(work.collect()).await {
            match result {
                Ok(()) => self.queue.succeeded(&key),
                Err(error) => {
                    tracing::warn!(endpoints = &*key, %error, "Endpoints are not mirrored; will try again");
                    self.queue.retry(key);
                }
            }
        }
    }
}

fn is_ours(slice: &StoredObject) -> bool {
    slice.labels().get(MANAGED_BY) == Some(MIRROR)
}

/// Returns the key of the Endpoints that a slice mirrors.
fn mirrored_key(slice: &StoredObject) -> Arc<str> {
    let name = slice.labels().get(SERVICE_NAME).unwrap_or_default();
    format!("{}/{name}", slice.namespace()).into()
}

async fn mirror(api: &Api, key: &str, slices: &[ObjectRef]) -> Result<(), ApiError> {
    let store = &**api.store();
    let present: Vec<Arc<StoredObject>> =
        slices.iter().filter_map(|it| it.get(store)).filter(|it| is_ours(it)).collect();
    let existing: Vec<Object> = present.iter().map(|slice| slice.decode()).collect();
    let stored = store.get(Resource::Endpoints, key).filter(|it| !Metadata::of(it).is_being_deleted());
    let service = store.get(Resource::Service, key).map(|service| service.decode());
    let endpoints = stored.map(|stored| stored.decode()).filter(|it| is_mirrored(it, service.as_ref()));
    let id = ObjectRef::new(Resource::Endpoints, key);
    let Some(endpoints) = endpoints else {
        for slice in &present {
            delete(api, slice).await?;
        }
        return Ok(());
    };
    let wanted = Wanted::of(&endpoints);
    for (reason, note) in remarks(&wanted) {
        tell(api, &id, reason, note).await;
    }
    for write in wanted.writes(&endpoints, &existing) {
        if let Err(error) = carry_out(api, &id, write, &present).await {
            if !matches!(error, ApiError::Terminating { .. }) {
                let note = format!("Error mirroring to EndpointSlices for Endpoints {key}: {error}");
                tell(api, &id, "FailedToUpdateEndpointSlices", note).await;
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Carries out a write. A conflict or a missing object counts as done: another client has changed the slice, and that
/// change will be observed.
async fn carry_out(
    api: &Api,
    endpoints: &ObjectRef,
    write: Write,
    present: &[Arc<StoredObject>],
) -> Result<(), ApiError> {
    let result = match write {
        Write::Create(slice) => return create(api, &endpoints.key, slice).await,
        Write::Update(name, slice) => {
            let id = ObjectRef::new(Resource::EndpointSlice, &format!("{}/{name}", endpoints.namespace()));
            api.update(id.target(), Part::Main, slice, WriteOptions::default()).await.map(drop)
        }
        Write::Delete(name) => match present.iter().find(|slice| slice.name() == name) {
            Some(slice) => delete(api, slice).await,
            None => Ok(()),
        },
    };
    match result {
        Err(ApiError::NotFound { .. } | ApiError::Conflict { .. }) => Ok(()),
        other => other,
    }
}

async fn create(api: &Api, endpoints: &str, mut slice: Object) -> Result<(), ApiError> {
    let namespace = endpoints.split('/').next().unwrap_or_default();
    let mut tries = NAME_TRIES;
    loop {
        let options = WriteOptions { namespace_must_exist: true, ..WriteOptions::default() };
        let result = api.create(Resource::EndpointSlice, namespace, slice.clone(), options).await;
        let Err(ApiError::AlreadyExists { name, .. }) = &result else { return result.map(drop) };
        let key = format!("{namespace}/{name}");
        let found = api.store().get(Resource::EndpointSlice, &key);
        let is_mirrored = found.is_none_or(|it| is_ours(&it) && *mirrored_key(&it) == *endpoints);
        tries -= 1;
        if is_mirrored || tries == 0 {
            return Ok(());
        }
        // A slice of another owner has the name: the server generates one instead.
        if let Some(metadata) =
            slice.get_mut("metadata").and_then(portolan_schema::json::Value::as_object_mut)
        {
            metadata.remove("name");
        }
    }
}

async fn delete(api: &Api, slice: &StoredObject) -> Result<(), ApiError> {
    let preconditions = Preconditions {
        uid: Some(Metadata::of(slice).uid),
        resource_version: Some(slice.revision().to_string()),
    };
    let options = DeleteOptions { preconditions, ..DeleteOptions::default() };
    let id = ObjectRef::new(Resource::EndpointSlice, slice.key());
    match api.delete_with(id.target(), &options).await {
        Ok(_) | Err(ApiError::NotFound { .. } | ApiError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns warnings about the addresses that are not mirrored.
fn remarks(wanted: &Wanted) -> Vec<(&'static str, String)> {
    let mut remarks = Vec::new();
    if wanted.surplus > 0 {
        let note = format!(
            "A max of {MAX_ADDRESSES} addresses can be mirrored to EndpointSlices per Endpoints subset. {} addresses were skipped",
            wanted.surplus
        );
        remarks.push(("TooManyAddressesToMirror", note));
    }
    if wanted.invalid > 0 {
        let note =
            format!("Skipped {} invalid IP addresses when mirroring to EndpointSlices", wanted.invalid);
        remarks.push(("InvalidIPAddresses", note));
    }
    remarks
}

async fn tell(api: &Api, endpoints: &ObjectRef, reason: &'static str, note: String) {
    let notice = Notice {
        regarding: (endpoints.resource, endpoints.namespace(), endpoints.name()),
        uid: None,
        is_warning: true,
        controller: NAME,
        reason,
        action: "MirrorEndpoints",
        note,
    };
    notice.send(api).await;
}
