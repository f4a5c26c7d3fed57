//! The API of the objects. Every write passes here, from HTTP requests, manifests, controllers and callers in the
//! same process.
//!
//! Owns: the decision of a write, and the write lock. A write is decided under the lock, one at a time: read the
//! stored object, build the new one, set defaults, plan the allocation, validate. The decision is a transaction,
//! which goes to the store. The lock is free while the store makes the transaction durable, so many writes can wait
//! for the store at once and share one fsync.
//!
//! Invariants:
//! - A Service is written in one transaction with the objects that record its cluster IPs and load-balancer addresses
//!   (IPAddress) and node ports (NodePort). The store applies all of it or nothing. So no address is allocated without its Service, and no
//!   Service is stored without its addresses. Of released node ports, those beyond the limit of the store's transactions
//!   follow in later ones.
//! - These objects alone record who holds an address or a port. The ledger in memory follows them.
//! - Clients read what is published, that is, durable. A write is decided against what the store has accepted,
//!   published or not.
//! - Every object that a transaction writes gets its own revision, so that a watch can resume between any two of
//!   them.
//!
//! Must not know: HTTP, who the client is and what it may do, and where the store keeps its data.

mod applied;
mod blocking;
mod checks;
mod commit;
mod delete;
mod health;
mod kept;
mod later;
mod namespaces;
mod ownership;
mod patch;
mod write;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use ipnet::IpNet;
use portolan_ipam::{Families, NodePortRange, Nodes};
use portolan_schema::{
    Resource,
    json::{self, Object, Value},
    patch::Patch,
    shape::FieldValidation,
    view,
};
use portolan_store::{Scope, Store, Transaction};

pub(crate) use self::commit::{Decision, Write};
use self::ownership::Owners;
pub use self::{
    blocking::Blocking,
    delete::{DeleteOptions, Preconditions, Propagation},
    kept::Kept,
    namespaces::SYSTEM_NAMESPACES,
    ownership::FieldManager,
    patch::Change,
};
use crate::{
    allocate::{AllocatorMetrics, Ledger},
    config::{ApiConfig, HealthChecked, LoadBalancerRanges, ServiceRanges},
    error::ApiError,
    refused::Refused,
};

#[cfg(test)]
mod tests;

/// Most Events that are stored. The oldest ones are removed first: Events are reports, not state.
const MAX_EVENTS: usize = 1000;
/// Number of Events above [`MAX_EVENTS`] at which the oldest are removed.
const EVENTS_AT_ONCE: usize = 100;

/// Reads and writes of objects, with defaults, allocation, validation and the rules of metadata applied.
#[derive(Debug)]
pub struct Api {
    store: Arc<dyn Store>,
    /// The allocator's state. Its mutex is the write lock.
    ledger: Mutex<Ledger>,
    ranges: ServiceRanges,
    pod_ranges: Vec<IpNet>,
    load_balancer_ranges: LoadBalancerRanges,
    validate: bool,
    keeps_health_checks: bool,
    health_checked: Option<HealthChecked>,
}

/// Options of a write.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteOptions {
    /// Decides and validates the write, but does not store it.
    pub dry_run: bool,
    /// How unknown fields are treated.
    pub field_validation: FieldValidation,
    /// Refuses to create an object in a Namespace that does not exist, as Kubernetes does. If false, the write
    /// creates the Namespace.
    pub namespace_must_exist: bool,
    /// The manager that owns the written fields.
    pub field_manager: FieldManager,
    /// An update leaves `managedFields` as they are: the written fields keep their owners. This is for results that the
    /// server itself writes into the fields of others. An atomic list has one owner, which then would be the server.
    pub keeps_owners: bool,
}

/// The result of a write.
#[derive(Debug, Clone)]
pub struct WriteResult {
    /// The object after the write (before it, for a delete), as JSON.
    pub object: Bytes,
    /// Its revision.
    pub revision: u64,
    /// The effect on the object.
    pub effect: Effect,
    /// Warnings for the client.
    pub warnings: Vec<String>,
}

/// The effect of a write on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The object was created.
    Created,
    /// The object was changed.
    Updated,
    /// The write would have changed nothing, and was not stored.
    Unchanged,
    /// The object was removed from the store.
    Deleted,
}

/// The part of an object that a write may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Everything except `status`, if the kind has the subresource `status`.
    Main,
    /// `status` only.
    Status,
    /// `spec.finalizers` of a Namespace only.
    Finalize,
}

/// The resource, namespace and name of one object.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The resource.
    pub resource: Resource,
    /// Its namespace; empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

impl Api {
    /// Creates an API over a store. It may lack what every cluster has.
    pub(crate) fn over(store: Arc<dyn Store>, config: &ApiConfig) -> Self {
        Self {
            store,
            ledger: Mutex::new(Ledger::new(config)),
            ranges: config.service_ranges.clone(),
            pod_ranges: config.pod_ranges.clone(),
            load_balancer_ranges: config.load_balancer_ranges.clone(),
            validate: config.validate,
            keeps_health_checks: config.keeps_health_checks,
            health_checked: config.health_checked,
        }
    }

    /// Returns the store, for reading.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the blocking form of the writes, for threads without an async runtime.
    pub fn blocking(&self) -> Blocking<'_> {
        Blocking(self)
    }

    /// Creates an object. The body may name the namespace if `namespace` is empty.
    pub async fn create(
        &self,
        resource: Resource,
        namespace: &str,
        object: Object,
        options: WriteOptions,
    ) -> Result<WriteResult, ApiError> {
        Ok(self.create_with_warnings(resource, namespace, object, options).await?)
    }

    /// Creates an object like [`Api::create`]. A refusal has the warnings about the request, too.
    pub async fn create_with_warnings(
        &self,
        resource: Resource,
        namespace: &str,
        object: Object,
        options: WriteOptions,
    ) -> Result<WriteResult, Refused> {
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

    /// Creates an object like [`Api::create`], for callers for which it is enough that the object exists. If it exists,
    /// the error is [`ApiError::AlreadyExists`], also for a Service whose address the existing one holds.
    pub async fn create_absent(
        &self,
        resource: Resource,
        namespace: &str,
        object: Object,
        options: WriteOptions,
    ) -> Result<WriteResult, ApiError> {
        let name = write::name_of(&object).to_owned();
        let error = match self.create(resource, namespace, object, options).await {
            Err(error @ ApiError::Invalid { .. }) => error,
            other => return other,
        };
        let key = Target { resource, namespace, name: &name }.key();
        let exists = self.store.latest(resource.stored(), &key).is_some();
        Err(if exists { ApiError::AlreadyExists { resource, name } } else { error })
    }

    /// Replaces an object, or its status. Checks `metadata.resourceVersion` if the body has one.
    pub async fn update(
        &self,
        target: Target<'_>,
        part: Part,
        object: Object,
        options: WriteOptions,
    ) -> Result<WriteResult, ApiError> {
        self.change(target, part, Change::Replace(Kept::new(object)), options).await
    }

    /// Applies a merge patch (RFC 7386) to an object or its status.
    pub async fn merge_patch(
        &self,
        target: Target<'_>,
        part: Part,
        patch: Object,
        options: WriteOptions,
    ) -> Result<WriteResult, ApiError> {
        self.change(target, part, Change::Patch(Patch::Merge(patch)), options).await
    }

    /// Deletes an object. The garbage collector deletes its dependents afterwards. An object with finalizers is
    /// marked as being deleted, and removed when its last finalizer is removed.
    pub async fn delete(
        &self,
        target: Target<'_>,
        preconditions: &Preconditions,
        options: WriteOptions,
    ) -> Result<WriteResult, ApiError> {
        let preconditions = preconditions.clone();
        let options = DeleteOptions { preconditions, propagation: None, dry_run: options.dry_run };
        self.delete_with(target, &options).await
    }

    /// Deletes an object, with a policy for its dependents.
    pub async fn delete_with(
        &self,
        target: Target<'_>,
        options: &DeleteOptions,
    ) -> Result<WriteResult, ApiError> {
        let decided = self.write(|ledger| self.decide_delete(ledger, target, options)).await;
        decided.map(|outcome| outcome.seen_as(target.resource))
    }

    /// Stores `object` as given, `status` included: creates it, or replaces the stored one. An object without a
    /// namespace goes to `default`. The results of health checks in a stored EndpointSlice stay
    /// ([`ApiConfig::keeps_health_checks`]).
    pub async fn apply(&self, object: impl Into<Value>) -> Result<WriteResult, ApiError> {
        self.apply_value(object.into()).await
    }

    async fn apply_value(&self, object: Value) -> Result<WriteResult, ApiError> {
        let Value::Object(mut object) = object else {
            return Err(ApiError::WrongType {
                field: "(the whole object)".to_owned(),
                expected: "an object",
                got: json::type_name(&object),
            });
        };
        let resource = resource_of(&object)?;
        // A manifest is often saved from a live object, whose uid and resourceVersion do not fit the stored one.
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
                let stored = stored.decode();
                applied::keep_finalizers_and_owners(&mut object, &stored);
                self.keep_results(resource, &mut object, &stored);
                self.update(target, Part::Main, object, options).await?
            }
            None => self.create_absent(resource, namespace, object, options).await?,
        };
        let Some(status) = status.filter(|_| resource.info().has_status) else { return Ok(main) };
        let patch = [("status".to_owned(), status)].into_iter().collect();
        let outcome = self.merge_patch(target, Part::Status, patch, options).await?;
        let effect = if outcome.effect == Effect::Unchanged { main.effect } else { outcome.effect };
        let effect = if main.effect == Effect::Created { Effect::Created } else { effect };
        Ok(WriteResult { effect, warnings: main.warnings, ..outcome })
    }

    /// Replaces or patches an object or its status.
    pub async fn change(
        &self,
        target: Target<'_>,
        part: Part,
        change: Change,
        options: WriteOptions,
    ) -> Result<WriteResult, ApiError> {
        Ok(self.change_with_warnings(target, part, change, options).await?)
    }

    /// Replaces or patches like [`Api::change`]. A refusal has the warnings about the request, too.
    pub async fn change_with_warnings(
        &self,
        target: Target<'_>,
        part: Part,
        change: Change,
        options: WriteOptions,
    ) -> Result<WriteResult, Refused> {
        let decided = self.write(|ledger| self.decide_change(ledger, target, part, &change, options)).await;
        decided.map(|outcome| outcome.seen_as(target.resource))
    }

    pub(crate) fn write_lock(&self) -> MutexGuard<'_, Ledger> {
        // A write that panicked stored nothing. At worst an address stays allocated in memory until the next start.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the ledger, brought in sync with the published objects.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        let mut ledger = self.write_lock();
        ledger.follow(&*self.store);
        ledger
    }

    /// Returns the configured ranges of cluster IPs.
    pub fn ranges(&self) -> &ServiceRanges {
        &self.ranges
    }

    /// Returns the ranges of load-balancer addresses.
    pub fn load_balancer_ranges(&self) -> &LoadBalancerRanges {
        &self.load_balancer_ranges
    }

    /// Returns the IP families of the configured ranges.
    pub fn families(&self) -> Families {
        self.write_lock().families()
    }

    /// Returns the configured range of node ports.
    pub fn node_port_range(&self) -> NodePortRange {
        self.write_lock().node_port_range()
    }

    /// Returns true if, since the last call, a Service has lost the IPAddress of an address that it still lists.
    pub fn lacks_address(&self) -> bool {
        self.ledger().take_needs_repair()
    }

    /// Returns the allocator's counters, and how many addresses and ports are allocated and free.
    pub fn allocator_metrics(&self) -> AllocatorMetrics {
        self.ledger().metrics()
    }

    /// Returns the networks of all published Nodes.
    pub fn nodes(&self) -> Arc<Nodes> {
        Arc::clone(self.ledger().nodes())
    }

    /// Creates the Namespace if it does not exist.
    pub async fn ensure_namespace(&self, name: &str) -> Result<(), ApiError> {
        if self.store.latest(Resource::Namespace, name).is_some() {
            return Ok(());
        }
        let namespace = portolan_schema::json::json!({"metadata": {"name": name}});
        let namespace = namespace.as_object().cloned().unwrap_or_default();
        match self.create(Resource::Namespace, "", namespace, WriteOptions::default()).await {
            Ok(_) | Err(ApiError::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes the oldest Events. Runs once [`EVENTS_AT_ONCE`] too many are stored, so that not every new Event costs
    /// a listing.
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
        // An Event that has changed or was deleted meanwhile fails the condition, and needs no removal.
        let results = futures::future::join_all(removals).await;
        tracing::debug!(removed = results.iter().filter(|it| it.is_ok()).count(), "oldest Events dropped");
    }
}

impl WriteResult {
    /// Converts the object to the form that clients of this resource see.
    fn seen_as(self, resource: Resource) -> Self {
        match view::seen_body(resource, &self.object) {
            Some(object) => Self { object: object.into(), ..self },
            None => self,
        }
    }
}

impl Target<'_> {
    /// Returns the object's key in the store.
    pub fn key(&self) -> String {
        if self.resource.info().namespaced {
            format!("{}/{}", self.namespace, self.name)
        } else {
            self.name.to_owned()
        }
    }

    /// Returns the error for an object that does not exist.
    pub fn not_found(&self) -> ApiError {
        ApiError::NotFound { resource: self.resource, name: self.name.to_owned() }
    }
}

/// Returns the resource for the `apiVersion` and `kind` of an object that can be stored.
pub fn resource_of(object: &Object) -> Result<Resource, ApiError> {
    let text = |key| json::text(object, key).unwrap_or_default();
    let stored = Resource::by_kind(text("apiVersion"), text("kind")).filter(|it| it.is_stored());
    stored.ok_or_else(|| ApiError::Mismatch {
        field: "apiVersion and kind",
        body: format!("{} {}", text("apiVersion"), text("kind")),
        url: "any kind that is stored here".to_owned(),
    })
}
