//! Tracks which servers share the store. Each server renews a Lease. The EndpointSlice of a server that crashed is
//! removed by the other servers, or by the same server when it runs at another address.
//!
//! A Lease has expired if it was not renewed while this server has watched it for the Lease's duration. Only this
//! server's own clock is used, so the clocks of the servers need not agree.

use std::{collections::HashMap, time::Duration};

use portolan_api::{Api, ApiError, Part, Preconditions, Target, WriteOptions, metadata};
use portolan_schema::{
    Resource,
    json::{Value, json},
};
use portolan_store::Scope;
use tokio::time::Instant;

use super::{MANAGED_BY, MANAGER, RECHECK_INTERVAL, is_of_a_server};

/// The namespace of the Leases, as for upstream's API servers.
const NAMESPACE: &str = "kube-system";
/// Duration of a Lease. Its server may miss two renewals.
pub(super) const DURATION: Duration = RECHECK_INTERVAL.saturating_mul(3);

/// The other servers, as this server has observed them.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    /// By the name of each EndpointSlice: the revision of its Lease, and the time since when the Lease has it.
    seen: HashMap<String, (Option<u64>, Instant)>,
}

/// Renews the Lease of the server with this EndpointSlice.
pub(super) async fn renew(api: &Api, name: &str) -> Result<(), ApiError> {
    let now = metadata::now_micro();
    let duration = DURATION.as_secs();
    let spec = json!({"holderIdentity": name, "leaseDurationSeconds": duration, "renewTime": now});
    let object = if api.store().latest(Resource::Lease, &lease(name).key()).is_some() {
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

/// Removes the EndpointSlice and the Lease.
pub(super) async fn leave(api: &Api, name: &str) {
    for target in [slice(name), lease(name)] {
        remove(api, target, None).await;
    }
}

impl Presence {
    /// Removes the EndpointSlices and Leases of servers that are gone. `own` is the name of this server's.
    pub(super) async fn sweep(&mut self, api: &Api, own: Option<&str>) {
        let scope = Scope { namespace: Some("default"), ..Scope::default() };
        let Ok(slices) = api.store().snapshot(Resource::EndpointSlice, &scope, None) else { return };
        let mut others = HashMap::new();
        for object in slices.objects {
            if !is_of_a_server(&object) || Some(object.name()) == own {
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
                remove(api, slice(name), None).await;
            }
        }
        self.seen = others;
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

fn slice(name: &str) -> Target<'_> {
    Target { resource: Resource::EndpointSlice, namespace: "default", name }
}
