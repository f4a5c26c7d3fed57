//! The front door of the objects: every write, from HTTP, manifests or the same process, passes here.
//!
//! One write at a time is decided: read the stored object, build the new one, default, validate, allocate, and hand the
//! transaction to the store. Many may be waiting for the store at once.

mod blocking;
mod checks;
mod commit;
mod delete;
mod kept;
mod metrics;
mod namespaces;
mod ownership;
mod patch;
mod write;

pub use self::{
    blocking::Blocking,
    delete::{DeleteOptions, Preconditions, Propagation},
    ownership::FieldManager,
};
pub(crate) use self::{
    commit::{Decision, Write},
    kept::Kept,
    namespaces::SYSTEM_NAMESPACES,
    patch::Change,
};

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::json::Value;
use bytes::Bytes;
use futures::executor::block_on;
use ipnet::IpNet;
use portolan_ipam::{Families, NodePortRange};

use portolan_schema::{patch::Patch, view};

use self::ownership::Owners;
use crate::{
    allocate::Ledger,
    config::{Config, ServiceRanges},
    controllers::{repair::RepairMetrics, service_cidr},
    error::ApiError,
    json::{self, Object},
    resource::Resource,
    schema::FieldValidation,
    store::Scope,
    store::{MemoryStore, Store, StoredObject, Transaction},
};

#[cfg(test)]
mod tests;

/// Most Events kept; the oldest go first. Events report, they are not state.
const MAX_EVENTS: usize = 1000;
/// How many more there may be for a moment.
const EVENTS_AT_ONCE: usize = 100;

/// Reads and writes of objects, with all rules applied.
#[derive(Debug)]
pub struct Api {
    store: Arc<dyn Store>,
    /// Also the write lock.
    ledger: Mutex<Ledger>,
    repair: Mutex<RepairMetrics>,
    ranges: ServiceRanges,
    pod_ranges: Vec<IpNet>,
    validate: bool,
}

/// How a write is to be done.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteOptions {
    /// Do everything but store.
    pub dry_run: bool,
    /// What to do about unknown fields.
    pub field_validation: FieldValidation,
    /// Refuse to create in a Namespace that does not exist, as clients expect; it is made otherwise.
    pub namespace_must_exist: bool,
    /// Who is to own the fields that are written.
    pub field_manager: FieldManager,
}

/// What a write did.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The object after the write (before it, for a delete), as JSON.
    pub object: Bytes,
    /// Its revision.
    pub revision: u64,
    /// What happened to it.
    pub effect: Effect,
    /// Remarks for the client.
    pub warnings: Vec<String>,
}

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It is new.
    Created,
    /// It changed.
    Updated,
    /// The write would have changed nothing and was not stored.
    Unchanged,
    /// It is gone.
    Deleted,
}

/// Which part of an object a write is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Everything but `status`, where the kind has the subresource.
    Main,
    /// `status` alone.
    Status,
    /// `spec.finalizers` alone, of a Namespace.
    Finalize,
}

/// One object by name.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// What kind of object.
    pub resource: Resource,
    /// Its namespace; empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

impl Api {
    /// A fresh in-memory API with the Namespaces and the ServiceCIDR that a cluster has from the start.
    pub fn new(config: &Config) -> Self {
        let api = Self::over(Arc::new(MemoryStore::new(config.history)), config);
        if let Err(error) = block_on(api.furnish()) {
            tracing::error!(%error, "what every cluster has could not be made");
        }
        api
    }

    /// An API over a given store, in which whatever every cluster has is made if it is not there. That it cannot be
    /// made is an error: without the ServiceCIDR no Service would get an address.
    pub async fn open(store: Arc<dyn Store>, config: &Config) -> Result<Self, ApiError> {
        let api = Self::over(store, config);
        api.furnish().await?;
        Ok(api)
    }

    fn over(store: Arc<dyn Store>, config: &Config) -> Self {
        Self {
            store,
            ledger: Mutex::new(Ledger::new(config)),
            repair: Mutex::default(),
            ranges: config.service_ranges.clone(),
            pod_ranges: config.pod_ranges.clone(),
            validate: config.validate,
        }
    }

    async fn furnish(&self) -> Result<(), ApiError> {
        for name in SYSTEM_NAMESPACES {
            self.ensure_namespace(name).await?;
        }
        service_cidr::ensure_default(self).await?;
        service_cidr::settle(self).await;
        Ok(())
    }

    /// The store behind, for reading.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The writes for plain threads.
    pub fn blocking(&self) -> Blocking<'_> {
        Blocking(self)
    }

    /// Creates an object. The namespace may be left to the body.
    pub async fn create(
        &self,
        resource: Resource,
        namespace: &str,
        object: Object,
        options: WriteOptions,
    ) -> Result<Outcome, ApiError> {
        let object = Kept::new(object);
        let decide = |ledger: &mut Ledger| {
            let new = (object.object()?, Owners::of_create(options));
            self.decide_create(ledger, resource, namespace, new, options)
        };
        let outcome = self.write(decide).await?.seen_as(resource);
        if resource.stored() == Resource::Event && !options.dry_run {
            self.drop_oldest_events().await;
        }
        Ok(outcome)
    }

    /// Replaces an object, or its status; checks `metadata.resourceVersion` if the body has one.
    pub async fn update(
        &self,
        target: Target<'_>,
        part: Part,
        object: Object,
        options: WriteOptions,
    ) -> Result<Outcome, ApiError> {
        self.change(target, part, Change::Replace(Kept::new(object)), options).await
    }

    /// Applies a merge patch (RFC 7386) to an object, or to its status.
    pub async fn merge_patch(
        &self,
        target: Target<'_>,
        part: Part,
        patch: Object,
        options: WriteOptions,
    ) -> Result<Outcome, ApiError> {
        self.change(target, part, Change::Patch(Patch::Merge(patch)), options).await
    }

    /// Deletes an object; what it owns goes later. One with finalizers is marked and goes when the last of them is
    /// removed.
    pub async fn delete(
        &self,
        target: Target<'_>,
        preconditions: &Preconditions,
        options: WriteOptions,
    ) -> Result<Outcome, ApiError> {
        let preconditions = preconditions.clone();
        let options = DeleteOptions { preconditions, propagation: None, dry_run: options.dry_run };
        self.delete_with(target, &options).await
    }

    /// Deletes an object, and says what becomes of those it owns.
    pub async fn delete_with(
        &self,
        target: Target<'_>,
        options: &DeleteOptions,
    ) -> Result<Outcome, ApiError> {
        let decided = self.write(|ledger| self.decide_delete(ledger, target, options)).await;
        decided.map(|outcome| outcome.seen_as(target.resource))
    }

    /// Makes the stored object as `object` says, `status` included: creates it, or replaces what is there. Objects
    /// without a namespace go to `default`.
    pub async fn apply(&self, object: impl Into<Value>) -> Result<Outcome, ApiError> {
        self.apply_value(object.into()).await
    }

    async fn apply_value(&self, object: Value) -> Result<Outcome, ApiError> {
        let Value::Object(mut object) = object else {
            return Err(ApiError::WrongType {
                field: "(the whole object)".to_owned(),
                expected: "an object",
                got: json::type_name(&object),
            });
        };
        let resource = resource_of(&object)?;
        // Manifests are often saved from a live object; what identifies that one does not bind this one.
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("uid");
            metadata.remove("resourceVersion");
        }
        let metadata = json::object(&object, "metadata").cloned().unwrap_or_default();
        let name = json::text(&metadata, "name").unwrap_or_default();
        let namespace = if resource.info().namespaced {
            json::text(&metadata, "namespace").unwrap_or("default")
        } else {
            ""
        };
        let target = Target { resource, namespace, name };
        let options = WriteOptions::default();
        let status = object.get("status").cloned();
        if status.is_none() {
            object.remove("status");
        }
        let main = match self.store.get(resource.stored(), &target.key()) {
            Some(stored) => {
                keep_bonds(&mut object, &stored);
                self.update(target, Part::Main, object, options).await?
            }
            None => self.create(resource, namespace, object, options).await?,
        };
        let Some(status) = status.filter(|_| resource.info().has_status) else { return Ok(main) };
        let patch = [("status".to_owned(), status)].into_iter().collect();
        let outcome = self.merge_patch(target, Part::Status, patch, options).await?;
        let effect = if outcome.effect == Effect::Unchanged { main.effect } else { outcome.effect };
        let effect = if main.effect == Effect::Created { Effect::Created } else { effect };
        Ok(Outcome { effect, warnings: main.warnings, ..outcome })
    }

    /// Replaces or patches an object, or its status.
    pub(crate) async fn change(
        &self,
        target: Target<'_>,
        part: Part,
        change: Change,
        options: WriteOptions,
    ) -> Result<Outcome, ApiError> {
        let decided =
            self.write(|ledger| self.decide_change(ledger, target, part, change.clone(), options)).await;
        decided.map(|outcome| outcome.seen_as(target.resource))
    }

    fn write_lock(&self) -> MutexGuard<'_, Ledger> {
        // A write that panicked stored nothing; at worst an address stays taken until the next start.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configured ranges of cluster IPs.
    pub(crate) fn ranges(&self) -> &ServiceRanges {
        &self.ranges
    }

    /// The families of these.
    pub(crate) fn families(&self) -> Families {
        self.write_lock().families()
    }

    /// The range of node ports.
    pub(crate) fn node_port_range(&self) -> NodePortRange {
        self.write_lock().node_port_range()
    }

    /// Whether a Service has lost the IPAddress of an address that it has, since this was last asked.
    pub(crate) fn lacks_address(&self) -> bool {
        let mut ledger = self.write_lock();
        ledger.follow(&*self.store);
        ledger.takes_repair()
    }

    /// Makes a Namespace that is not there.
    pub(crate) async fn ensure_namespace(&self, name: &str) -> Result<(), ApiError> {
        if self.store.latest(Resource::Namespace, name).is_some() {
            return Ok(());
        }
        let namespace = crate::json::json!({"metadata": {"name": name}});
        let namespace = namespace.as_object().cloned().unwrap_or_default();
        match self.create(Resource::Namespace, "", namespace, WriteOptions::default()).await {
            Ok(_) | Err(ApiError::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Some at a time, so that not every new Event costs a look at all of them.
    async fn drop_oldest_events(&self) {
        if self.store.count(Resource::Event) < MAX_EVENTS + EVENTS_AT_ONCE {
            return;
        }
        let Ok(snapshot) = self.store.snapshot(Resource::Event, &Scope::default(), None) else { return };
        let mut events = snapshot.objects;
        events.sort_unstable_by_key(|event| event.revision());
        let surplus = events.len().saturating_sub(MAX_EVENTS);
        let removals = events.iter().take(surplus).map(|event| {
            self.store.commit(Transaction::remove(Resource::Event, event.key(), event.revision()))
        });
        // One that has changed or gone meanwhile is not among the oldest any more.
        let results = futures::future::join_all(removals).await;
        tracing::debug!(removed = results.iter().filter(|it| it.is_ok()).count(), "oldest Events dropped");
    }
}

impl Outcome {
    /// With the object as clients of this resource see it.
    fn seen_as(self, resource: Resource) -> Self {
        match view::seen_body(resource, &self.object) {
            Some(object) => Self { object: object.into(), ..self },
            None => self,
        }
    }
}

impl Target<'_> {
    /// The key in the store.
    pub fn key(&self) -> String {
        if self.resource.info().namespaced {
            format!("{}/{}", self.namespace, self.name)
        } else {
            self.name.to_owned()
        }
    }

    /// The error for an object that is not there.
    pub(crate) fn not_found(&self) -> ApiError {
        ApiError::NotFound { resource: self.resource, name: self.name.to_owned() }
    }
}

/// Who keeps the stored object, and whom it belongs to, stays unless the new one says otherwise.
fn keep_bonds(object: &mut Object, stored: &StoredObject) {
    let stored = stored.decode();
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    for key in ["finalizers", "ownerReferences"] {
        let kept = json::object(&stored, "metadata").and_then(|metadata| metadata.get(key));
        if let Some(kept) = kept.filter(|_| !metadata.contains_key(key)) {
            metadata.insert(key.to_owned(), kept.clone());
        }
    }
}

/// The resource that an object's `apiVersion` and `kind` name.
pub(crate) fn resource_of(object: &Object) -> Result<Resource, ApiError> {
    let text = |key| json::text(object, key).unwrap_or_default();
    Resource::by_kind(text("apiVersion"), text("kind")).ok_or_else(|| ApiError::Mismatch {
        field: "apiVersion and kind",
        body: format!("{} {}", text("apiVersion"), text("kind")),
        url: "any kind that is served here".to_owned(),
    })
}
