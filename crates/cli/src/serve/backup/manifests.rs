//! Objects of a store as manifests, without what only their former server gave them.

use std::sync::Arc;

use portolan_serve::json::{self, Value, json};
use portolan_serve::{Object, Resource, StoredObject};

/// What is written, in the order in which it is created. A server makes the objects of other resources itself.
const RESOURCES: [Resource; 6] = [
    Resource::Namespace,
    Resource::ServiceCidr,
    Resource::Node,
    Resource::Service,
    Resource::Endpoints,
    Resource::EndpointSlice,
];
/// Namespaces that every server has.
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// Members of `metadata` that a server sets. The owners of objects are named by the UIDs of former objects.
const SET_BY_SERVER: [&str; 7] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "uid",
];
/// Label of objects that a server maintains, and the writers in this server.
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGERS: [&str; 2] = ["apiserver.portolan", "endpointslicemirroring-controller.k8s.io"];
/// Beginning of the annotations that this server writes for itself.
const INTERNAL: &str = "portolan.internal/";

/// Returns a list of manifests as JSON, and their number. Leaves out what a server makes itself, and objects that were
/// being deleted.
pub(super) fn list(objects: &[(Resource, Arc<StoredObject>)]) -> serde_json::Result<(String, usize)> {
    let of = |wanted| objects.iter().filter(move |(resource, _)| *resource == wanted);
    let items: Vec<Value> = RESOURCES
        .into_iter()
        .flat_map(of)
        .filter(|(resource, object)| !is_of_server(*resource, object))
        .filter_map(|(_, object)| manifest(object.decode()))
        .collect();
    let count = items.len();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    Ok((serde_json::to_string_pretty(&list)? + "\n", count))
}

fn is_of_server(resource: Resource, object: &StoredObject) -> bool {
    match resource {
        Resource::Namespace => NAMESPACES.contains(&object.name()),
        Resource::ServiceCidr => object.name() == "kubernetes",
        Resource::Service => object.key() == "default/kubernetes",
        _ => object.labels().get(MANAGED_BY).is_some_and(|manager| MANAGERS.contains(&manager)),
    }
}

/// Returns the manifest of an object; `None` if the object was being deleted.
fn manifest(mut object: Object) -> Option<Value> {
    let metadata = json::object_mut(&mut object, "metadata")?;
    if metadata.get("deletionTimestamp").is_some() {
        return None;
    }
    for name in SET_BY_SERVER {
        metadata.remove(name);
    }
    let is_empty = metadata.get("annotations").is_some() && {
        let annotations = json::object_mut(metadata, "annotations")?;
        annotations.retain(|name, _| !name.starts_with(INTERNAL));
        annotations.is_empty()
    };
    if is_empty {
        metadata.remove("annotations");
    }
    Some(object.into())
}

#[cfg(test)]
mod tests {
    use portolan_serve::Draft;

    use super::*;

    #[test]
    fn manifests_have_what_users_wrote() {
        let object = |resource, value: Value| {
            (resource, Arc::new(Draft::new(resource, value.as_object().unwrap()).at(7)))
        };
        let mine = json!({
            "metadata": {
                "name": "web", "namespace": "team", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {"portolan.internal/manifest": "Service team/web in /m/a.yaml"},
                "finalizers": ["example.com/holds"], "managedFields": [], "ownerReferences": [{"uid": "o"}],
            },
            "spec": {"clusterIP": "10.96.0.7"},
        });
        let going =
            json!({"metadata": {"name": "a", "namespace": "b", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let mirrored =
            json!({"metadata": {"name": "s", "namespace": "b", "labels": {MANAGED_BY: MANAGERS[1]}}});
        let objects = [
            object(Resource::Service, mine),
            object(Resource::Service, going),
            object(Resource::Service, json!({"metadata": {"name": "kubernetes", "namespace": "default"}})),
            object(Resource::EndpointSlice, mirrored),
            object(Resource::Lease, json!({"metadata": {"name": "l", "namespace": "b"}})),
            object(Resource::ServiceCidr, json!({"metadata": {"name": "kubernetes"}})),
            object(Resource::Namespace, json!({"metadata": {"name": "default"}})),
            object(Resource::Namespace, json!({"metadata": {"name": "team"}})),
        ];
        let (list, count) = list(&objects).unwrap();
        let wanted = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}},
            {"apiVersion": "v1", "kind": "Service",
             "metadata": {"name": "web", "namespace": "team", "finalizers": ["example.com/holds"]},
             "spec": {"clusterIP": "10.96.0.7"}},
        ]});
        assert_eq!((list, count), (serde_json::to_string_pretty(&wanted).unwrap() + "\n", 2));
    }
}
