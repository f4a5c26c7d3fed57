//! The Endpoints `default/kubernetes`, for clients that do not read EndpointSlices: the endpoints of the EndpointSlices
//! of all servers on the store. They are not mirrored, because the slices exist already. Existing Endpoints that were
//! written by another client are left unchanged; the servers' own have the label [`MANAGED_BY`].

use std::collections::{BTreeMap, BTreeSet};

use portolan_api::{Api, ApiError, Part, Preconditions, Target, WriteOptions};
use portolan_schema::{
    Resource,
    json::{self, Value, json},
};

use super::{MANAGED_BY, MANAGER, NAME, SERVICE};
use crate::presence::is_of_a_server;

/// Label of Endpoints that are not mirrored (`k8s.io/api/discovery/v1` `LabelSkipMirror`). Upstream's API servers set it,
/// too.
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";

/// How often they are computed and written while another server writes them at the same time. A server that stops has
/// no later check that would mend them.
const TRIES: usize = 5;

const ENDPOINTS: Target<'static> = Target { resource: Resource::Endpoints, namespace: "default", name: NAME };

/// Writes the Endpoints if they differ from the slices. Removes them if no server has an endpoint.
pub(super) async fn sync(api: &Api) {
    for _ in 0..TRIES {
        match write(api).await {
            Ok(()) => return,
            Err(ApiError::Conflict { .. } | ApiError::NotFound { .. } | ApiError::AlreadyExists { .. }) => {}
            Err(error) => {
                tracing::warn!(%error, "Endpoints default/kubernetes not written");
                return;
            }
        }
        // What the other server has done to its slice must be seen, too.
        if let Err(error) = api.store().refresh().await {
            tracing::warn!(%error, "Endpoints default/kubernetes not written");
            return;
        }
    }
    tracing::warn!("Endpoints default/kubernetes not written: other servers write them all the time");
}

async fn write(api: &Api) -> Result<(), ApiError> {
    // Read before the slices: if another server writes them in between, this write is a conflict.
    let stored = api.store().latest(Resource::Endpoints, &ENDPOINTS.key());
    let wanted = subsets(api);
    let has_endpoints = wanted.as_array().is_some_and(|subsets| !subsets.is_empty());
    let options = WriteOptions::default();
    let Some(stored) = stored else {
        let metadata = json!({"name": NAME, "labels": {SKIP_MIRROR: "true", MANAGED_BY: MANAGER}});
        let Value::Object(object) = json!({"metadata": metadata, "subsets": wanted}) else { return Ok(()) };
        if !has_endpoints {
            return Ok(());
        }
        return api.create(Resource::Endpoints, "default", object, options).await.map(drop);
    };
    if stored.labels().get(MANAGED_BY) != Some(MANAGER) {
        return Ok(());
    }
    let revision = stored.revision().to_string();
    if !has_endpoints {
        let preconditions = Preconditions { resource_version: Some(revision), ..Preconditions::default() };
        return api.delete(ENDPOINTS, &preconditions, options).await.map(drop);
    }
    if stored.decode().get("subsets") == Some(&wanted) {
        return Ok(());
    }
    let patch = json!({"metadata": {"resourceVersion": revision}, "subsets": wanted});
    let Value::Object(patch) = patch else { return Ok(()) };
    api.merge_patch(ENDPOINTS, Part::Main, patch, options).await.map(drop)
}

/// Returns the endpoints of all servers, with one subset for each port.
fn subsets(api: &Api) -> Value {
    let mut addresses: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
    for slice in SERVICE.slices(api).into_iter().filter(|slice| is_of_a_server(slice)) {
        let slice = slice.decode();
        let port = json::list(&slice, "ports").first().and_then(Value::as_object);
        let Some(port) = port.and_then(|port| json::integer(port, "port")) else { continue };
        let endpoints = json::list(&slice, "endpoints").iter().filter_map(Value::as_object);
        let found = endpoints.flat_map(|endpoint| json::texts(endpoint, "addresses"));
        addresses.entry(port).or_default().extend(found.map(str::to_owned));
    }
    let subset = |(port, addresses): (i64, BTreeSet<String>)| {
        let addresses: Vec<Value> = addresses.into_iter().map(|address| json!({"ip": address})).collect();
        json!({"addresses": addresses, "ports": [{"name": "https", "port": port, "protocol": "TCP"}]})
    };
    let filled = addresses.into_iter().filter(|(_, addresses)| !addresses.is_empty());
    Value::from(filled.map(subset).collect::<Vec<_>>())
}
