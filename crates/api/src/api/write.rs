//! Decides creations and changes under the write lock. A decision stores nothing and allocates nothing; it only plans
//! both.

use std::sync::Arc;

use ipnet::IpNet;
use portolan_ipam::{
    Claims, Plan, ServiceKey,
    check::{Neighbours, RangeUse},
};
use portolan_schema::{
    Resource,
    json::{self, Object},
    shape::{self, FieldValidation},
    view,
};
use portolan_store::{Draft, Scope, Step, StoredObject, Transaction};

use super::{
    Api, Effect, Part, Target, WriteOptions, WriteResult,
    checks::{
        bump_generation, check_preconditions, check_unconditional, conflict, is_finished_deletion, match_url,
        restored, update_metadata, wrong_metadata,
    },
    commit::{Decision, Exchange, Write},
    ownership::Owners,
    patch::{self, Change},
};
use crate::{
    allocate::{self, Ledger, Reading, refused},
    error::ApiError,
    kinds::{self, service},
    metadata,
    refused::Refused,
};

/// Tries to find a generated name that is free.
const NAME_TRIES: usize = 8;
/// Most bytes of a stored object, for every store. etcd accepts 1.5 MiB in one request (`--max-request-bytes`), which
/// must hold the keys and conditions, too.
const MOST_BYTES: usize = (3 << 19) - (32 << 10);
/// The stored value in a conflict about an object that does not exist.
const NOTHING_STORED: &str = "none: it does not exist";

/// Whether the name of a new object is free.
enum Named {
    /// It is: the object's key.
    Free(String),
    /// An object with this name exists.
    Taken,
}

/// The stored object with the name of the written one.
#[derive(Debug, Clone, Copy)]
enum Namesake<'a> {
    /// There is none.
    Absent,
    /// An object that a create meets. The create is refused.
    Met,
    /// The object that is changed.
    Old(&'a Object),
    /// The object of which only the status is changed.
    OldStatus(&'a Object),
}

impl Api {
    pub(super) fn decide_create(
        &self,
        ledger: &mut Ledger,
        resource: Resource,
        namespace: &str,
        (mut object, owners): (Object, Owners),
        options: WriteOptions,
    ) -> Result<Decision, Refused> {
        match_url(resource, namespace, None, &mut object)?;
        let warnings = self.conform(resource, &mut object, options)?;
        let decided = self.decide_new(ledger, resource, namespace, (object, owners), options);
        decided
            .map(|decision| decision.with_warnings(warnings.clone()))
            .map_err(|it| it.with_warnings(warnings))
    }

    /// Decides the creation of an object whose fields have the right types. As upstream, the object is checked before
    /// its name, and its addresses and ports are allocated before: an invalid object is refused as invalid even if the
    /// name exists, and so is a Service with an address that the existing one holds. The warnings about a valid one come
    /// with the conflict.
    fn decide_new(
        &self,
        ledger: &mut Ledger,
        resource: Resource,
        namespace: &str,
        (mut object, mut owners): (Object, Owners),
        options: WriteOptions,
    ) -> Result<Decision, Refused> {
        let entry = self.enter_namespace(resource, namespace, &object, options)?;
        if !resource.info().create_keeps_status {
            object.remove("status");
        }
        let named = self.fresh_name(resource, namespace, &mut object)?;
        let namesake = if matches!(named, Named::Taken) { Namesake::Met } else { Namesake::Absent };
        let exchange = self.prepare(ledger, resource, &mut object, namesake, &mut owners)?;
        let warnings = self.remarks(resource, Part::Main, &object);
        let Named::Free(key) = named else {
            let name = name_of(&object).to_owned();
            return Err(Refused { error: ApiError::AlreadyExists { resource, name }, warnings });
        };
        let draft = draft(resource, object)?;
        if options.dry_run {
            // No version of the object is stored, so it has no resourceVersion. A client may create it as it is.
            let (object, revision) = (draft.into_body().into(), self.store.revision());
            return Ok(Decision::Done(WriteResult { object, revision, effect: Effect::Created, warnings }));
        }
        let step = Step::Put { resource: resource.stored(), draft, expected: None };
        let mut transaction = self.transaction(ledger, &key, &exchange, step);
        transaction.steps.splice(0..0, entry);
        Ok(Decision::Write(Write { transaction, effect: Effect::Created, removed: None, warnings, exchange }))
    }

    pub(super) fn decide_change(
        &self,
        ledger: &mut Ledger,
        target: Target<'_>,
        part: Part,
        change: &Change,
        options: WriteOptions,
    ) -> Result<Decision, Refused> {
        let resource = target.resource;
        let Some(stored) = self.store.latest(resource.stored(), &target.key()) else {
            return self.create_on_update(ledger, target, part, change, options);
        };
        let mut old = view::seen(resource, stored.decode());
        let is_patch = change.is_patch();
        let keep = |new: &mut Object, old: &Object| self.keep_results(resource, new, old);
        let (mut new, owners) = change.onto(resource, part, &old, options, keep)?;
        match_url(resource, target.namespace, Some(target.name), &mut new)?;
        if self.validate {
            // An earlier version may have stored zero values that mean absence. They are no difference to the new
            // object, which has none of them.
            shape::drop_absent(resource, &mut old);
        }
        let conformed = self.conform(resource, &mut new, options);
        let warnings = conformed.map_err(|error| {
            if is_patch { patch::bad_result(resource, target.name, error) } else { error }
        })?;
        let checked = if is_patch { Ok(()) } else { check_unconditional(target, &new) };
        let decided =
            checked.and_then(|()| check_preconditions(target, &stored, &old, &new)).and_then(|()| {
                self.decide_update(ledger, (target, part), (stored, &old), (new, owners), options)
            });
        warned(decided, warnings)
    }

    fn create_on_update(
        &self,
        ledger: &mut Ledger,
        target: Target<'_>,
        part: Part,
        change: &Change,
        options: WriteOptions,
    ) -> Result<Decision, Refused> {
        if let Some(uid) = change.asked_uid() {
            return Err(conflict(target, "metadata.uid", uid, NOTHING_STORED).into());
        }
        let (mut object, owners) = match change {
            Change::Replace(object) if target.resource.info().create_on_update && part == Part::Main => {
                (object.object()?, Owners::of_create(options))
            }
            Change::Apply(apply) if part == Part::Main => {
                patch::applied(apply, part, None, options, |_, _| {})?
            }
            _ => return Err(target.not_found().into()),
        };
        let uid = json::object(&object, "metadata").and_then(|metadata| json::text(metadata, "uid"));
        if let Some(uid) = uid {
            return Err(conflict(target, "metadata.uid", uid, NOTHING_STORED).into());
        }
        match_url(target.resource, target.namespace, Some(target.name), &mut object)?;
        self.decide_create(ledger, target.resource, target.namespace, (object, owners), options)
    }

    /// Checks the types of the fields and removes unknown ones. Without validation, only `metadata` is checked.
    fn conform(
        &self,
        resource: Resource,
        object: &mut Object,
        options: WriteOptions,
    ) -> Result<Vec<String>, ApiError> {
        let unknown =
            if self.validate { shape::conform(resource, object)? } else { shape::conform_metadata(object)? };
        let mut warnings = match options.field_validation {
            FieldValidation::Strict if !unknown.is_empty() => {
                return Err(ApiError::UnknownFields { fields: unknown });
            }
            FieldValidation::Ignore => Vec::new(),
            _ => unknown.into_iter().map(|field| format!("unknown field \"{field}\"")).collect(),
        };
        let metadata = json::object_mut(object, "metadata");
        warnings.extend(metadata.and_then(metadata::drop_duplicate_owners));
        Ok(warnings)
    }

    /// Fills in the metadata of a new object, and generates a name if it has none.
    fn fresh_name(
        &self,
        resource: Resource,
        namespace: &str,
        object: &mut Object,
    ) -> Result<Named, ApiError> {
        let generated = name_of(object).is_empty();
        let mut tries = if generated { NAME_TRIES } else { 1 };
        loop {
            let Some(metadata) = json::object_mut(object, "metadata") else {
                return Err(wrong_metadata(object));
            };
            if generated {
                metadata.remove("name");
            }
            metadata::prepare_create(resource, metadata);
            let errors = metadata::validate_new(resource, metadata);
            if !errors.is_empty() {
                return Err(ApiError::invalid(resource, name_of(object), errors));
            }
            let key = Target { resource, namespace, name: name_of(object) }.key();
            tries -= 1;
            if self.store.latest(resource.stored(), &key).is_none() {
                return Ok(Named::Free(key));
            }
            if tries == 0 {
                return Ok(Named::Taken);
            }
        }
    }

    /// Sets defaults, plans the allocation and validates. Nothing is allocated until the whole write is decided.
    fn prepare(
        &self,
        ledger: &mut Ledger,
        resource: Resource,
        object: &mut Object,
        namesake: Namesake<'_>,
        owners: &mut Owners,
    ) -> Result<Exchange, ApiError> {
        if resource == Resource::Service {
            return self.prepare_service(ledger, object, namesake, owners);
        }
        let old = namesake.old();
        kinds::prepare(resource, object, old);
        owners.note_defaulted(resource, object);
        if resource == Resource::EndpointSlice {
            self.hold_back_unchecked(object, old);
        }
        self.check(ledger, resource, object, old)?;
        Ok(Exchange::default())
    }

    fn prepare_service(
        &self,
        ledger: &mut Ledger,
        object: &mut Object,
        namesake: Namesake<'_>,
        owners: &mut Owners,
    ) -> Result<Exchange, ApiError> {
        let old = namesake.old();
        if let Some(old) = old {
            service::clear_for_type(object, old);
        }
        service::set_defaults(object);
        owners.note_defaulted(Resource::Service, object);
        let owner = service_key(object);
        let Some(spec) = json::object_mut(object, "spec") else { return Ok(Exchange::default()) };
        let reading = Reading::of(spec);
        if !reading.is_complete() {
            self.check(ledger, Resource::Service, object, old)?;
        }
        let old_spec = old.map(|old| ledger.stored_spec(old));
        let asked = reading.spec.clone();
        let holder = (&owner, matches!(namesake, Namesake::Met));
        let plan = match namesake {
            // The spec is that of the stored object. The configured ranges may have changed since it got its addresses.
            Namesake::OldStatus(_) => Plan::unchanged(old_spec.clone().unwrap_or_default()),
            _ => ledger.plan(&*self.store, holder, asked.clone(), old_spec.as_ref()).map_err(|errors| {
                ledger.count_refused(&errors);
                // Updates are not validated here: the plan would have cleared some of the fields that look wrong.
                let others =
                    if old.is_none() { kinds::validate(Resource::Service, object, None) } else { Vec::new() };
                refused(name_of(object), &errors, others)
            })?,
        };
        if let Some(spec) = json::object_mut(object, "spec") {
            reading.write(&plan.spec, spec);
        }
        // The status is checked as the client wrote it.
        self.check(ledger, Resource::Service, object, old)?;
        let families = (&owner, plan.spec.ip_families.as_slice());
        let balancer = ledger
            .plan_load_balancer(&*self.store, (&mut *object, old), families)
            .map_err(|errors| ApiError::invalid(Resource::Service, name_of(object), errors))?;
        let held = old_spec.map(|old| old.claims()).unwrap_or_default();
        let mut find = Box::new(plan.keep);
        find.addresses.retain(|address| !held.addresses.contains(address));
        find.ports.retain(|port| !held.ports.contains(port));
        let take = Claims { load_balancer: balancer.take, ..plan.take };
        let release = Claims { load_balancer: balancer.release, ..plan.release };
        Ok(Exchange { take, find, release, asked: Box::new(asked) })
    }

    fn check(
        &self,
        ledger: &Ledger,
        resource: Resource,
        object: &Object,
        old: Option<&Object>,
    ) -> Result<(), ApiError> {
        let errors = match resource {
            _ if !self.validate => Vec::new(),
            Resource::ServiceCidr => {
                self.with_neighbours(ledger, |it| kinds::service_cidr::validate(object, old, it))
            }
            _ => kinds::validate(resource, object, old),
        };
        if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(resource, name_of(object), errors)) }
    }

    /// Calls `check` with the other ranges in use, as far as they are known: pod ranges and node addresses.
    fn with_neighbours<T>(&self, ledger: &Ledger, check: impl FnOnce(Neighbours<'_>) -> T) -> T {
        let (mut pods, mut nodes) = (self.pod_ranges.clone(), Vec::new());
        for (_, networks) in ledger.nodes().iter() {
            pods.extend(&networks.pods);
            nodes.extend(&networks.addresses);
        }
        let load_balancers: Vec<IpNet> = self.load_balancer_ranges.iter().map(|range| range.net()).collect();
        check(Neighbours { pods: &pods, nodes: &nodes, load_balancers: &load_balancers, cluster_ips: &[] })
    }

    /// Returns the warnings about the object for the client. A write of the status causes no warnings about the spec, which
    /// it does not change: of a Node, only its addresses are looked at.
    fn remarks(&self, resource: Resource, part: Part, object: &Object) -> Vec<String> {
        if !self.validate {
            return Vec::new();
        }
        let mut remarks = match part {
            Part::Main => kinds::warnings(resource, object),
            Part::Status => kinds::status_warnings(resource, object),
            Part::Finalize => Vec::new(),
        };
        if resource == Resource::Node {
            let mut networks = kinds::node::networks(object);
            if part == Part::Status {
                networks.pods.clear();
            }
            let balancers: Vec<IpNet> = self.load_balancer_ranges.iter().map(|range| range.net()).collect();
            let of_cluster_ips = networks.overlaps(&self.service_ranges(), RangeUse::ClusterIps);
            let of_balancers = networks.overlaps(&balancers, RangeUse::LoadBalancers);
            remarks.extend(of_cluster_ips.iter().chain(&of_balancers).map(ToString::to_string));
        }
        remarks
    }

    /// Returns the ranges of all ServiceCIDRs, or the configured ones before the first ServiceCIDR exists.
    fn service_ranges(&self) -> Vec<IpNet> {
        let cidrs = self.all(Resource::ServiceCidr);
        let ranges: Vec<IpNet> =
            cidrs.iter().flat_map(|object| kinds::service_cidr::ranges(&object.decode())).collect();
        if ranges.is_empty() { self.ranges().iter().collect() } else { ranges }
    }

    /// Returns all objects of a resource.
    fn all(&self, resource: Resource) -> Vec<Arc<StoredObject>> {
        let snapshot = self.store.snapshot(resource, &Scope::default(), None);
        snapshot.map(|snapshot| snapshot.objects).unwrap_or_default()
    }

    /// Returns the transaction of a write: the steps for the addresses and ports that it takes and releases, then the
    /// object itself.
    pub(super) fn transaction(
        &self,
        ledger: &Ledger,
        key: &str,
        exchange: &Exchange,
        step: Step,
    ) -> Transaction {
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        let owner = ServiceKey::new(namespace, name);
        let Exchange { take, find, release, .. } = exchange;
        let mut steps = ledger.require_ranges(take.addresses.iter().chain(&find.addresses));
        steps.extend(allocate::exchange(&*self.store, &owner, take, release));
        steps.extend(allocate::hold(&*self.store, &owner, find));
        steps.push(step);
        Transaction { steps }
    }

    fn decide_update(
        &self,
        ledger: &mut Ledger,
        (target, part): (Target<'_>, Part),
        (stored, old): (Arc<StoredObject>, &Object),
        (new, mut owners): (Object, Owners),
        options: WriteOptions,
    ) -> Result<Decision, ApiError> {
        let resource = target.resource;
        let mut new = restored(resource, part, new, old);
        update_metadata(target, &mut new, old)?;
        if is_finished_deletion(resource, &new) {
            return Ok(self.decide_removal(ledger, target, stored, old, options.dry_run));
        }
        let namesake = if part == Part::Status { Namesake::OldStatus(old) } else { Namesake::Old(old) };
        let exchange = self.prepare(ledger, resource, &mut new, namesake, &mut owners)?;
        owners.record_update(resource, old, &mut new)?;
        if kinds::bumps_generation(resource, &new, old) {
            bump_generation(&mut new);
        }
        let warnings = self.remarks(resource, part, &new);
        let draft = draft(resource, new)?;
        Ok(self.decide_put(ledger, target, &stored, draft, (options, warnings, exchange)))
    }

    pub(super) fn decide_put(
        &self,
        ledger: &Ledger,
        target: Target<'_>,
        stored: &StoredObject,
        draft: Draft,
        (options, warnings, exchange): (WriteOptions, Vec<String>, Exchange),
    ) -> Decision {
        // An address that the status lists already may have to be recorded, although the Service stays the same.
        if draft.is_same_as(stored) && exchange.take.load_balancer.is_empty() {
            let outcome = outcome(stored, Effect::Unchanged, warnings);
            return Decision::Same(outcome, target.resource.stored(), stored.key().into());
        }
        if options.dry_run {
            return Decision::Done(outcome(&draft.at(stored.revision()), Effect::Updated, warnings));
        }
        let step = Step::Put { resource: target.resource.stored(), draft, expected: Some(stored.revision()) };
        let transaction = self.transaction(ledger, stored.key(), &exchange, step);
        Decision::Write(Write { transaction, effect: Effect::Updated, removed: None, warnings, exchange })
    }
}

impl<'a> Namesake<'a> {
    fn old(self) -> Option<&'a Object> {
        match self {
            Self::Absent | Self::Met => None,
            Self::Old(old) | Self::OldStatus(old) => Some(old),
        }
    }
}

/// Adds the warnings about a request to its decision or its refusal.
fn warned(decided: Result<Decision, ApiError>, warnings: Vec<String>) -> Result<Decision, Refused> {
    match decided {
        Ok(decision) => Ok(decision.with_warnings(warnings)),
        Err(error) => Err(Refused { error, warnings }),
    }
}

/// Returns the object in its stored form. If the object is too large, `managedFields` are dropped, as upstream does
/// (apiserver, `endpoints/handlers/fieldmanager`).
fn draft(resource: Resource, object: Object) -> Result<Draft, ApiError> {
    let mut object = view::stored(resource, object);
    let draft = Draft::new(resource.stored(), &object);
    if draft.size() <= MOST_BYTES {
        return Ok(draft);
    }
    if let Some(metadata) = json::object_mut(&mut object, "metadata") {
        metadata.remove("managedFields");
    }
    let draft = Draft::new(resource.stored(), &object);
    if draft.size() <= MOST_BYTES {
        return Ok(draft);
    }
    let text = format!("the object would take {} bytes, at most {MOST_BYTES} can be stored", draft.size());
    Err(ApiError::TooLargeToStore(text))
}

pub(super) fn outcome(stored: &StoredObject, effect: Effect, warnings: Vec<String>) -> WriteResult {
    WriteResult { object: stored.body().clone(), revision: stored.revision(), effect, warnings }
}

pub(super) fn name_of(object: &Object) -> &str {
    json::object(object, "metadata").and_then(|metadata| json::text(metadata, "name")).unwrap_or_default()
}

pub(super) fn service_key(object: &Object) -> ServiceKey {
    let metadata = json::object(object, "metadata");
    let text = |key| metadata.and_then(|metadata| json::text(metadata, key)).unwrap_or_default();
    ServiceKey::new(text("namespace"), text("name"))
}
