//! Which servers of the same store are there: each renews a Lease, and what one left behind that came to no good end is
//! taken away by the others, or by itself under another address.
//!
//! A Lease that was not renewed while this server watched it for as long as it lasts is over. Only this server's own clock
//! is asked, so clocks need not agree.

use std::{collections::HashMap, time::Duration};

use crate::json::{Value, json};
use tokio::time::Instant;

use super::{LOOK_AGAIN, MANAGED_BY, MANAGER, NAME};
use crate::{
    api::{Api, Part, Preconditions, Target, WriteOptions},
    error::ApiError,
    metadata,
    resource::Resource,
    store::Scope,
};

/// Where the Leases are, as those of upstream's API servers.
const NAMESPACE: &str = "kube-system";
/// How long a Lease lasts: its server may miss two renewals.
pub(super) const DURATION: Duration = LOOK_AGAIN.saturating_mul(3);

/// What this server knows of the others.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    /// Of each EndpointSlice: the revision of its Lease, and since when it is that.
    seen: HashMap<String, (Option<u64>, Instant)>,
}

/// Says that the server with this EndpointSlice is there.
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

/// Takes the EndpointSlice and the Lease away.
pub(super) async fn leave(api: &Api, name: &str) {
    for target in [slice(name), lease(name)] {
        remove(api, target, None).await;
    }
}

impl Presence {
    /// Takes away what servers that are gone have left; `own` is this server's.
    pub(super) async fn sweep(&mut self, api: &Api, own: Option<&str>) {
        let scope = Scope { namespace: Some("default"), ..Scope::default() };
        let Ok(slices) = api.store().snapshot(Resource::EndpointSlice, &scope, None) else { return };
        let mut others = HashMap::new();
        for object in slices.objects {
            let labels = object.labels();
            let is_ours = labels.get(MANAGED_BY) == Some(MANAGER)
                && labels.get("kubernetes.io/service-name") == Some(NAME);
            if !is_ours || Some(object.name()) == own {
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
            // The Lease first, as it was: a server that comes back in this moment keeps its endpoint.
            if renewed.is_none() || remove(api, lease(name), renewed).await {
                remove(api, slice(name), None).await;
            }
        }
        self.seen = others;
    }
}

/// Whether it is gone.
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
