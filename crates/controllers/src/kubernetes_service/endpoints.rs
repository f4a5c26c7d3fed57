//! The Endpoints `default/kubernetes`, for clients that do not read EndpointSlices: the endpoints of the EndpointSlices
//! of all servers on the store. They are not mirrored, because the slices exist already. Existing Endpoints that were
//! written by another client are left unchanged.

use std::collections::{BTreeMap, BTreeSet};

use portolan_api::{Api, ApiError, Part, Target, WriteOptions};
use portolan_schema::{
    Resource,
    json::{self, Value, json},
};
use portolan_store::Scope;

use super::{NAME, is_of_a_server, presence};

/// Label of Endpoints that are not mirrored (`k8s.io/api/discovery/v1` `LabelSkipMirror`). It also marks the Endpoints
/// that this module has written.
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";

const ENDPOINTS: Target<'static> = Target { resource: Resource::Endpoints, namespace: "default", name: NAME };

/// Writes the Endpoints if they differ from the slices. Removes them if no server has an endpoint.
pub(super) async fn sync(api: &Api) {
    if let Err(error) = write(api).await {
        tracing::warn!(%error, "Endpoints default/kubernetes not written");
    }
}

async fn write(api: &Api) -> Result<(), ApiError> {
    let wanted = subsets(api);
    let has_endpoints = wanted.as_array().is_some_and(|subsets| !subsets.is_empty());
    let options = WriteOptions::default();
    let Some(stored) = api.store().latest(Resource::Endpoints, &ENDPOINTS.key()) else {
        let metadata = json!({"name": NAME, "labels": {SKIP_MIRROR: "true"}});
        let Value::Object(object) = json!({"metadata": metadata, "subsets": wanted}) else { return Ok(()) };
        if !has_endpoints {
            return Ok(());
        }
        return api.create(Resource::Endpoints, "default", object, options).await.map(drop);
    };
    if stored.labels().get(SKIP_MIRROR) != Some("true") {
        return Ok(());
    }
    let revision = stored.revision();
    if !has_endpoints {
        presence::remove(api, ENDPOINTS, Some(revision)).await;
        return Ok(());
    }
    if stored.decode().get("subsets") == Some(&wanted) {
        return Ok(());
    }
    let patch = json!({"metadata": {"resourceVersion": revision.to_string()}, "subsets": wanted});
    let Value::Object(patch) = patch else { return Ok(()) };
    match api.merge_patch(ENDPOINTS, Part::Main, patch, options).await {
        // Another server has written them. The next check compares them again.
        Ok(_) | Err(ApiError::Conflict { .. } | ApiError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the endpoints of all servers, with one subset for each port.
fn subsets(api: &Api) -> Value {
    let scope = Scope { namespace: Some("default"), ..Scope::default() };
    let slices = api.store().snapshot(Resource::EndpointSlice, &scope, None).map(|it| it.objects);
    let mut addresses: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
    for slice in slices.into_iter().flatten().filter(|slice| is_of_a_server(slice)) {
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
