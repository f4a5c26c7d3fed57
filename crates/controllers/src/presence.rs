//! Tracks which servers share the store, for the Services whose endpoints are the servers themselves. Each server renews
//! a Lease for each of its EndpointSlices. The EndpointSlice of a server that crashed is removed by the other servers, or
//! by the same server when it runs at another address.
//!
//! A Lease has expired if it was not renewed while this server has watched it for the Lease's duration. Only this
//! server's own clock is used, so the clocks of the servers need not agree.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use portolan_api::{Api, ApiError, Effect, Part, Preconditions, Target, WriteOptions, metadata};
use portolan_schema::{
    Resource, SERVICE_NAME,
    json::{self, Value, json},
};
use portolan_store::{Scope, StoredObject};
use tokio::time::Instant;

use super::RECHECK_INTERVAL;
use super::object::MANAGED_BY;

/// Value of [`MANAGED_BY`] for the objects that these servers maintain.
pub(super) const MANAGER: &str = "apiserver.portolan";

/// The namespace of the Leases, as for upstream's API servers.
const NAMESPACE: &str = "kube-system";
/// Duration of a Lease. Its server may miss two renewals.
pub(super) const DURATION: Duration = RECHECK_INTERVAL.saturating_mul(3);

/// A Service whose endpoints are servers.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerService {
    pub(super) namespace: &'static str,
    pub(super) name: &'static str,
}

impl ServerService {
    /// Returns the EndpointSlices of the Service, those of servers and all others.
    pub(super) fn slices(self, api: &Api) -> Vec<Arc<StoredObject>> {
        let scope = Scope { namespace: Some(self.namespace), ..Scope::default() };
        let slices = api.store().snapshot(Resource::EndpointSlice, &scope, None).map(|it| it.objects);
        let has_label = |slice: &StoredObject| slice.labels().get(SERVICE_NAME) == Some(self.name);
        slices.into_iter().flatten().filter(|slice| has_label(slice)).collect()
    }

    fn slice(self, name: &str) -> Target<'_> {
        Target { resource: Resource::EndpointSlice, namespace: self.namespace, name }
    }
}

/// Returns true if the object is maintained by a server.
pub(super) fn is_of_a_server(object: &StoredObject) -> bool {
    object.labels().get(MANAGED_BY) == Some(MANAGER)
}

/// The other servers, as this server has observed them, and what was logged about the objects of this one.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// The last error of each object that could not be made.
    complaints: HashMap<String, String>,
    /// By the name of each EndpointSlice: the revision of its Lease, and the time since when the Lease has it.
    seen: HashMap<String, (Option<u64>, Instant)>,
}

/// A server as the holder of its Leases. Servers with the same address have the same EndpointSlice and Lease, so the name
/// does not say which of them renewed the Lease last.
#[derive(Debug, Clone)]
pub(super) struct Holder(String);

impl Holder {
    /// Returns a holder that differs from all others, also from those of earlier runs. `name` makes it readable.
    pub(super) fn new(name: &str) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Relaxed));
        Self(format!("{name}_{process}_{since:x}_{number}"))
    }

    /// Renews the Lease of the EndpointSlice `name`.
    pub(super) async fn renew(&self, api: &Api, name: &str) -> Result<(), ApiError> {
        let (holder, now) = (&self.0, metadata::now_micro());
        let duration = DURATION.as_secs();
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": duration, "renewTime": now});
        let object = if stored_lease(api, name).is_some() {
            json!({"spec": spec})
        } else {
            let metadata = json!({"name": name, "namespace": NAMESPACE, "labels": {MANAGED_BY: MANAGER}});
            json!({"metadata": metadata, "spec": spec})
        };
        let Value::Object(object) = object else { return Ok(()) };
        let options = WriteOptions::default();
        let done = if object.contains_key("metadata") {
            api.create(Resource::Lease, NAMESPACE, object, options).await
        } else {
            api.merge_patch(lease(name), Part::Main, object, options).await
        };
        done.map(drop)
    }

    /// Returns true if this server was the last one to renew the Lease.
    pub(super) fn holds(&self, api: &Api, name: &str) -> bool {
        stored_lease(api, name).is_some_and(|lease| self.is_of(&lease))
    }

    fn is_of(&self, lease: &StoredObject) -> bool {
        let lease = lease.decode();
        json::object(&lease, "spec").and_then(|spec| json::text(spec, "holderIdentity")) == Some(&self.0)
    }

    /// Removes the EndpointSlice and the Lease, unless another server has renewed the Lease since.
    pub(super) async fn leave(&self, api: &Api, service: ServerService, name: &str) {
        let stored = stored_lease(api, name);
        if stored.as_ref().is_some_and(|stored| !self.is_of(stored)) {
            return;
        }
        // The Lease is deleted first, at this revision: another server may renew it at this moment.
        let revision = stored.map(|stored| stored.revision());
        if revision.is_none() || remove(api, lease(name), revision).await {
            remove(api, service.slice(name), None).await;
        }
    }
}

fn stored_lease(api: &Api, name: &str) -> Option<Arc<StoredObject>> {
    api.store().latest(Resource::Lease, &lease(name).key())
}

impl Presence {
    /// Logs the result of [`ensure`] for an object of the Service. It is made at each check: an error is logged when it is
    /// another one than before.
    pub(super) fn log_made(
        &mut self,
        service: ServerService,
        object: &str,
        made: Result<Option<String>, ApiError>,
    ) {
        match made {
            Ok(made) => {
                self.complaints.remove(object);
                if let Some(key) = made {
                    tracing::info!(key, "made");
                }
            }
            Err(error) => {
                let error = error.to_string();
                if self.is_news(object, &error) {
                    let ServerService { namespace, name: service } = service;
                    tracing::error!(
                        namespace,
                        service,
                        object,
                        error,
                        "an object of a Service of this server cannot be made"
                    );
                }
            }
        }
    }

    fn is_news(&mut self, object: &str, error: &str) -> bool {
        self.complaints.insert(object.to_owned(), error.to_owned()).as_deref() != Some(error)
    }

    /// Removes the EndpointSlices and Leases of servers that are gone. `own` are the names of this server's. Returns true
    /// if there are other servers.
    pub(super) async fn sweep(&mut self, api: &Api, service: ServerService, own: &[&str]) -> bool {
        let mut others = HashMap::new();
        for object in service.slices(api) {
            if !is_of_a_server(&object) || own.contains(&object.name()) {
                continue;
            }
            let name = object.name();
            let renewed = api.store().get(Resource::Lease, &lease(name).key()).map(|lease| lease.revision());
            let known = self.seen.get(name).copied().filter(|(revision, _)| *revision == renewed);
            let (_, since) = known.unwrap_or_else(|| (renewed, Instant::now()));
            if since.elapsed() < DURATION {
                others.insert(name.to_owned(), (renewed, since));
                continue;
            }
            tracing::warn!(name, "a server has not renewed its Lease: its endpoint is taken away");
            // The Lease is deleted first, at the observed revision: a server that comes back at this moment keeps its
            // endpoint.
            if renewed.is_none() || remove(api, lease(name), renewed).await {
                remove(api, service.slice(name), None).await;
            }
        }
        self.seen = others;
        !self.seen.is_empty()
    }
}

/// Deletes the object. Returns true if it is gone.
async fn remove(api: &Api, target: Target<'_>, revision: Option<u64>) -> bool {
    let resource_version = revision.map(|revision| revision.to_string());
    let preconditions = Preconditions { resource_version, ..Preconditions::default() };
    match api.delete(target, &preconditions, WriteOptions::default()).await {
        Ok(_) | Err(ApiError::NotFound { .. }) => true,
        Err(error) => {
            tracing::warn!(name = target.name, kind = target.resource.info().kind, %error, "not deleted");
            false
        }
    }
}

fn lease(name: &str) -> Target<'_> {
    Target { resource: Resource::Lease, namespace: NAMESPACE, name }
}

/// Creates the object if it does not exist. Returns its key if it was created.
pub(super) async fn ensure(api: &Api, object: Value) -> Result<Option<String>, ApiError> {
    let Some(object) = object.as_object().cloned() else { return Ok(None) };
    let resource = portolan_api::resource_of(&object)?;
    let metadata = json::object(&object, "metadata").cloned().unwrap_or_default();
    let namespace = json::text(&metadata, "namespace").unwrap_or_default();
    let key = format!("{namespace}/{}", json::text(&metadata, "name").unwrap_or_default());
    if api.store().latest(resource, &key).is_some() {
        return Ok(None);
    }
    match api.create_absent(resource, namespace, object, WriteOptions::default()).await {
        Ok(outcome) => Ok((outcome.effect == Effect::Created).then_some(key)),
        Err(ApiError::AlreadyExists { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_logged_when_it_is_another_one() {
        let mut presence = Presence::default();
        let service = ServerService { namespace: "default", name: "kubernetes" };
        let news = ["taken", "taken", "full", "taken"].map(|error| presence.is_news("Service", error));
        assert_eq!(news, [true, false, true, true]);
        assert!(presence.is_news("slice", "taken"), "another object");
        presence.log_made(service, "Service", Ok(None));
        assert!(presence.is_news("Service", "taken"), "it was made meanwhile");
    }
}
